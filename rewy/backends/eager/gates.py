"""Gate sums: how much of the state survives from one row of a chunk to another.

Every sum here adds gates g <= 0 over a stretch of rows and nothing is ever subtracted, so no sum
loses digits to cancellation, g = -inf (a reset) needs no special case, and every exponent is <= 0.
A sum over (j, i] depends on the rows j+1 .. i alone, which makes causality bitwise.

Gates are ``[M, HV, C, 1]`` (one a head) or ``[M, HV, C, K]`` (one a channel); C is a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class GateSums(NamedTuple):
    """Decay factors of a chunk against its ends and, for a head gate, between its rows, each in
    [0, 1].

    from_start: exp(G_i), from before row 0 to row i, ``[M, HV, C, 1 or K]``.
    to_end: exp(G_C - G_i), from row i to the chunk's last row, same shape.
    total: exp(G_C), over the whole chunk, ``[M, HV, 1 or K, 1]`` to multiply a state.
    pairs: exp(G_i - G_j) from row j to row i for i >= j, else 0, ``[M, HV, C, C]``; of a head gate,
        None for a channel gate.
    """

    from_start: Tensor
    to_end: Tensor
    total: Tensor
    pairs: Tensor | None


def per_head(g: Tensor | None) -> bool:
    """Whether there is a gate, and one for a head and not for each of its channels."""
    return g is not None and g.shape[-1] == 1


def halves(x: Tensor, s: int) -> tuple[Tensor, Tensor]:
    """Views of the earlier and the later half of every block of 2s rows: ``[..., C / 2s, s, D]``
    each.
    """
    blocks = x.unflatten(-2, (-1, 2, s))
    return blocks[..., 0, :, :], blocks[..., 1, :, :]


def pairs(scores: Tensor, s: int) -> Tensor:
    """View of a level's pairs in ``[..., C, C]`` scores: ``[..., C / 2s, s, s]``, later by
    earlier.
    """
    blocks = scores.unflatten(-2, (-1, 2 * s)).unflatten(-1, (-1, 2 * s))
    return blocks.diagonal(dim1=-4, dim2=-2)[..., s:, :s, :].movedim(-1, -3)


def _level(g: Tensor, s: int, inside: Tensor, ahead: Tensor) -> tuple[Tensor, ...]:
    """One step of the halving: (down, up, inside, ahead), the last two for blocks of 2s rows.

    ``inside_t`` is the sum over (first row of t's block, t], ``ahead_t`` over (t, its last row].
    """
    inside_earlier, inside_later = halves(inside, s)
    ahead_earlier, ahead_later = halves(ahead, s)
    centre = halves(g, s)[1][..., :1, :]
    up = ahead_earlier + centre
    crossed = centre + inside_earlier[..., -1:, :]
    inside = torch.cat([inside_earlier, inside_later + crossed], -2).flatten(-3, -2)
    ahead = torch.cat([up + ahead_later[..., :1, :], ahead_later], -2).flatten(-3, -2)
    return inside_later, up, inside, ahead


def segment_sums(g: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield ``(s, down, up)`` for s = 1, 2, ..., C/2: the halving of docs/method.md.

    With c the first row of a later half, ``down_i = sum of g over (c, i]`` for its rows i and
    ``up_j = sum of g over (j, c]`` for the rows j of the earlier half, ``[..., C / 2s, s, 1 or
    K]``; ``down_i + up_j = G_i - G_j``.
    """
    s, inside, ahead = 1, torch.zeros_like(g), torch.zeros_like(g)
    while s < g.shape[-2]:
        down, up, inside, ahead = _level(g, s, inside, ahead)
        yield s, down, up
        s *= 2


def gate_sums(g: Tensor | None) -> GateSums | None:
    """Decay against the chunk's start and end, a head gate's between rows, too; None where there
    is no gate.
    """
    if g is None:
        return None
    C = g.shape[-2]
    decays = None
    if per_head(g):
        decays = g.new_zeros(*g.shape[:-1], C)
        decays.diagonal(dim1=-2, dim2=-1).fill_(1)
    s, inside, ahead = 1, torch.zeros_like(g), torch.zeros_like(g)
    while s < C:
        down, up, inside, ahead = _level(g, s, inside, ahead)
        if decays is not None:
            torch.mul(down.exp(), up.exp().mT, out=pairs(decays, s))
        s *= 2
    from_start = (g[..., :1, :] + inside).exp()
    return GateSums(from_start, ahead.exp(), from_start[..., -1, :, None], decays)


def head_gate_reduction(crossed: Tensor, d_from_start: Tensor, d_to_end: Tensor) -> Tensor:
    """The gradient of gates that are one a head, ``[M, HV, C, 1]``, from products already at hand.

    ``crossed[i, j]``, for i > j: score times its adjoint, what the decay from row j to row i is
    owed; finite elsewhere, where it counts for nothing. The others as in :func:`gate_reduction`.
    dg_t collects what crosses row t, ``j < t <= i``, and only that.
    """
    C = crossed.shape[-1]
    earlier = crossed.new_ones(C, C).triu(1)  # j < t
    to_row = d_from_start + crossed @ earlier
    return (to_row.tril().sum(-2, keepdim=True) + d_to_end.mT @ earlier).mT


def gate_reduction(
    levels: list[tuple[Tensor, Tensor]], d_from_start: Tensor, d_to_end: Tensor
) -> Tensor:
    """A channel gate's gradient, the adjoint of :func:`segment_sums` and :func:`gate_sums`.

    ``levels[n]`` holds the adjoints of ``down`` and ``up`` at s = 2**n, ``d_from_start`` and
    ``d_to_end`` those of the two sums over the chunk. dg_t collects every product whose decay
    crosses row t, and only those: a plain reverse cumulative sum of (positive role - negative role)
    adds every product twice with opposite signs and leaves rounding noise where the gate is
    saturated.
    """
    inside, ahead = d_from_start.clone(), d_to_end.clone()
    dg = torch.zeros_like(inside)
    dg[..., 0, :] += d_from_start.sum(-2)
    for n, (down, up) in reversed(list(enumerate(levels))):
        s = 1 << n
        inside_earlier, inside_later = halves(inside, s)
        ahead_earlier, ahead_later = halves(ahead, s)
        centre = halves(dg, s)[1][..., 0, :]
        crossed = inside_later.sum(-2)
        inside_earlier[..., -1, :] += crossed
        centre += crossed
        crossed = ahead_earlier.sum(-2)
        ahead_later[..., 0, :] += crossed
        centre += crossed + up.sum(-2)
        inside_later += down
        ahead_earlier += up
    return dg
