"""Local scores without a gate or with one a head: P and L, parallel over chunks.

The decay of a pair is one factor then; rewy.backends.triton.channel has the channel gates.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import (
    decay,
    dot,
    keep,
    load_rows,
    load_tokens,
    load_tokens_t,
    operand,
    place,
    tile,
)


@triton.jit(do_not_specialize=["T", "NT", "PACKED", "scale", "H", "HV", "K"])
def _scores(
    q, k, b, G, P, L, table, scale, T, NT,
    H, HV, K, C: tl.constexpr, KP, BK: tl.constexpr, GATE: tl.constexpr,
    B_CHANNEL: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr, PACKED,
):  # fmt: skip
    """P with its diagonal and L without; 0 above."""
    chunk, h, start, rows = place(tl.program_id(0), HV, table, T, NT, C, PACKED)
    hk = h // (HV // H)
    r = tl.arange(0, C)
    i, j = r[:, None], r[None, :]
    Pt = tl.zeros([C, C], dtype=tl.float32)
    Lt = tl.zeros([C, C], dtype=tl.float32)
    for first in range(0, KP, BK):
        d = first + tl.arange(0, BK)
        kT = load_tokens_t(k, start, rows, hk, H, r, d, K)
        Pt = dot(load_tokens(q, start, rows, hk, H, r, d, K), kT, Pt, OP, PREC)
        bk = load_tokens(k, start, rows, hk, H, r, d, K)
        if B_CHANNEL:
            bk = bk.to(tl.float32) * load_tokens(b, start, rows, h, HV, r, d, K).to(tl.float32)
            bk = operand(bk, OP, PREC)
        Lt = dot(bk, kT, Lt, OP, PREC)
    if GATE == 1:
        Gr = tl.load(G + chunk * C + r)
        between = decay(Gr[:, None] - Gr[None, :])
        Pt *= between
        Lt *= between
    Pt = tl.where(i >= j, Pt * scale, 0.0)
    keep(tile(P, chunk, C, C, r, r), Pt, PREC)
    if not B_CHANNEL:
        Lt *= load_rows(b, start, rows, h, HV, r)[:, None]
    tl.store(tile(L, chunk, C, C, r, r), tl.where(i > j, Lt, 0.0))
