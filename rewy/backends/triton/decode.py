"""Token by token, for decoding: one program a sequence, head and tile of value channels, the state
in registers, everything in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.states import NUMBERS, _state_tile

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=NUMBERS)
def _decode(
    q, k, v, g, b, w, h0, o, ht, starts, scale, T,
    H, HV, K, V, KP: tl.constexpr,
    VP, BV: tl.constexpr, GATE: tl.constexpr, B_CHANNEL: tl.constexpr,
    W_CHANNEL: tl.constexpr, HAS_STATE, V_FIRST, FINAL, PACKED,
):  # fmt: skip
    """``S <- exp(g_t) S``, ``r = w v - (b k)^T S``, ``S <- S + k r^T``, ``o = scale S^T q``."""
    pid = tl.program_id(0)
    NV = VP // BV
    vt = pid % NV
    n, h = pid // NV // HV, pid // NV % HV
    hk = h // (HV // H)
    d, e = tl.arange(0, KP), vt * BV + tl.arange(0, BV)
    in_k, in_v = d < K, e < V
    first = n.to(tl.int64) * T
    end = first + T
    if PACKED:
        first, end = tl.load(starts + n), tl.load(starts + n + 1)
    at, inside = _state_tile(h0, n, h, HV, K, V, d, e, V_FIRST, HAS_STATE)
    state = tl.load(at, mask=inside, other=0).to(tl.float32)
    for t in range(first, end):
        row = t * HV + h
        qt = tl.load(q + (t * H + hk) * K + d, mask=in_k, other=0).to(tl.float32)
        kt = tl.load(k + (t * H + hk) * K + d, mask=in_k, other=0).to(tl.float32)
        vt_ = tl.load(v + row * V + e, mask=in_v, other=0).to(tl.float32)
        if GATE == 2:
            gt = tl.load(g + row * K + d, mask=in_k, other=0).to(tl.float32)
            state *= tl.exp2(gt * LOG2E)[:, None]
        if GATE == 1:
            state *= tl.exp2(tl.load(g + row).to(tl.float32) * LOG2E)
        if B_CHANNEL:
            bt = tl.load(b + row * K + d, mask=in_k, other=0).to(tl.float32)
        else:
            bt = tl.load(b + row).to(tl.float32)
        if W_CHANNEL:
            wt = tl.load(w + row * V + e, mask=in_v, other=0).to(tl.float32)
        else:
            wt = bt
        left = wt * vt_ - tl.sum((bt * kt)[:, None] * state, 0)
        state += kt[:, None] * left[None, :]
        ot = scale * tl.sum(qt[:, None] * state, 0)
        tl.store(o + row * V + e, ot.to(o.dtype.element_ty), mask=in_v)
    at, inside = _state_tile(ht, n, h, HV, K, V, d, e, V_FIRST, FINAL)
    tl.store(at, state, mask=inside)
