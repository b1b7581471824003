"""The contraction with a decay per channel, pair by pair against centred products.

From q, k ``[M, C, K]``, the erase strength b ``[M, C]``, the gates' inclusive sums G ``[M, C, K]``
as exponents of 2, and the scores' adjoints dP, dL ``[M, C, C]``, strictly lower, both sides make

    Dq_i  = sum_{j<i} dP_ij k_j E_ij,    Dbk_i = sum_{j<i} dL_ij k_j E_ij,
    Dk_j  = sum_{i>j} (dP_ij q_i + dL_ij b_i k_i) E_ij,    E_ij = 2^(G_i - G_j) per channel.

One program has 32 rows of a chunk and head and a tile of key channels, and collects what these rows
receive; no exponent is above 0 on either side.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from ablating.comparison import Comparison, Count, Side, Tensors, Tile, around_scores
from rewy.backends.triton.channel import between, centre, halves, meet
from rewy.backends.triton.channel_gradients import _meet
from rewy.backends.triton.common import tile, tile_t

ROWS = 32  # what rewy's contraction takes, see rewy.backends.triton.channel.rows_a_program


@triton.jit
def _part(C: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr):
    """A program's chunk, block of rows, and channels."""
    pid = tl.program_id(0)
    part, pid = pid % (K // BK), pid // (K // BK)
    return (pid // (C // ROWS)).to(tl.int64), pid % (C // ROWS), part * BK + tl.arange(0, BK)


@triton.jit
def _write(Dq, Dbk, Dk, chunk, r, d, by_q, by_b, by_k, C: tl.constexpr, K: tl.constexpr):
    """The three results of a program."""
    tl.store(tile(Dq, chunk, C, K, r, d), by_q.to(Dq.dtype.element_ty))
    tl.store(tile(Dbk, chunk, C, K, r, d), by_b.to(Dbk.dtype.element_ty))
    tl.store(tile(Dk, chunk, C, K, r, d), by_k.to(Dk.dtype.element_ty))


@triton.jit
def _as_query(k, dP, dL, decays, chunk, r, d, j, by_q, by_b, C: tl.constexpr, K: tl.constexpr):
    """Add what rows receive from the earlier row j; 0 from others, where dP and dL are."""
    x = centre(k, chunk, j, d, C, K).to(tl.float32) * decays
    by_q += tl.load(dP + chunk * (C * C) + r * C + j).to(tl.float32)[:, None] * x
    by_b += tl.load(dL + chunk * (C * C) + r * C + j).to(tl.float32)[:, None] * x
    return by_q, by_b


@triton.jit
def _as_key(q, k, b, dP, dL, decays, chunk, r, d, j, by_k, C: tl.constexpr, K: tl.constexpr):
    """Add what rows receive from the later row j; 0 from others."""
    own_q = centre(q, chunk, j, d, C, K).to(tl.float32)
    own_k = centre(k, chunk, j, d, C, K).to(tl.float32)
    own_k *= tl.load(b + chunk * C + j).to(tl.float32)
    x = tl.load(dP + chunk * (C * C) + j * C + r).to(tl.float32)[:, None] * own_q
    x += tl.load(dL + chunk * (C * C) + j * C + r).to(tl.float32)[:, None] * own_k
    return by_k + x * decays


@triton.jit
def _pairwise(
    q, k, b, G, dP, dL, Dq, Dbk, Dk,
    C: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Each pair's decay is formed where it is wanted: one row after the other meets all of the
    program's, in the one role that it can have, and in both among the program's own.
    """
    chunk, block, d = _part(C, K, ROWS, BK)
    first = block * ROWS
    r = first + tl.arange(0, ROWS)
    Gt = tl.load(tile(G, chunk, C, K, r, d))
    zero = tl.zeros([ROWS, BK], dtype=tl.float32)
    by_q, by_b, by_k = zero, zero, zero
    for j in tl.range(0, first, loop_unroll_factor=UNROLL):
        decays = between(Gt, centre(G, chunk, j, d, C, K))
        by_q, by_b = _as_query(k, dP, dL, decays, chunk, r, d, j, by_q, by_b, C, K)
    for j in tl.range(first, first + ROWS, loop_unroll_factor=UNROLL):
        decays = between(Gt, centre(G, chunk, j, d, C, K))
        by_q, by_b = _as_query(k, dP, dL, decays, chunk, r, d, j, by_q, by_b, C, K)
        by_k = _as_key(q, k, b, dP, dL, decays, chunk, r, d, j, by_k, C, K)
    for j in tl.range(first + ROWS, C, loop_unroll_factor=UNROLL):
        decays = between(Gt, centre(G, chunk, j, d, C, K))
        by_k = _as_key(q, k, b, dP, dL, decays, chunk, r, d, j, by_k, C, K)
    _write(Dq, Dbk, Dk, chunk, r, d, by_q, by_b, by_k, C, K)


@triton.jit
def _centred(
    q, k, b, G, dP, dL, Dq, Dbk, Dk,
    C: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr,
    OP: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The part of rewy.backends.triton.channel_gradients that is between rows: a chunk's two halves
    meet at its middle row, then each half's rows among themselves by halving.
    """
    chunk, block, d = _part(C, K, ROWS, BK)
    i = tl.arange(0, ROWS)
    r, c = block * ROWS + i, (1 - block) * ROWS + i
    zero = tl.zeros([ROWS, BK], dtype=tl.float32)
    by_q, by_b, by_k = zero, zero, zero
    Gt = tl.load(tile(G, chunk, C, K, r, d))
    qt = tl.load(tile(q, chunk, C, K, r, d)).to(tl.float32)
    kt = tl.load(tile(k, chunk, C, K, r, d)).to(tl.float32)
    bt = tl.load(b + chunk * C + r).to(tl.float32)[:, None]
    # with the rows of the other half
    middle = centre(G, chunk, ROWS, d, C, K)
    theirs = between(tl.load(tile(G, chunk, C, K, c, d)), middle)
    their_x = tl.load(tile(k, chunk, C, K, c, d)).to(tl.float32) * theirs
    their_y = their_x
    if block == 0:
        their_y *= tl.load(b + chunk * C + c).to(tl.float32)[:, None]
        their_x = tl.load(tile(q, chunk, C, K, c, d)).to(tl.float32) * theirs
        dP_other = tl.load(tile_t(dP, chunk, C, C, c, r))
        dL_other = tl.load(tile_t(dL, chunk, C, C, c, r))
    else:
        dP_other = tl.load(tile(dP, chunk, C, C, r, c))
        dL_other = tl.load(tile(dL, chunk, C, C, r, c))
    # What the gates are owed, _meet's fourth result, is not asked for, and is not compiled.
    by_q, by_b, by_k, _ = _meet(
        dP_other, dL_other, their_x, their_y, kt, kt, between(Gt, middle), block.to(tl.float32),
        by_q, by_b, by_k, zero, OP, PREC,
    )  # fmt: skip
    # among themselves; strictly lower, so that the sum is the symmetric one
    dPt = tl.load(tile(dP, chunk, C, C, r, r)) + tl.load(tile_t(dP, chunk, C, C, r, r))
    dLt = tl.load(tile(dL, chunk, C, C, r, r)) + tl.load(tile_t(dL, chunk, C, C, r, r))
    for level in range(4 + ROWS // 32):
        half = ROWS // 2 >> level
        down = halves(G, chunk, Gt, r, d, half, C, K)
        late, pairs = ((i & half) != 0)[:, None], meet(i, half)
        x = (tl.where(late, qt, kt) * down).to(OP)
        y = (tl.where(late, bt, 1.0) * kt * down).to(OP)
        by_q, by_b, by_k, _ = _meet(
            tl.where(pairs, dPt, 0.0), tl.where(pairs, dLt, 0.0), x, y, x, y, down,
            late.to(tl.float32), by_q, by_b, by_k, zero, OP, PREC,
        )  # fmt: skip
    _write(Dq, Dbk, Dk, chunk, r, d, by_q, by_b, by_k, C, K)


def truth(x: Tensors) -> Tensors:
    """Pair by pair in float64, ``[M, C, C, K]`` at once."""
    q, k, b, G, dP, dL = (x[name].double() for name in ("q", "k", "b", "G", "dP", "dL"))
    E = (G[:, :, None] - G[:, None]).clamp(max=0).exp2()
    return {
        "Dq": torch.einsum("mij,mjd,mijd->mid", dP, k, E),
        "Dbk": torch.einsum("mij,mjd,mijd->mid", dL, k, E),
        "Dk": torch.einsum("mij,mid,mijd->mjd", dP, q, E)
        + torch.einsum("mij,mid,mijd->mjd", dL, b * k, E),
    }


def pairwise(C: int, size: int) -> Count:
    """A pair and channel: in each role a difference and a decay; three with a factor each for the
    earlier row's key; two and one for what that key receives.
    """
    n = C * (C - 1) // 2 * size
    return Count(0, pairs=12 * n, decays=2 * n)


def centred(C: int, size: int) -> Count:
    """Two products where the halves meet and at each level, by programs of 32 rows; a factor for
    each row, its own and the other half's, in each.
    """
    levels = int(math.log2(ROWS))
    products = 2 * (1 + levels) * C * ROWS * size
    return Count(2 * products, decays=(2 + levels) * C * size)


TILES = tuple(
    Tile(BK, warps, 2)  # as many warps as leave a thread registers for its rows and channels
    for BK, some in {16: (1, 2, 4), 32: (2, 4), 64: (4, 8), 128: (8,)}.items()
    for warps in some
)

CONTRACTION = Comparison(
    name="contraction",
    operator="kda",
    make=around_scores,
    truth=truth,
    results={"Dq": "q", "Dbk": "k", "Dk": "k"},
    naive=Side(
        "pairwise",
        _pairwise,
        tuple(tile._replace(UNROLL=n) for tile in TILES for n in (1, 4)),
        pairwise,
    ),
    ours=Side("centred", _centred, TILES, centred),
    rows=ROWS,
    tiled=True,
)
