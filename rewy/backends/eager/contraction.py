"""Local scores and their adjoints: sum_d x_id k_jd exp(G_id - G_jd) for the pairs i > j of a chunk.

The channel gate sits inside the contraction, so it is made a matrix product by halving: at half
size s the later half of every block of 2s rows meets the earlier half, each scaled to the later
half's first row c, ``(x * exp(G - G_c)) (k * exp(G_c - G))^T``. Both exponents are <= 0 for every
g <= 0, and the levels s = 1, 2, ..., C/2 cover each pair once. A head gate needs no centre: its
decay of a pair is one factor, and only the gate's gradient goes level by level. Diagonal pairs
carry no decay; they are left to the caller and out of every gate gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rewy.backends.eager.gates import halves, segment_sums


def _pairs(scores: Tensor, s: int) -> Tensor:
    """View of the level's pairs in ``[..., C, C]`` scores: ``[..., C / 2s, s, s]``, later by
    earlier.
    """
    blocks = scores.unflatten(-2, (-1, 2 * s)).unflatten(-1, (-1, 2 * s))
    return blocks.diagonal(dim1=-4, dim2=-2)[..., s:, :s, :].movedim(-1, -3)


def _pair_decays(g: Tensor) -> Tensor:
    """``exp(G_i - G_j)`` for i > j, else 0, of a head gate ``[M, HV, C, 1]``: ``[M, HV, C, C]``."""
    decays = g.new_zeros(*g.shape[:-1], g.shape[-2])
    for s, down, up in segment_sums(g):
        _pairs(decays, s).copy_((down + up.mT).exp())
    return decays


def local_scores(rows: list[Tensor], k: Tensor, g: Tensor | None) -> list[Tensor]:
    """``sum_d x_id k_jd exp(G_id - G_jd)`` for i > j, else 0, for each x in ``rows``.

    x and k are ``[M, HV, C, K]``, g is ``[M, HV, C, 1 or K]`` or None; each result is
    ``[M, HV, C, C]``.
    """
    if g is None:
        return [(x @ k.mT).tril_(-1) for x in rows]
    if g.shape[-1] == 1:
        decays = _pair_decays(g)
        return [(x @ k.mT).tril_(-1).mul_(decays) for x in rows]
    scores = [x.new_zeros(*x.shape[:-1], x.shape[-2]) for x in rows]
    for s, down, up in segment_sums(g):
        down, up = down.exp(), up.exp()
        source = halves(k, s)[0] * up
        for x, out in zip(rows, scores, strict=True):
            _pairs(out, s).copy_((halves(x, s)[1] * down) @ source.mT)
    return scores


def contraction(
    scores: list[Tensor],
    rows: list[Tensor],
    k: Tensor,
    g: Tensor | None,
    d_rows: list[Tensor],
    dk: Tensor,
) -> list[tuple[Tensor, Tensor]]:
    """The adjoint of :func:`local_scores`.

    ``scores`` are the adjoints of its results. Overwrites ``d_rows`` and ``dk`` with the adjoints
    of each x and of k as the decayed source, ``[M, HV, C, K]``. Returns for each level those of
    ``down`` and ``up`` (see :func:`rewy.backends.eager.gates.gate_reduction`), which are products
    already at hand: role times its own adjoint.
    """
    if g is None:
        for n, (d, x, dx) in enumerate(zip(scores, rows, d_rows, strict=True)):
            strict = d.tril(-1)
            torch.matmul(strict, k, out=dx)
            dk.copy_(strict.mT @ x) if n == 0 else dk.add_(strict.mT @ x)
        return []
    per_head = g.shape[-1] == 1
    if per_head:
        decays = _pair_decays(g)
        scores = [d * decays for d in scores]
    if k.shape[-2] == 1:  # no pairs, and no level that would write
        for adjoint in (*d_rows, dk):
            adjoint.zero_()
    levels = []
    for s, down, up in segment_sums(g):
        # A head gate has decayed the scores; a channel gate scales what they meet.
        down, up = (None, None) if per_head else (down.exp(), up.exp())
        k_earlier = halves(k, s)[0]
        source = k_earlier.contiguous() if per_head else k_earlier * up
        d_downs, d_sources = [], []
        for d, x, dx in zip(scores, rows, d_rows, strict=True):
            pairs, x_later = _pairs(d, s), halves(x, s)[1]
            d_later = _decay(_product(pairs, source), down)
            _put(dx, s, d_later, 1)
            d_downs.append(role(x_later, d_later, g))
            d_sources.append(_product(pairs.mT, x_later if per_head else x_later * down))
        d_earlier = _decay(_added(d_sources), up)
        _put(dk, s, d_earlier, 0)
        levels.append((_added(d_downs), role(k_earlier, d_earlier, g)))
    return levels


def _put(out: Tensor, s: int, x: Tensor, half: int) -> None:
    """Add to one of the halves, and on the first level write both."""
    halves_of_out = halves(out, s)
    if s > 1:
        halves_of_out[half].add_(x)
    else:
        halves_of_out[half].copy_(x)
        halves_of_out[1 - half].zero_()


def _product(pairs: Tensor, x: Tensor) -> Tensor:
    """``pairs @ x``; a batch of 1 by 1 matrices is no work for a matrix product."""
    return pairs * x if pairs.shape[-1] == 1 else pairs @ x


# From here on tensors nobody else holds are changed in place: on a CPU a fresh one costs more than
# the arithmetic.


def _decay(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x.mul_(factor)


def _added(terms: list[Tensor]) -> Tensor:
    first, *more = terms
    for term in more:
        first.add_(term)
    return first


def role(x: Tensor, dx: Tensor, shared: Tensor) -> Tensor:
    """Role times adjoint, ``x * dx``, in place of dx: what a factor of x is owed.

    Summed over the last axis where ``shared`` has one number for it.
    """
    dx.mul_(x)
    return dx.sum(-1, keepdim=True) if shared.shape[-1] < dx.shape[-1] else dx
