"""Decays per channel: what the scores and their adjoint, the contraction, share.

A decay from row j to row i is ``exp2(G_i - G_j)`` per channel. Splitting the exponent at a row c
between them, ``(G_i - G_c) + (G_c - G_j)``, makes it a factor of each side, and neither exceeds 1.
A program takes ROWS rows: against earlier rows c is its own first row, towards later ones theirs,
and among its own the halving of docs/method.md goes on: at level s those of a later half of 2s rows
meet those of the earlier half, with the later half's first row as the centre.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import load_tokens, tile


def rows_a_program(C: int) -> int:
    """ROWS for chunks of C. On an H200 the contraction takes a tenth longer with 16, a third longer
    with all 64 rows as one tile, where four and more warps wait for each other at every level.
    """
    return min(C, 32)


@triton.jit
def centre(G, chunk, row, d, C: tl.constexpr, KP):
    """The sums of one row, ``[1, BK]``."""
    return tl.load(G + chunk * (C * KP) + row * KP + d)[None, :]


@triton.jit
def between(Gt, row):
    """Decays between rows and one that all of them are before, or all after."""
    return tl.exp2(-1.0 * tl.abs(Gt - row).to(tl.float32))  # a minus takes one step more: 0 - |x|


@triton.jit
def halves(G, chunk, Gt, r, d, s, C: tl.constexpr, KP):
    """Factors ``[ROWS, BK]``: decays between each row and the middle of its block of 2s rows."""
    c = (r | s) & -s
    return between(Gt, tl.load(tile(G, chunk, C, KP, c, d)))


@triton.jit
def meet(i, s):
    """``[ROWS, ROWS]``: which pairs of rows meet at level s: share 2s rows but no half."""
    apart = i[:, None] ^ i[None, :]
    return (apart >= s) & (apart < 2 * s)


@triton.jit
def erase_keys(b, kt, start, rows, h, HV, r, d, K, B_CHANNEL: tl.constexpr):
    """``b * k`` where b is per channel; a head's b is a factor of the whole row, left for later."""
    if B_CHANNEL:
        kt = kt * load_tokens(b, start, rows, h, HV, r, d, K).to(tl.float32)
    return kt
