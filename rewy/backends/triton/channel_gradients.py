"""Contraction with a decay per channel: the gradients of q, k, the erase gate and the decay, one
program for ROWS rows of a chunk and head and a tile of key channels.

A pair of rows decays by a factor of each side (channel.py), and one product serves both: wherever
two groups of rows meet, those of the later one carry queries (or erase keys) and those of the
earlier one keys, and dP and dL are taken as symmetric. What a later row then receives is its
gradient as a query, what an earlier row receives its gradient as a key.

The gate's adjoint is role times adjoint, products already at hand: no Gram matrix. Pairs i = j
carry no decay and are left out of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.channel import between, centre, halves, meet
from rewy.backends.triton.common import (
    decay,
    dot,
    forgets,
    load_rows,
    load_tokens,
    operand,
    place,
    store_tokens,
    tile,
    tile_t,
    tokens,
)

NEARLY_FORGOTTEN = tl.constexpr(-140.0)  # sums that forgets() cannot be true within, rounded or not


@triton.jit
def _ask_for(at, there):
    """Have lines of memory brought nearer that are wanted soon: nobody waits for what is loaded,
    and as a volatile load it is made all the same.
    """
    tl.load(at, mask=there, other=0, volatile=True)


@triton.jit
def _meet(
    dP, dL, x, y, own_x, own_y, down, late, Dq, Dbk, Dk, owed,
    OP: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Add what rows receive from those that they meet, ``down * (dP @ x)`` and ``down * (dL @ y)``,
    by their role: ``late`` is 1 for the later ones, 0 for the earlier. The gates are owed what
    later rows receive less what earlier ones do, each with the factor that its product saw, so that
    a pair of rows on one side of a gate cancels.
    """
    empty = tl.zeros_like(Dq)
    by_x = dot(dP, x, empty, OP, PREC)
    by_y = dot(dL, y, empty, OP, PREC)
    moved = own_x.to(tl.float32) * by_x + own_y.to(tl.float32) * by_y
    by_x, by_y = down * by_x, down * by_y
    Dq += late * by_x
    Dbk += late * by_y
    Dk += (1 - late) * (by_x + by_y)
    return Dq, Dbk, Dk, owed + (2 * late - 1) * moved


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
    # Eight warps a multiprocessor, which is what registers leave room for, do not hide each other's
    # waiting: what comes after the states is asked for before them.
    line, every = part * BK + tl.arange(0, (BK + 31) // 32) * 32, tl.arange(0, C)
    inside = (every < rows)[:, None] & (line < K)[None, :]
    _ask_for(tile(G, chunk, C, KP, every, line), (every < C)[:, None])
    _ask_for(tokens(q, start, hk, H, every, line, K), inside)
    _ask_for(tokens(k, start, hk, H, every, line, K), inside)
    if B_CHANNEL:
        _ask_for(tokens(b, start, h, HV, every, line, K), inside)
    _ask_for(tile(dP, chunk, C, C, every, tl.arange(0, 1)), (every < C)[:, None])
    _ask_for(tile(dL, chunk, C, C, every, tl.arange(0, 1)), (every < C)[:, None])

    zero = tl.zeros([ROWS, BK], dtype=tl.float32)
    Dq, Dbk, Dk = zero, zero, zero  # through the states
    kept = tl.zeros([BK], dtype=tl.float32)
    for vt in range(0, VP, BV):
        e = vt + tl.arange(0, BV)
        ST = tl.load(tile_t(S, chunk, KP, VP, d, e))
        dST = tl.load(tile_t(dS, chunk, KP, VP, d, e))
        x, dx = operand(ST, OP, PREC), operand(dST, OP, PREC)
        Dq = dot(load_tokens(do, start, rows, h, HV, r, e, V), x, Dq, OP, PREC)
        Dbk = dot(tl.load(tile(Y, chunk, C, VP, r, e)), x, Dbk, OP, PREC)
        Dk = dot(tl.load(tile(U, chunk, C, VP, r, e)), dx, Dk, OP, PREC)
        if block == 0:
            kept += tl.sum(ST.to(tl.float32) * dST.to(tl.float32), 0)
    Gt = tl.load(tile(G, chunk, C, KP, r, d))
    qt = load_tokens(q, start, rows, hk, H, r, d, K).to(tl.float32)
    kt = load_tokens(k, start, rows, hk, H, r, d, K).to(tl.float32)
    if B_CHANNEL:
        bt = load_tokens(b, start, rows, h, HV, r, d, K).to(tl.float32)
    else:
        bt = load_rows(b, start, rows, h, HV, r)[:, None]
    from_start = decay(Gt)
    last = centre(G, chunk, C - 1, d, C, KP)
    Dq = scale * Dq * from_start
    Dbk = -1.0 * Dbk * from_start
    Dk *= between(Gt, last)
    tl.store(tile(ends, chunk, C, KP, r, d), kt * Dk)
    if block == 0:
        tl.store(through + chunk * KP + d[None, :], kept[None, :] * decay(last))
    owed = qt * Dq + bt * kt * Dbk

    if N == 2:  # with the rows of the other half
        c = (1 - block) * ROWS + i
        middle = centre(G, chunk, ROWS, d, C, KP)
        theirs = between(tl.load(tile(G, chunk, C, KP, c, d)), middle)
        their_k = load_tokens(k, start, rows, hk, H, c, d, K).to(tl.float32)
        their_x = their_k * theirs
        their_y, own_x, own_y = their_x, kt, kt
        if block == 0:
            if B_CHANNEL:
                their_k *= load_tokens(b, start, rows, h, HV, c, d, K).to(tl.float32)
            else:
                their_k *= load_rows(b, start, rows, h, HV, c)[:, None]
            their_y = their_k * theirs
            their_x = load_tokens(q, start, rows, hk, H, c, d, K).to(tl.float32) * theirs
            dP_other = tl.load(tile_t(dP, chunk, C, C, c, r))
            dL_other = tl.load(tile_t(dL, chunk, C, C, c, r))
        else:
            own_x, own_y = qt, bt * kt
            dP_other = tl.load(tile(dP, chunk, C, C, r, c))
            dL_other = tl.load(tile(dL, chunk, C, C, r, c))
        down = between(Gt, middle)
        Dq, Dbk, Dk, owed = _meet(
            dP_other, dL_other, operand(their_x, OP, PREC), operand(their_y, OP, PREC),
            operand(own_x * down, OP, PREC), operand(own_y * down, OP, PREC),
            down, block.to(tl.float32), Dq, Dbk, Dk, owed, OP, PREC,
        )  # fmt: skip
    # Strictly lower, so that the sum is the symmetric one.
    dPt = tl.load(tile(dP, chunk, C, C, r, r)) + tl.load(tile_t(dP, chunk, C, C, r, r))
    dLt = tl.load(tile(dL, chunk, C, C, r, r)) + tl.load(tile_t(dL, chunk, C, C, r, r))
    for level in range(4 + ROWS // 32):  # among themselves
        half = ROWS // 2 >> level
        down = halves(G, chunk, Gt, r, d, half, C, KP)
        late, pairs = ((i & half) != 0)[:, None], meet(i, half)
        x = operand(tl.where(late, qt, kt) * down, OP, PREC)
        y = operand(tl.where(late, bt, 1.0) * kt * down, OP, PREC)
        Dq, Dbk, Dk, owed = _meet(
            tl.where(pairs, dPt, 0.0), tl.where(pairs, dLt, 0.0), x, y, x, y,
            down, late.to(tl.float32), Dq, Dbk, Dk, owed, OP, PREC,
        )  # fmt: skip

    tl.store(tile(dG, chunk, C, KP, r, d), owed)
    own = tl.load(on_diagonal + chunk * C + r)[:, None]
    if B_CHANNEL:
        store_tokens(db, start, rows, h, HV, r, d, K, kt * Dbk)
    else:
        at = part.to(tl.int64) * parts_stride + chunk * C + r
        tl.store(db_erase + at, tl.sum(kt * Dbk, 1))
    store_tokens(dq, start, rows, h, HV, r, d, K, Dq + own * kt)
    store_tokens(dk, start, rows, h, HV, r, d, K, Dk + own * qt + bt * Dbk)


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
    # Across a decay of 0 nothing flows: what is left there is rounding. The last sum tells where
    # none can be, and all the others are not read.
    if tl.min(centre(G, chunk, C - 1, d, C, KP).to(tl.float32)) < NEARLY_FORGOTTEN:
        Gt = tl.load(tile(G, chunk, C, KP, r, d))
        before = tl.load(tile(G, chunk, C, KP, r - 1, d), mask=(r > 0)[:, None], other=0)
        x = tl.where(forgets(Gt, before), 0.0, x)
    store_tokens(dg, start, rows, h, HV, r, d, K, x)
    if not B_CHANNEL:
        if part == 0:
            y = tl.load(db_write + chunk * C + r)
            wide = tl.zeros([1], dtype=tl.int64) + parts_stride  # times parts it may pass 2**31
            for other in range(0, parts):
                y += tl.load(db_erase + other * wide + chunk * C + r)
            store_tokens(db, start, rows, h, HV, r, tl.arange(0, 1), 1, y[:, None])
