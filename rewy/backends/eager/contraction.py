"""Local scores and their adjoints: sum_d x_id k_jd exp(G_id - G_jd) for the pairs i > j of a chunk.

The channel gate sits inside the contraction, so it is made a matrix product by halving: at half
size s the later half of every block of 2s rows meets the earlier half, each scaled to the later
half's first row c, ``(x * exp(G - G_c)) (k * exp(G_c - G))^T``. Both exponents are <= 0 for every
g <= 0, and the levels s = 1, 2, ..., C/2 cover each pair once. A head gate needs no centre: its
decay of a pair is one factor of the score. Diagonal pairs carry no decay; they are left out of
every gate gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rewy.backends.eager.gates import GateSums, halves, pairs, segment_sums
from rewy.backends.eager.states import Scaled


def local_scores(
    q: Tensor | None, erase: Scaled | None, k: Tensor, g: Tensor | None, sums: GateSums | None
) -> tuple[Tensor | None, Tensor | None]:
    """``sum_d x_id k_jd exp(G_id - G_jd)``: of x = q for i >= j, of x = erase for i > j; else 0.

    q, k, and x of erase: ``[M, HV, C, K]``; g: ``[M, HV, C, 1 or K]`` or None; sums: its gate
    sums. Each result is ``[M, HV, C, C]``, and None where its rows are.
    """
    if sums is not None and sums.pairs is None:
        P, L = _by_halving([q, None if erase is None else erase.formed()], k, g)
        if P is not None:
            P.diagonal(dim1=-2, dim2=-1).copy_((q * k).sum(-1))
        return P, L
    P = None if q is None else (q @ k.mT).tril_()
    L = None if erase is None else (erase.x @ k.mT).tril_(-1)
    if sums is not None:
        for scores in (P, L):
            if scores is not None:
                scores *= sums.pairs
    if L is not None and erase.by is not None:
        L *= erase.by
    return P, L


def _by_halving(rows: list[Tensor | None], k: Tensor, g: Tensor) -> list[Tensor | None]:
    """The pairs i > j of a channel gate, for each x in ``rows`` that is not None."""
    scores = [None if x is None else k.new_zeros(*k.shape[:-1], k.shape[-2]) for x in rows]
    for s, down, up in segment_sums(g):
        down, up = down.exp(), up.exp()
        source = halves(k, s)[0] * up
        for x, out in zip(rows, scores, strict=True):
            if x is not None:
                pairs(out, s).copy_((halves(x, s)[1] * down) @ source.mT)
    return scores


def contraction(
    dP: Tensor,
    dL: Tensor,
    q: Tensor,
    erase: Scaled,
    k: Tensor,
    g: Tensor | None,
    sums: GateSums | None,
    dq: Tensor,
    d_erase: Tensor,
    dk: Tensor,
) -> list[tuple[Tensor, Tensor]]:
    """The adjoint of :func:`local_scores` without its diagonal.

    Overwrites ``dq``, ``d_erase`` and ``dk``, ``[M, HV, C, K]``, with the adjoints of q, of erase
    multiplied out, and of k as the decayed source. Of dP and dL the pairs i > j count. Returns for
    each level of a channel gate the adjoints of ``down`` and ``up`` (see
    :func:`rewy.backends.eager.gates.gate_reduction`), which are products already at hand: role
    times its own adjoint.
    """
    if sums is not None and sums.pairs is None:
        return _by_halving_back([dP, dL], [q, erase.formed()], k, g, [dq, d_erase], dk)
    dP, dL = dP.tril(-1), dL.tril(-1)
    if sums is not None:
        dP *= sums.pairs
        dL *= sums.pairs
    torch.matmul(dP, k, out=dq)
    torch.matmul(dL, k, out=d_erase)
    if erase.by is not None:
        dL *= erase.by
    torch.matmul(dP.mT, q, out=dk)
    dk += dL.mT @ erase.x
    return []


def _by_halving_back(
    scores: list[Tensor],
    rows: list[Tensor],
    k: Tensor,
    g: Tensor,
    d_rows: list[Tensor],
    dk: Tensor,
) -> list[tuple[Tensor, Tensor]]:
    """:func:`contraction` for a channel gate."""
    if k.shape[-2] == 1:  # no pairs, and no level that would write
        for adjoint in (*d_rows, dk):
            adjoint.zero_()
    levels = []
    for s, down, up in segment_sums(g):
        down, up = down.exp(), up.exp()
        k_earlier = halves(k, s)[0]
        source = k_earlier * up
        d_downs, d_sources = [], []
        for d, x, dx in zip(scores, rows, d_rows, strict=True):
            met, x_later = pairs(d, s), halves(x, s)[1]
            d_later = _product(met, source).mul_(down)
            _put(dx, s, d_later, 1)
            d_downs.append(role(x_later, d_later, g))
            d_sources.append(_product(met.mT, x_later * down))
        d_earlier = _added(d_sources).mul_(up)
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


def _product(met: Tensor, x: Tensor) -> Tensor:
    """``met @ x``; a batch of 1 by 1 matrices is no work for a matrix product."""
    return met * x if met.shape[-1] == 1 else met @ x


# From here on tensors nobody else holds are changed in place: on a CPU a fresh one costs more than
# the arithmetic.


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
