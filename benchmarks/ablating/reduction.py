"""The gate reduction with a gate per head: a Gram matrix against products already at hand.

From q, k ``[M, C, K]``, the erase strength b ``[M, C]``, the gate's inclusive sums G ``[M, C]`` as
exponents of 2, and dP, dL ``[M, C, C]``, strictly lower, the adjoints of

    P_ij = (q_i . k_j) E_ij,    L_ij = b_i (k_i . k_j) E_ij,    E_ij = 2^(G_i - G_j),

both sides make what the rows of a chunk owe each other: the adjoints of the scores without decay,
``dP * E`` and ``dL * E``, times keys, queries and erase keys, ``Dq``, ``Dbk`` and ``Dk`` ``[M, C,
K]``, and the adjoint of the natural gate sums, ``dG`` ``[M, C]``:

    dG_i = sum_j M_ij - sum_j M_ji,    M = dP * P + dL * L
         = sum_d (q Dq + b k Dbk - k Dk)_id

One program a chunk and head goes over tiles of key channels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ablating.comparison import Comparison, Count, Side, Tensors, Tile, around_scores
from rewy.backends.triton.common import decay, dot, tile, tile_t


@triton.jit
def _without_decay(dP, dL, G, chunk, r, C: tl.constexpr, OP: tl.constexpr):
    """``dP * E`` and ``dL * E``, and both transposed, ``[C, C]`` each.

    Transposed they are loaded a second time: an operand that was transposed where it lay is what
    Triton compiles wrongly on Hopper.
    """
    Gr = tl.load(G + chunk * C + r)
    down, back = decay(Gr[:, None] - Gr[None, :]), decay(Gr[None, :] - Gr[:, None])
    by_P = (tl.load(tile(dP, chunk, C, C, r, r)).to(tl.float32) * down).to(OP)
    by_L = (tl.load(tile(dL, chunk, C, C, r, r)).to(tl.float32) * down).to(OP)
    by_PT = (tl.load(tile_t(dP, chunk, C, C, r, r)).to(tl.float32) * back).to(OP)
    by_LT = (tl.load(tile_t(dL, chunk, C, C, r, r)).to(tl.float32) * back).to(OP)
    return by_P, by_L, by_PT, by_LT


@triton.jit
def _contract(
    by_P, by_L, by_PT, by_LT, qt, kt, bk, Dq, Dbk, Dk, chunk, r, d, C: tl.constexpr,
    K: tl.constexpr, BK: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The four products of a tile of key channels, ``[C, BK]``, written and returned."""
    zero = tl.zeros([C, BK], dtype=tl.float32)
    x = dot(by_P, kt, zero, OP, PREC)
    y = dot(by_L, kt, zero, OP, PREC)
    z = dot(by_LT, bk, dot(by_PT, qt, zero, OP, PREC), OP, PREC)
    tl.store(tile(Dq, chunk, C, K, r, d), x.to(Dq.dtype.element_ty))
    tl.store(tile(Dbk, chunk, C, K, r, d), y.to(Dbk.dtype.element_ty))
    tl.store(tile(Dk, chunk, C, K, r, d), z.to(Dk.dtype.element_ty))
    return x, y, z


@triton.jit
def _gram(
    q, k, b, G, dP, dL, Dq, Dbk, Dk, dG,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The scores are multiplied out anew: two products more, and two ``[C, C]`` sums."""
    chunk = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, C)
    by_P, by_L, by_PT, by_LT = _without_decay(dP, dL, G, chunk, r, C, OP)
    bt = tl.load(b + chunk * C + r).to(tl.float32)[:, None]
    P, L = tl.zeros([C, C], dtype=tl.float32), tl.zeros([C, C], dtype=tl.float32)
    for first in range(0, K, BK):
        d = first + tl.arange(0, BK)
        qt = tl.load(tile(q, chunk, C, K, r, d))
        kt = tl.load(tile(k, chunk, C, K, r, d))
        bk = (bt * kt.to(tl.float32)).to(OP)
        P = dot(qt, tl.trans(kt), P, OP, PREC)
        L = dot(bk, tl.trans(kt), L, OP, PREC)
        _contract(
            by_P, by_L, by_PT, by_LT, qt, kt, bk, Dq, Dbk, Dk, chunk, r, d, C, K, BK, OP, PREC
        )  # fmt: skip
    M = by_P.to(tl.float32) * P + by_L.to(tl.float32) * L
    tl.store(dG + chunk * C + r, tl.sum(M, 1) - tl.sum(M, 0))


@triton.jit
def _reuse(
    q, k, b, G, dP, dL, Dq, Dbk, Dk, dG,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Role times adjoint, as in rewy.backends.triton.gradients."""
    chunk = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, C)
    by_P, by_L, by_PT, by_LT = _without_decay(dP, dL, G, chunk, r, C, OP)
    bt = tl.load(b + chunk * C + r).to(tl.float32)[:, None]
    owed = tl.zeros([C], dtype=tl.float32)
    for first in range(0, K, BK):
        d = first + tl.arange(0, BK)
        qt = tl.load(tile(q, chunk, C, K, r, d))
        kt = tl.load(tile(k, chunk, C, K, r, d))
        bk = (bt * kt.to(tl.float32)).to(OP)  # as the products see it: pairs that cancel must
        x, y, z = _contract(
            by_P, by_L, by_PT, by_LT, qt, kt, bk, Dq, Dbk, Dk, chunk, r, d, C, K, BK, OP, PREC
        )  # fmt: skip
        owed += tl.sum(
            qt.to(tl.float32) * x + bk.to(tl.float32) * y - kt.to(tl.float32) * z, 1
        )  # fmt: skip
    tl.store(dG + chunk * C + r, owed)


def truth(x: Tensors) -> Tensors:
    """By the Gram matrix in float64."""
    q, k, b, G, dP, dL = (x[name].double() for name in ("q", "k", "b", "G", "dP", "dL"))
    E = (G - G.mT).clamp(max=0).exp2()
    M = (dP * (q @ k.mT) + dL * (b * k @ k.mT)) * E
    dP, dL = dP * E, dL * E
    return {
        "Dq": dP @ k,
        "Dbk": dL @ k,
        "Dk": dP.mT @ q + dL.mT @ (b * k),
        "dG": (M.sum(2) - M.sum(1))[..., None],
    }


def gram(C: int, size: int) -> Count:
    """Four products for the gradients and two for the scores."""
    return Count(2 * 6 * C * C * size, decays=2 * C * C)


def reuse(C: int, size: int) -> Count:
    """Four products."""
    return Count(2 * 4 * C * C * size, decays=2 * C * C)


TILES = (
    *(Tile(BK, warps, stages) for BK in (32, 64) for warps in (4, 8) for stages in (2, 3)),
    Tile(128, 8, 2),  # one tile has nothing to load ahead, and four warps no registers for it
)

REDUCTION = Comparison(
    name="reduction",
    operator="gated_delta_rule",
    make=around_scores,
    truth=truth,
    results={"Dq": "q", "Dbk": "k", "Dk": "k", "dG": "G"},
    naive=Side("Gram", _gram, TILES, gram),
    ours=Side("reuse", _reuse, TILES, reuse),
)
