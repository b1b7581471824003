"""Contraction with a decay per channel: the gradients of q, k, the erase gate and the decay, one
program for ROWS rows of a chunk and head and a tile of key channels.

The gate's adjoint is role times adjoint, products already at hand: no Gram matrix. Pairs i = j
carry no decay and are left out of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.channel import centre, erase_keys, halves, meet
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


@triton.jit
def _seen(x, OP: tl.constexpr):
    """x as a product sees it."""
    return x.to(OP).to(tl.float32)


@triton.jit(do_not_specialize=["T", "NT", "PACKED", "scale", "parts_stride", "H", "HV", "K", "V"])
def _channel_gradients(
    q, k, b, do, G, U, Y, S, dS, dP, dL, on_diagonal, dq, dk, db, dG, ends, through,
    db_erase, table, scale, T, NT, parts_stride,
    H, HV, K, V, C: tl.constexpr,
    KP, VP, ROWS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    B_CHANNEL: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr, PACKED,
):  # fmt: skip
    """dq, dk and db; what dg is made of: what each row receives less what it sends, what each key
    is owed from the chunk's end, and what the state keeps.
    """
    N: tl.constexpr = C // ROWS
    NK = KP // BK
    pid = tl.program_id(0)
    part, pid = pid % NK, pid // NK
    block, pid = pid % N, pid // N
    chunk, h, start, rows = place(pid, HV, table, T, NT, C, PACKED)
    hk = h // (HV // H)
    i, d = tl.arange(0, ROWS), part * BK + tl.arange(0, BK)
    r = block * ROWS + i
    Gt = tl.load(tile(G, chunk, C, KP, r, d))
    qt = load_tokens(q, start, rows, hk, H, r, d, K).to(tl.float32)
    kt = load_tokens(k, start, rows, hk, H, r, d, K).to(tl.float32)
    bk = erase_keys(b, kt, start, rows, h, HV, r, d, K, B_CHANNEL)
    if not B_CHANNEL:
        bk *= load_rows(b, start, rows, h, HV, r)[:, None]

    zero = tl.zeros([ROWS, BK], dtype=tl.float32)
    Dq, Dbk, Dk = zero, zero, zero
    at_start = centre(G, chunk, block * ROWS, d, C, KP)
    for other in range(0, block):  # from earlier rows
        c = other * ROWS + i
        source = load_tokens(k, start, rows, hk, H, c, d, K).to(tl.float32)
        source *= decay(at_start - tl.load(tile(G, chunk, C, KP, c, d)))
        Dq = dot(tl.load(tile(dP, chunk, C, C, r, c)), source, Dq, OP, PREC)
        Dbk = dot(tl.load(tile(dL, chunk, C, C, r, c)), source, Dbk, OP, PREC)
    down = decay(Gt - at_start)
    # What the gates are owed for: received less sent, each with the factor that its product saw, so
    # that a pair of rows on one side of a gate cancels.
    owed = _seen(qt * down, OP) * Dq + _seen(bk * down, OP) * Dbk
    Dq *= down
    Dbk *= down
    for other in range(block + 1, N):  # from later rows
        c = other * ROWS + i
        theirs = centre(G, chunk, other * ROWS, d, C, KP)
        down = decay(tl.load(tile(G, chunk, C, KP, c, d)) - theirs)
        x = load_tokens(q, start, rows, hk, H, c, d, K).to(tl.float32) * down
        sink = dot(tl.load(tile_t(dP, chunk, C, C, c, r)), x, zero, OP, PREC)
        x = load_tokens(k, start, rows, hk, H, c, d, K).to(tl.float32)
        x = erase_keys(b, x, start, rows, h, HV, c, d, K, B_CHANNEL)
        if not B_CHANNEL:
            x *= load_rows(b, start, rows, h, HV, c)[:, None]
        sink = dot(tl.load(tile_t(dL, chunk, C, C, c, r)), x * down, sink, OP, PREC)
        up = decay(theirs - Gt)
        owed -= _seen(kt * up, OP) * sink
        Dk += up * sink
    dPt, dLt = tl.load(tile(dP, chunk, C, C, r, r)), tl.load(tile(dL, chunk, C, C, r, r))
    dPT, dLT = tl.load(tile_t(dP, chunk, C, C, r, r)), tl.load(tile_t(dL, chunk, C, C, r, r))
    for level in range(4 + ROWS // 32):  # among themselves
        half = ROWS // 2 >> level
        e = halves(G, chunk, Gt, r, d, half, C, KP)
        pairs = meet(i, half)
        source, x, y = (kt * e).to(OP), (qt * e).to(OP), (bk * e).to(OP)
        got = dot(tl.where(pairs, dPt, 0.0), source, zero, OP, PREC)
        owed += x.to(tl.float32) * got
        Dq += e * got
        got = dot(tl.where(pairs, dLt, 0.0), source, zero, OP, PREC)
        owed += y.to(tl.float32) * got
        Dbk += e * got
        sink = dot(tl.where(pairs, dPT, 0.0), x, zero, OP, PREC)
        sink = dot(tl.where(pairs, dLT, 0.0), y, sink, OP, PREC)
        owed -= source.to(tl.float32) * sink
        Dk += e * sink

    Sq, Sbk, Sk = zero, zero, zero  # through the states
    kept = tl.zeros([BK], dtype=tl.float32)
    for vt in range(0, VP, BV):
        e = vt + tl.arange(0, BV)
        ST = tl.load(tile_t(S, chunk, KP, VP, d, e))
        dST = tl.load(tile_t(dS, chunk, KP, VP, d, e))
        Sq = dot(load_tokens(do, start, rows, h, HV, r, e, V), ST, Sq, OP, PREC)
        Sbk = dot(tl.load(tile(Y, chunk, C, VP, r, e)), ST, Sbk, OP, PREC)
        Sk = dot(tl.load(tile(U, chunk, C, VP, r, e)), dST, Sk, OP, PREC)
        if block == 0:
            kept += tl.sum(ST.to(tl.float32) * dST.to(tl.float32), 0)
    from_start = decay(Gt)
    last = centre(G, chunk, C - 1, d, C, KP)
    owed += from_start * (qt * (scale * Sq) - bk * Sbk)
    Dq += from_start * (scale * Sq)
    Dbk -= from_start * Sbk
    Sk *= decay(last - Gt)

    tl.store(tile(dG, chunk, C, KP, r, d), owed)
    tl.store(tile(ends, chunk, C, KP, r, d), kt * Sk)
    if block == 0:
        tl.store(through + chunk * KP + d[None, :], kept[None, :] * decay(last))
    own = tl.load(on_diagonal + chunk * C + r)[:, None]
    if B_CHANNEL:
        bt = load_tokens(b, start, rows, h, HV, r, d, K).to(tl.float32)
        store_tokens(db, start, rows, h, HV, r, d, K, kt * Dbk)
    else:
        bt = load_rows(b, start, rows, h, HV, r)[:, None]
        at = part.to(tl.int64) * parts_stride + chunk * C + r
        tl.store(db_erase + at, tl.sum(kt * Dbk, 1))
    store_tokens(dq, start, rows, h, HV, r, d, K, Dq + own * kt)
    store_tokens(dk, start, rows, h, HV, r, d, K, Dk + Sk + own * qt + bt * Dbk)


@triton.jit(do_not_specialize=["T", "NT", "PACKED", "parts", "parts_stride", "HV", "K"])
def _channel_reduction(
    G, dG, ends, through, db_erase, db_write, dg, db, table, T, NT, parts, parts_stride,
    HV, K, C: tl.constexpr, KP, BK: tl.constexpr,
    B_CHANNEL: tl.constexpr, PACKED,
):  # fmt: skip
    """dg, and db where it is a number a head."""
    NK = KP // BK
    part, pid = tl.program_id(0) % NK, tl.program_id(0) // NK
    chunk, h, start, rows = place(pid, HV, table, T, NT, C, PACKED)
    r, d = tl.arange(0, C), part * BK + tl.arange(0, BK)
    # A row's gate lies between every earlier row and itself and all later ones: it is owed what
    # these receive less what they send each other, what earlier keys are owed from the chunk's end,
    # and what the state keeps. The last two are only added; pairs of later rows cancel up to
    # rounding.
    x = tl.cumsum(tl.load(tile(dG, chunk, C, KP, r, d)), 0, reverse=True)
    earlier = tl.load(tile(ends, chunk, C, KP, r - 1, d), mask=(r > 0)[:, None], other=0)
    x += tl.cumsum(earlier, 0) + tl.load(through + chunk * KP + d)[None, :]
    # Across a decay of 0 nothing flows: what is left there is rounding.
    Gt = tl.load(tile(G, chunk, C, KP, r, d))
    before = tl.load(tile(G, chunk, C, KP, r - 1, d), mask=(r > 0)[:, None], other=0)
    store_tokens(dg, start, rows, h, HV, r, d, K, tl.where(forgets(Gt, before), 0.0, x))
    if not B_CHANNEL:
        if part == 0:
            y = tl.load(db_write + chunk * C + r)
            wide = tl.zeros([1], dtype=tl.int64) + parts_stride  # times parts it may pass 2**31
            for other in range(0, parts):
                y += tl.load(db_erase + other * wide + chunk * C + r)
            store_tokens(db, start, rows, h, HV, r, tl.arange(0, 1), 1, y[:, None])
