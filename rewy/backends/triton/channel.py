"""Local scores of a channel gate, and the contraction that is their adjoint.

``sum_d x_id k_jd 2**(G_id - G_jd)`` over pairs i > j becomes matrix products by scaling both sides
to one row c between them. One program owns 16 rows: against earlier rows c is its own first row,
towards later rows it is theirs, and among its 16 rows the halving of docs/method.md goes on, s = 8,
4, 2, 1. Every exponent is <= 0, and no program needs more registers than its rows do.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import (
    decay,
    dot,
    later_rows,
    load_rows,
    load_tokens,
    place,
    same_block,
    tile,
    tile_t,
)

SUB = tl.constexpr(16)  # rows a program; the smallest tile of a matrix unit


@triton.jit
def _centre(G, chunk, row, d, C: tl.constexpr, KP: tl.constexpr):
    """The sums of one row, ``[1, BK]``."""
    return tl.load(G + chunk * (C * KP) + row * KP + d)[None, :]


@triton.jit
def _halves(G, chunk, Gt, r, d, s: tl.constexpr, C: tl.constexpr, KP: tl.constexpr):
    """Factors ``[16, BK]`` of the later and of the earlier rows of each block of 2s, else 0."""
    c = (r // (2 * s)) * (2 * s) + s
    e = decay(-tl.abs(Gt - tl.load(tile(G, chunk, C, KP, c, d))))
    later = later_rows(r, s)[:, None]
    return tl.where(later, e, 0.0), tl.where(later, 0.0, e)


@triton.jit
def _erase_keys(b, kt, start, rows, h, HV, r, d, K, B_CHANNEL: tl.constexpr):
    """``b * k`` where b is per channel; a head's b is a factor of the whole row, left for later."""
    if B_CHANNEL:
        kt = kt * load_tokens(b, start, rows, h, HV, r, d, K).to(tl.float32)
    return kt


@triton.jit(do_not_specialize=["T", "NT", "scale"])
def _channel_scores(
    q, k, b, G, P, L, table, scale, T, NT,
    H, HV, K, C: tl.constexpr, KP: tl.constexpr,
    BK: tl.constexpr, B_CHANNEL: tl.constexpr, SOLVE: tl.constexpr, OP: tl.constexpr,
    PREC: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """16 rows of P, with its diagonal, and where ``SOLVE`` of L, without; 0 above it."""
    N: tl.constexpr = C // SUB
    block, pid = tl.program_id(0) % N, tl.program_id(0) // N
    chunk, h, start, rows = place(pid, HV, table, T, NT, C, PACKED)
    hk = h // (HV // H)
    i = tl.arange(0, SUB)
    r = block * SUB + i
    erase = tl.full([SUB], 1.0, dtype=tl.float32)
    if not B_CHANNEL:
        erase = load_rows(b, start, rows, h, HV, r)

    zero = tl.zeros([SUB, SUB], dtype=tl.float32)
    for other in range(0, block):
        Pt, Lt = zero, zero
        c = other * SUB + i
        for first in range(0, KP, BK):
            d = first + tl.arange(0, BK)
            centre = _centre(G, chunk, block * SUB, d, C, KP)
            down = decay(tl.load(tile(G, chunk, C, KP, r, d)) - centre)
            source = load_tokens(k, start, rows, hk, H, c, d, K).to(tl.float32)
            source *= decay(centre - tl.load(tile(G, chunk, C, KP, c, d)))
            source = tl.trans(source.to(OP))
            qt = load_tokens(q, start, rows, hk, H, r, d, K).to(tl.float32)
            Pt = dot(qt * down, source, Pt, OP, PREC)
            if SOLVE:
                kt = load_tokens(k, start, rows, hk, H, r, d, K).to(tl.float32)
                kt = _erase_keys(b, kt, start, rows, h, HV, r, d, K, B_CHANNEL)
                Lt = dot(kt * down, source, Lt, OP, PREC)
        tl.store(tile(P, chunk, C, C, r, c), (Pt * scale).to(P.dtype.element_ty))
        if SOLVE:
            tl.store(tile(L, chunk, C, C, r, c), Lt * erase[:, None])

    Pt, Lt = zero, zero
    own = tl.zeros([SUB], dtype=tl.float32)
    for first in range(0, KP, BK):
        d = first + tl.arange(0, BK)
        Gt = tl.load(tile(G, chunk, C, KP, r, d))
        qt = load_tokens(q, start, rows, hk, H, r, d, K).to(tl.float32)
        kt = load_tokens(k, start, rows, hk, H, r, d, K).to(tl.float32)
        bk = _erase_keys(b, kt, start, rows, h, HV, r, d, K, B_CHANNEL)
        own += tl.sum(qt * kt, 1)
        for level in tl.static_range(4):
            down, up = _halves(G, chunk, Gt, r, d, 8 >> level, C, KP)
            source = tl.trans((kt * up).to(OP))
            within = same_block(r, 8 >> level)
            Pt += tl.where(within, dot(qt * down, source, zero, OP, PREC), 0.0)
            if SOLVE:
                Lt += tl.where(within, dot(bk * down, source, zero, OP, PREC), 0.0)
    Pt = tl.where(i[:, None] == i[None, :], own[:, None], Pt)
    tl.store(tile(P, chunk, C, C, r, r), (Pt * scale).to(P.dtype.element_ty))
    if SOLVE:
        tl.store(tile(L, chunk, C, C, r, r), Lt * erase[:, None])
    for other in range(block + 1, N):
        c = other * SUB + i
        tl.store(tile(P, chunk, C, C, r, c), zero.to(P.dtype.element_ty))
        if SOLVE:
            tl.store(tile(L, chunk, C, C, r, c), zero)


@triton.jit(do_not_specialize=["T", "NT"])
def _channel_contraction(
    q, k, b, G, dP, dL, Dq, Dbk, Dk, table, T, NT,
    H, HV, K, C: tl.constexpr, KP: tl.constexpr,
    BK: tl.constexpr, B_CHANNEL: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """16 rows and BK channels of the adjoints of q, of b * k and of k as the source."""
    N: tl.constexpr = C // SUB
    NK: tl.constexpr = KP // BK
    part, pid = tl.program_id(0) % NK, tl.program_id(0) // NK
    block, pid = pid % N, pid // N
    chunk, h, start, rows = place(pid, HV, table, T, NT, C, PACKED)
    hk = h // (HV // H)
    i, d = tl.arange(0, SUB), part * BK + tl.arange(0, BK)
    r = block * SUB + i
    Gt = tl.load(tile(G, chunk, C, KP, r, d))
    qt = load_tokens(q, start, rows, hk, H, r, d, K).to(tl.float32)
    kt = load_tokens(k, start, rows, hk, H, r, d, K).to(tl.float32)
    bk = _erase_keys(b, kt, start, rows, h, HV, r, d, K, B_CHANNEL)
    if not B_CHANNEL:
        bk *= load_rows(b, start, rows, h, HV, r)[:, None]

    zero = tl.zeros([SUB, BK], dtype=tl.float32)
    Dqt, Dbkt, Dkt = zero, zero, zero
    centre = _centre(G, chunk, block * SUB, d, C, KP)
    for other in range(0, block):  # from earlier rows
        c = other * SUB + i
        source = load_tokens(k, start, rows, hk, H, c, d, K).to(tl.float32)
        source *= decay(centre - tl.load(tile(G, chunk, C, KP, c, d)))
        Dqt = dot(tl.load(tile(dP, chunk, C, C, r, c)), source, Dqt, OP, PREC)
        Dbkt = dot(tl.load(tile(dL, chunk, C, C, r, c)), source, Dbkt, OP, PREC)
    down = decay(Gt - centre)
    Dqt *= down
    Dbkt *= down
    for other in range(block + 1, N):  # from later rows
        c = other * SUB + i
        theirs = _centre(G, chunk, other * SUB, d, C, KP)
        down = decay(tl.load(tile(G, chunk, C, KP, c, d)) - theirs)
        x = load_tokens(q, start, rows, hk, H, c, d, K).to(tl.float32) * down
        back = dot(tl.load(tile_t(dP, chunk, C, C, c, r)), x, zero, OP, PREC)
        x = load_tokens(k, start, rows, hk, H, c, d, K).to(tl.float32)
        x = _erase_keys(b, x, start, rows, h, HV, c, d, K, B_CHANNEL) * down
        if not B_CHANNEL:
            x *= load_rows(b, start, rows, h, HV, c)[:, None]
        back = dot(tl.load(tile_t(dL, chunk, C, C, c, r)), x, back, OP, PREC)
        Dkt += decay(theirs - Gt) * back

    dPt, dLt = tl.load(tile(dP, chunk, C, C, r, r)), tl.load(tile(dL, chunk, C, C, r, r))
    dPT, dLT = tl.load(tile_t(dP, chunk, C, C, r, r)), tl.load(tile_t(dL, chunk, C, C, r, r))
    for level in tl.static_range(4):  # among themselves
        down, up = _halves(G, chunk, Gt, r, d, 8 >> level, C, KP)
        within = same_block(r, 8 >> level)
        source = kt * up
        Dqt += down * dot(tl.where(within, dPt, 0.0), source, zero, OP, PREC)
        Dbkt += down * dot(tl.where(within, dLt, 0.0), source, zero, OP, PREC)
        back = dot(tl.where(within, dPT, 0.0), qt * down, zero, OP, PREC)
        back = dot(tl.where(within, dLT, 0.0), bk * down, back, OP, PREC)
        Dkt += up * back
    tl.store(tile(Dq, chunk, C, KP, r, d), Dqt.to(Dq.dtype.element_ty))
    tl.store(tile(Dbk, chunk, C, KP, r, d), Dbkt.to(Dbk.dtype.element_ty))
    tl.store(tile(Dk, chunk, C, KP, r, d), Dkt.to(Dk.dtype.element_ty))
