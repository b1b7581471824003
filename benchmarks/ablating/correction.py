"""The correction's adjoint, seven products against three: docs/method.md, "Backward".

From dU ``[M, C, V]``, A = (I + L)^-1, the residual system's U = A (R - K_b S_0) with R = b * v, and
K_b, S_0 ``[M, K, V]``, both sides make the adjoints dR ``[M, C, V]``, dL ``[M, C, C]``, strictly
lower, and dK_b ``[M, C, K]``.
One program a chunk and head has all value channels and goes over tiles of key channels.

A transposed accumulator as an operand is what Triton compiles wrongly on Hopper. Neither side needs
one: A is loaded transposed, and the other factors are loaded or enter as they are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from measuring.shapes import Inputs

from ablating.comparison import Comparison, Count, Side, Tensors, Tile, chunked
from rewy.backends.triton.common import dot, tile, tile_t


@triton.jit
def _seven_products(
    dU, A, v, b, K_b, S, dR, dL, dK_b,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr,
    OP: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """``dW = -dU S_0^T``, ``dA = dU R^T + dW K_b^T``, ``dR = A^T dU``, ``dK_b = A^T dW``, ``dL =
    -tril_-1(A^T dA A^T)``. dW and dA are carried with the other sign.
    """
    chunk = tl.program_id(0).to(tl.int64)
    r, e = tl.arange(0, C), tl.arange(0, V)
    AT = tl.load(tile_t(A, chunk, C, C, r, r))
    dUt = tl.load(tile(dU, chunk, C, V, r, e))
    dRt = dot(AT, dUt, tl.zeros([C, V], dtype=tl.float32), OP, PREC)
    tl.store(tile(dR, chunk, C, V, r, e), dRt.to(dR.dtype.element_ty))
    zero = tl.zeros([C, C], dtype=tl.float32)
    # b is a factor of R's rows, so of the product's columns, which are fewer.
    by_row = tl.load(b + chunk * C + r).to(tl.float32)
    dA = dot(dUt, tl.load(tile_t(v, chunk, C, V, r, e)), zero, OP, PREC) * -by_row[None, :]
    empty = tl.zeros([C, BK], dtype=tl.float32)
    for kt in range(0, K, BK):
        d = kt + tl.arange(0, BK)
        dW = dot(dUt, tl.load(tile_t(S, chunk, K, V, d, e)), empty, OP, PREC).to(OP)
        dA = dot(dW, tl.load(tile_t(K_b, chunk, C, K, r, d)), dA, OP, PREC)
        dKt = -1.0 * dot(AT, dW, empty, OP, PREC)
        tl.store(tile(dK_b, chunk, C, K, r, d), dKt.to(dK_b.dtype.element_ty))
    dLt = dot(AT, dot(dA, AT, zero, OP, PREC), zero, OP, PREC)
    dLt = tl.where(r[:, None] > r[None, :], dLt, 0.0)
    tl.store(tile(dL, chunk, C, C, r, r), dLt.to(dL.dtype.element_ty))


@triton.jit
def _three_products(
    dU, A, U, S, dR, dL, dK_b,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr,
    OP: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """``Y = A^T dU``, which is dR, ``dL = -tril_-1(Y U^T)``, ``dK_b = -Y S_0^T``."""
    chunk = tl.program_id(0).to(tl.int64)
    r, e = tl.arange(0, C), tl.arange(0, V)
    AT = tl.load(tile_t(A, chunk, C, C, r, r))
    dUt = tl.load(tile(dU, chunk, C, V, r, e))
    Y = dot(AT, dUt, tl.zeros([C, V], dtype=tl.float32), OP, PREC).to(OP)
    tl.store(tile(dR, chunk, C, V, r, e), Y.to(dR.dtype.element_ty))
    zero = tl.zeros([C, C], dtype=tl.float32)
    dLt = dot(Y, tl.load(tile_t(U, chunk, C, V, r, e)), zero, OP, PREC)
    dLt = tl.where(r[:, None] > r[None, :], -dLt, 0.0)
    tl.store(tile(dL, chunk, C, C, r, r), dLt.to(dL.dtype.element_ty))
    empty = tl.zeros([C, BK], dtype=tl.float32)
    for kt in range(0, K, BK):
        d = kt + tl.arange(0, BK)
        dKt = -1.0 * dot(Y, tl.load(tile_t(S, chunk, K, V, d, e)), empty, OP, PREC)
        tl.store(tile(dK_b, chunk, C, K, r, d), dKt.to(dK_b.dtype.element_ty))


def make(inputs: Inputs, dtype: torch.dtype) -> Tensors:
    """Gated DeltaNet's keys, values, strengths and gates, with random states.

    U belongs to the other tensors as they are rounded to ``dtype``, so that both sides have one
    truth up to U's own rounding.
    """
    t = inputs.problem.tensors
    k, v, b, g, dU = (chunked(x).double() for x in (t.k, t.v, t.b, t.g, inputs.do))
    G = g.cumsum(1)
    generator = torch.Generator(k.device).manual_seed(1)
    size = len(k), k.shape[-1], v.shape[-1]
    S = torch.randn(size, device=k.device, generator=generator)
    decays = (G - G.mT).clamp(max=0).exp()  # above the diagonal they are not used
    one = torch.eye(k.shape[1], dtype=k.dtype, device=k.device)
    L = (b * (k @ k.mT) * decays).tril(-1)
    A = torch.linalg.solve_triangular(one + L, one.expand_as(L), upper=False, unitriangular=True)
    x = {"dU": dU, "A": A, "v": v, "b": b, "K_b": b * k * G.exp(), "S": S}
    x = {name: y.to(dtype).contiguous() for name, y in x.items()}
    A, v, b, K_b, S = (x[name].double() for name in ("A", "v", "b", "K_b", "S"))
    return {**x, "U": (A @ (b * v - K_b @ S)).to(dtype)}


def truth(x: Tensors) -> Tensors:
    """Factor by factor, all seven products in float64."""
    dU, A, v, b, K_b, S = (x[name].double() for name in ("dU", "A", "v", "b", "K_b", "S"))
    dW = -dU @ S.mT
    dA = dU @ (b * v).mT + dW @ K_b.mT
    return {"dR": A.mT @ dU, "dL": -(A.mT @ dA @ A.mT).tril(-1), "dK_b": A.mT @ dW}


def seven(C: int, size: int) -> Count:
    """C V K, C C V, C C K, C C V, C C K and two of C C C multiplications and additions."""
    return Count(2 * (C * size * size + 4 * C * C * size + 2 * C * C * C))


def three(C: int, size: int) -> Count:
    """C C V, C C V and C V K."""
    return Count(2 * (C * size * size + 2 * C * C * size))


TILES = (
    *(Tile(BK, warps, stages) for BK in (32, 64) for warps in (4, 8) for stages in (2, 3)),
    *(Tile(128, warps, 2) for warps in (4, 8)),  # one tile has nothing to load ahead
)

CORRECTION = Comparison(
    name="correction",
    operator="gated_delta_rule",
    make=make,
    truth=truth,
    results={"dR": "v", "dL": "A", "dK_b": "K_b"},
    naive=Side("seven products", _seven_products, TILES, seven),
    ours=Side("three products", _three_products, TILES, three),
)
