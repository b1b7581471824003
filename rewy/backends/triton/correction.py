"""Correction beside channel gates: the adjoint of ``(I + L) U = w * V - K_b S_0`` as one system.

Of its three local products ``Y = A^T dU`` is formed in the reverse pass and ``dK_b = -Y S_0^T``
where the keys' gradients are; here is ``dL = -tril_-1(Y U^T)``, beside dP, which has U as its other
factor, too, and what follows from Y alone: ``dv = w * Y``, ``dw = v * Y``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import (
    dot,
    keep,
    load_rows,
    load_tokens,
    place,
    store_tokens,
    tile,
    tile_t,
)


@triton.jit
def residuals(do, Y, U, chunk, start, rows, h, HV, V, r, e, C: tl.constexpr, VP):
    """dO, Y and U of a tile of value channels, ``[C, BV]`` each."""
    dO = load_tokens(do, start, rows, h, HV, r, e, V)
    return dO, tl.load(tile(Y, chunk, C, VP, r, e)), tl.load(tile(U, chunk, C, VP, r, e))


@triton.jit
def write_gradients(
    v, b, w, dv, dw, Yt, start, rows, h, HV, V, r, e, W_CHANNEL: tl.constexpr
):  # fmt: skip
    """``dv = w * Y`` and ``dw = v * Y`` of a tile, the latter summed over it, ``[C]``, and returned
    where w is a number a head; else stored.
    """
    Y32 = Yt.to(tl.float32)
    v32 = load_tokens(v, start, rows, h, HV, r, e, V).to(tl.float32)
    if W_CHANNEL:
        wt = load_tokens(w, start, rows, h, HV, r, e, V).to(tl.float32)
        store_tokens(dw, start, rows, h, HV, r, e, V, v32 * Y32)
        written = tl.zeros_like(tl.sum(Y32, 1))
    else:
        wt = load_rows(b, start, rows, h, HV, r)[:, None]
        written = tl.sum(v32 * Y32, 1)
    store_tokens(dv, start, rows, h, HV, r, e, V, wt * Y32)
    return written


@triton.jit(do_not_specialize=["T", "NT", "PACKED", "scale", "HV", "V"])
def _correction(
    v, b, w, do, U, Y, dP, dL, on_diagonal, dv, dw, db_write, table, scale, T, NT,
    HV, V, C: tl.constexpr, VP, BV: tl.constexpr,
    W_CHANNEL: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr, PACKED,
):  # fmt: skip
    """dP and dL below the diagonal, dP's diagonal, dv and dw."""
    chunk, h, start, rows = place(tl.program_id(0), HV, table, T, NT, C, PACKED)
    r = tl.arange(0, C)
    dPt = tl.zeros([C, C], dtype=tl.float32)
    dLt = tl.zeros([C, C], dtype=tl.float32)
    own = tl.zeros([C], dtype=tl.float32)
    written = tl.zeros([C], dtype=tl.float32)
    for vt in tl.range(0, VP, BV, num_stages=1):  # nothing ahead of time: see gradients.py
        e = vt + tl.arange(0, BV)
        dO, Yt, Ut = residuals(do, Y, U, chunk, start, rows, h, HV, V, r, e, C, VP)
        UT = tl.load(tile_t(U, chunk, C, VP, r, e))
        dPt = dot(dO, UT, dPt, OP, PREC)
        dLt = dot(Yt, UT, dLt, OP, PREC)
        own += tl.sum(dO.to(tl.float32) * Ut.to(tl.float32), 1)
        written += write_gradients(
            v, b, w, dv, dw, Yt, start, rows, h, HV, V, r, e, W_CHANNEL
        )  # fmt: skip
    strict = r[:, None] > r[None, :]
    dPt = tl.where(strict, dPt * scale, 0.0)
    dLt = tl.where(strict, -dLt, 0.0)
    keep(tile(dP, chunk, C, C, r, r), dPt, PREC)
    keep(tile(dL, chunk, C, C, r, r), dLt, PREC)
    tl.store(on_diagonal + chunk * C + r, own * scale)
    if not W_CHANNEL:
        tl.store(db_write + chunk * C + r, written)
