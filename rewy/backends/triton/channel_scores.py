"""Local scores of a channel gate: P and L, one program for ROWS rows of a chunk and head."""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.channel import centre, erase_keys, halves, meet
from rewy.backends.triton.common import (
    decay,
    dot,
    keep,
    load_rows,
    load_tokens,
    operand,
    place,
    tile,
)


@triton.jit(do_not_specialize=["T", "NT", "PACKED", "scale", "H", "HV", "K"])
def _channel_scores(
    q, k, b, G, P, L, table, scale, T, NT,
    H, HV, K, C: tl.constexpr, KP, ROWS: tl.constexpr, BK: tl.constexpr,
    B_CHANNEL: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr, PACKED,
):  # fmt: skip
    """ROWS rows of P, with its diagonal, and of L, without; 0 above it."""
    N: tl.constexpr = C // ROWS
    block, pid = tl.program_id(0) % N, tl.program_id(0) // N
    chunk, h, start, rows = place(pid, HV, table, T, NT, C, PACKED)
    hk = h // (HV // H)
    i = tl.arange(0, ROWS)
    r = block * ROWS + i
    erase = tl.full([ROWS], 1.0, dtype=tl.float32)
    if not B_CHANNEL:
        erase = load_rows(b, start, rows, h, HV, r)

    zero = tl.zeros([ROWS, ROWS], dtype=tl.float32)
    for other in range(0, block):
        Pt, Lt = zero, zero
        c = other * ROWS + i
        for first in range(0, KP, BK):
            d = first + tl.arange(0, BK)
            at_start = centre(G, chunk, block * ROWS, d, C, KP)
            down = decay(tl.load(tile(G, chunk, C, KP, r, d)) - at_start)
            source = load_tokens(k, start, rows, hk, H, c, d, K).to(tl.float32)
            source *= decay(at_start - tl.load(tile(G, chunk, C, KP, c, d)))
            source = tl.trans(operand(source, OP, PREC))
            qt = load_tokens(q, start, rows, hk, H, r, d, K).to(tl.float32)
            Pt = dot(operand(qt * down, OP, PREC), source, Pt, OP, PREC)
            kt = load_tokens(k, start, rows, hk, H, r, d, K).to(tl.float32)
            kt = erase_keys(b, kt, start, rows, h, HV, r, d, K, B_CHANNEL)
            Lt = dot(operand(kt * down, OP, PREC), source, Lt, OP, PREC)
        keep(tile(P, chunk, C, C, r, c), Pt * scale, PREC)
        tl.store(tile(L, chunk, C, C, r, c), Lt * erase[:, None])

    Pt, Lt = zero, zero
    own = tl.zeros([ROWS], dtype=tl.float32)
    for first in range(0, KP, BK):
        d = first + tl.arange(0, BK)
        Gt = tl.load(tile(G, chunk, C, KP, r, d))
        qt = load_tokens(q, start, rows, hk, H, r, d, K).to(tl.float32)
        kt = load_tokens(k, start, rows, hk, H, r, d, K).to(tl.float32)
        bk = erase_keys(b, kt, start, rows, h, HV, r, d, K, B_CHANNEL)
        own += tl.sum(qt * kt, 1)
        for level in range(4 + ROWS // 32):
            half = ROWS // 2 >> level
            e = halves(G, chunk, Gt, r, d, half, C, KP)
            pairs = meet(i, half) & (i[:, None] > i[None, :])
            late = ((i & half) != 0)[:, None]
            x = tl.where(late, qt, kt) * e  # a later half's queries, an earlier one's keys
            x = operand(x, OP, PREC)
            Pt += tl.where(pairs, dot(x, tl.trans(x), zero, OP, PREC), 0.0)
            x = operand(tl.where(late, bk, kt) * e, OP, PREC)
            Lt += tl.where(pairs, dot(x, tl.trans(x), zero, OP, PREC), 0.0)
    Pt = tl.where(i[:, None] == i[None, :], own[:, None], Pt)
    keep(tile(P, chunk, C, C, r, r), Pt * scale, PREC)
    tl.store(tile(L, chunk, C, C, r, r), Lt * erase[:, None])
    for other in range(block + 1, N):
        c = other * ROWS + i
        tl.store(tile(P, chunk, C, C, r, c), zero.to(P.dtype.element_ty))
        tl.store(tile(L, chunk, C, C, r, c), zero)
