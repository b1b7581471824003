"""Contraction: the gradients of q, k, the erase gate and the decay, one program a chunk, head and
tile of key channels.

dP and dL meet the keys and queries again; where a channel gate stands between them, that was done
in rewy.backends.triton.channel. The gate's adjoint is role times adjoint, products already at hand:
no Gram matrix. Pairs i = j carry no decay and are left out of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import (
    decay,
    dot,
    forgets,
    load_rows,
    load_tokens,
    place,
    store_tokens,
    tile,
    tile_t,
)


@triton.jit(do_not_specialize=["T", "NT", "scale", "parts_stride", "D_stride"])
def _contraction(
    q, k, b, do, G, U, Y, S, dS, dP, dL, D_local, on_diagonal, dq, dk, dg, db, dG_head, db_erase,
    table, scale, T, NT, parts_stride, D_stride,
    H, HV, K, V, C: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, GATE: tl.constexpr,
    B_CHANNEL: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    NK: tl.constexpr = KP // BK
    part, pid = (pid % NK).to(tl.int64), pid // NK
    chunk, h, start, rows = place(pid, HV, table, T, NT, C, PACKED)
    hk = h // (HV // H)
    r, d = tl.arange(0, C), part * BK + tl.arange(0, BK)

    # What comes through the states.
    Dq = tl.zeros([C, BK], dtype=tl.float32)
    Dbk = tl.zeros([C, BK], dtype=tl.float32)
    Dkt = tl.zeros([C, BK], dtype=tl.float32)
    kept = tl.zeros([BK], dtype=tl.float32)
    for vt in range(0, VP, BV):
        e = vt + tl.arange(0, BV)
        ST = tl.load(tile_t(S, chunk, KP, VP, d, e))
        dST = tl.load(tile_t(dS, chunk, KP, VP, d, e))
        Dq = dot(load_tokens(do, start, rows, h, HV, r, e, V), ST, Dq, OP, PREC)
        Dbk = dot(tl.load(tile(Y, chunk, C, VP, r, e)), ST, Dbk, OP, PREC)
        Dkt = dot(tl.load(tile(U, chunk, C, VP, r, e)), dST, Dkt, OP, PREC)
        if GATE > 0:
            kept += tl.sum(ST.to(tl.float32) * dST.to(tl.float32), 0)
    Dq *= scale
    Dbk = -Dbk

    qt = load_tokens(q, start, rows, hk, H, r, d, K).to(tl.float32)
    kt = load_tokens(k, start, rows, hk, H, r, d, K).to(tl.float32)
    if B_CHANNEL:
        bt = load_tokens(b, start, rows, h, HV, r, d, K).to(tl.float32)
    else:
        bt = load_rows(b, start, rows, h, HV, r)[:, None]
    bk = bt * kt
    if GATE == 1:
        Gt = tl.load(G + chunk * C + r)
        last = tl.load(G + chunk * C + C - 1)
        Dq *= decay(Gt)[:, None]
        Dbk *= decay(Gt)[:, None]
        Dkt *= decay(last - Gt)[:, None]
        kept *= decay(last)
    if GATE == 2:
        Gt = tl.load(tile(G, chunk, C, KP, r, d))
        last = tl.load(G + chunk * (C * KP) + (C - 1) * KP + d)
        Dq *= decay(Gt)
        Dbk *= decay(Gt)
        Dkt *= decay(last[None, :] - Gt)
        kept *= decay(last)

    # What stays within the chunk.
    if GATE == 2:
        at = tile(D_local, chunk, C, KP, r, d)
        Dq += tl.load(at)
        Dbk += tl.load(at + D_stride)
        Dk = tl.load(at + D_stride + D_stride)  # not 2 *, which may pass 2**31
    else:
        dPt, dPT = tl.load(tile(dP, chunk, C, C, r, r)), tl.load(tile_t(dP, chunk, C, C, r, r))
        dLt, dLT = tl.load(tile(dL, chunk, C, C, r, r)), tl.load(tile_t(dL, chunk, C, C, r, r))
        Dq = dot(dPt, kt, Dq, OP, PREC)
        Dbk = dot(dLt, kt, Dbk, OP, PREC)
        Dk = dot(dPT, qt, tl.zeros([C, BK], dtype=tl.float32), OP, PREC)
        Dk = dot(dLT, bk, Dk, OP, PREC)

    if GATE > 0:
        # The last row's own key reaches the chunk's end undecayed: it is in neither role.
        ends = tl.where(r[:, None] < rows - 1, kt * Dkt, 0.0)
        dG = qt * Dq + bk * Dbk - kt * Dk - ends
        at_end = tl.sum(ends, 0) + kept
        if GATE == 2:
            dG += tl.where(r[:, None] == rows - 1, at_end[None, :], 0.0)
            dG = tl.cumsum(dG, 0, reverse=True)
            # Across a decay of 0 nothing flows: what is left there is rounding.
            before = tl.load(tile(G, chunk, C, KP, r - 1, d), mask=(r > 0)[:, None], other=0)
            store_tokens(dg, start, rows, h, HV, r, d, K, tl.where(forgets(Gt, before), 0.0, dG))
        else:
            x = tl.sum(dG, 1) + tl.where(r == rows - 1, tl.sum(at_end), 0.0)
            tl.store(dG_head + part * parts_stride + chunk * C + r, x)

    own = tl.load(on_diagonal + chunk * C + r)[:, None]
    store_tokens(dq, start, rows, h, HV, r, d, K, Dq + own * kt)
    store_tokens(dk, start, rows, h, HV, r, d, K, Dk + Dkt + own * qt + bt * Dbk)
    if B_CHANNEL:
        store_tokens(db, start, rows, h, HV, r, d, K, kt * Dbk)
    else:
        tl.store(db_erase + part * parts_stride + chunk * C + r, tl.sum(kt * Dbk, 1))
