"""Output: ``O = scale (Q * exp G) S_0 + P U``, parallel over chunks and tiles of value channels."""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import (
    add_dot,
    decay,
    dot,
    load_tokens,
    operand,
    place,
    store_tokens,
    tile,
)


@triton.jit(do_not_specialize=["T", "NT", "PACKED", "scale", "H", "HV", "K", "V"])
def _output(
    q, G, P, S, U, o, table, scale, T, NT,
    H, HV, K, V, C: tl.constexpr,
    KP, VP, BK: tl.constexpr, BV: tl.constexpr, GATE: tl.constexpr,
    OP: tl.constexpr, PREC: tl.constexpr, PACKED,
):  # fmt: skip
    """o for a chunk, head and tile of BV value channels."""
    pid = tl.program_id(0)
    NV = VP // BV
    vt, pid = pid % NV, pid // NV
    chunk, h, start, rows = place(pid, HV, table, T, NT, C, PACKED)
    r, e = tl.arange(0, C), vt * BV + tl.arange(0, BV)
    acc = tl.zeros([C, BV], dtype=tl.float32)
    for kt in range(0, KP, BK):
        d = kt + tl.arange(0, BK)
        qt = load_tokens(q, start, rows, h // (HV // H), H, r, d, K)
        if GATE == 2:
            qt = qt.to(tl.float32) * decay(tl.load(tile(G, chunk, C, KP, r, d)))
        St = tl.load(tile(S, chunk, KP, VP, d, e))
        acc = dot(operand(qt, OP, PREC), operand(St, OP, PREC), acc, OP, PREC)
    if GATE == 1:
        acc *= (scale * decay(tl.load(G + chunk * C + r)))[:, None]
    else:
        acc *= scale
    Ut = tl.load(tile(U, chunk, C, VP, r, e))
    acc = add_dot(acc, tl.load(tile(P, chunk, C, C, r, r)), Ut, OP, PREC)
    store_tokens(o, start, rows, h, HV, r, e, V, acc)
