"""Correction, contraction and gate reduction without a gate or with one a head: one program a chunk
and head, from the states and their adjoints to the final gradients.

The adjoint of ``(I + L) U = w * V - K_b S_0`` is one system. Of its three local products ``Y = A^T
dU`` is formed in the reverse pass; here are ``dL = -tril_-1(Y U^T)`` and ``dK_b = -Y S_0^T``. dP
and dL never leave the program. Both are wanted transposed, too, and are multiplied out a second
time: a transposed accumulator as an operand is what Triton compiles wrongly on Hopper.

The gate's adjoint is role times adjoint, products already at hand: no Gram matrix. Pairs i = j
carry no decay and are left out of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import (
    add_dot,
    decay,
    dot,
    forgets,
    load_rows,
    load_tokens,
    operand,
    place,
    store_tokens,
    tile_t,
)
from rewy.backends.triton.correction import residuals, write_gradients


@triton.jit(do_not_specialize=["T", "NT", "PACKED", "scale", "H", "HV", "K", "V"])
def _gradients(
    q, k, v, b, w, do, G, U, Y, S, dS, dq, dk, dv, dg, db, dw, table, scale, T, NT,
    H, HV, K, V, C: tl.constexpr,
    KP, VP, BK: tl.constexpr, BV: tl.constexpr, ONE_V: tl.constexpr, GATE: tl.constexpr,
    B_CHANNEL: tl.constexpr, W_CHANNEL: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr,
    PACKED,
):  # fmt: skip
    chunk, h, start, rows = place(tl.program_id(0), HV, table, T, NT, C, PACKED)
    hk = h // (HV // H)
    r = tl.arange(0, C)
    one = tl.arange(0, 1)
    # Loops over value tiles ask for nothing ahead of time where registers want their tiles, too:
    # Triton 3.6 has a place too few for these, and the next ones land where products still read.
    # The loop over key tiles waits for each product before it goes on. properties/hazards.py sees
    # either.
    AHEAD: tl.constexpr = None if ONE_V else 1
    AHEAD_OF_STATES: tl.constexpr = AHEAD if GATE == 1 else None
    db_rows = tl.zeros([C], dtype=tl.float32)

    # The correction: dP, dL and what follows from Y alone.
    zero = tl.zeros([C, C], dtype=tl.float32)
    lower, upper = r[:, None] > r[None, :], r[:, None] < r[None, :]
    from_start = tl.full([C], 1.0, dtype=tl.float32)
    to_end, total = from_start, 1.0
    if GATE == 1:
        Gr = tl.load(G + chunk * C + r)
        last = tl.load(G + chunk * C + C - 1)
        from_start, to_end, total = decay(Gr), decay(last - Gr), decay(last)
    dP, dL, dPT, dLT = zero, zero, zero, zero
    own = tl.zeros([C], dtype=tl.float32)  # dP's diagonal
    dO, Yt, Ut = residuals(do, Y, U, chunk, start, rows, h, HV, V, r, tl.arange(0, BV), C, VP)
    for vt in tl.range(0, VP, BV, num_stages=AHEAD):
        e = vt + tl.arange(0, BV)
        if not ONE_V:
            dO, Yt, Ut = residuals(do, Y, U, chunk, start, rows, h, HV, V, r, e, C, VP)
        own += tl.sum(dO.to(tl.float32) * Ut.to(tl.float32), 1)
        db_rows += write_gradients(
            v, b, w, dv, dw, Yt, start, rows, h, HV, V, r, e, W_CHANNEL
        )  # fmt: skip
        UT = tl.trans(Ut)
        dP = dot(dO, UT, dP, OP, PREC)
        dL = dot(Yt, UT, dL, OP, PREC)
        dPT = dot(Ut, tl.trans(dO), dPT, OP, PREC)
        dLT = dot(Ut, tl.trans(Yt), dLT, OP, PREC)
    own *= scale
    if GATE == 1:
        between = decay(Gr[:, None] - Gr[None, :])
        dP, dL = dP * between, dL * between
        back = decay(Gr[None, :] - Gr[:, None])
        dPT, dLT = dPT * back, dLT * back
    dP = operand(tl.where(lower, dP * scale, 0.0), OP, PREC)
    dL = operand(tl.where(lower, -dL, 0.0), OP, PREC)
    dPT = operand(tl.where(upper, dPT * scale, 0.0), OP, PREC)
    dLT = operand(tl.where(upper, -dLT, 0.0), OP, PREC)

    # The contraction, a tile of key channels after the other.
    dG = tl.zeros([C], dtype=tl.float32)
    ends = tl.zeros([C], dtype=tl.float32)  # what each key is owed from the chunk's end
    kept = tl.zeros([BK], dtype=tl.float32)
    empty = tl.zeros([C, BK], dtype=tl.float32)
    for kt in range(0, KP, BK):
        d = kt + tl.arange(0, BK)
        qt = load_tokens(q, start, rows, hk, H, r, d, K)
        kt_ = load_tokens(k, start, rows, hk, H, r, d, K)
        q32, k32 = qt.to(tl.float32), kt_.to(tl.float32)
        if B_CHANNEL:
            bt = load_tokens(b, start, rows, h, HV, r, d, K).to(tl.float32)
        else:
            bt = load_rows(b, start, rows, h, HV, r)[:, None]
        # As the products see it, in both roles: pairs that cancel must.
        bk = operand(bt * k32, OP, PREC)
        Dq, Dbk, Dkt = empty, empty, empty
        for vt in tl.range(0, VP, BV, num_stages=AHEAD_OF_STATES):
            e = vt + tl.arange(0, BV)
            if not ONE_V:
                dO, Yt, Ut = residuals(do, Y, U, chunk, start, rows, h, HV, V, r, e, C, VP)
            ST = tl.load(tile_t(S, chunk, KP, VP, d, e))
            dST = tl.load(tile_t(dS, chunk, KP, VP, d, e))
            x, dx = operand(ST, OP, PREC), operand(dST, OP, PREC)
            Dq = dot(dO, x, Dq, OP, PREC)
            Dbk = dot(Yt, x, Dbk, OP, PREC)
            Dkt = dot(Ut, dx, Dkt, OP, PREC)
            if GATE == 1:
                kept += tl.sum(ST.to(tl.float32) * dST.to(tl.float32), 0)
        Dq *= (scale * from_start)[:, None]
        Dq = add_dot(Dq, dP, kt_, OP, PREC)
        store_tokens(dq, start, rows, h, HV, r, d, K, Dq + own[:, None] * k32)
        Dbk *= -from_start[:, None]
        Dbk = add_dot(Dbk, dL, kt_, OP, PREC)
        if B_CHANNEL:
            store_tokens(db, start, rows, h, HV, r, d, K, k32 * Dbk)
        else:
            db_rows += tl.sum(k32 * Dbk, 1)
        Dkt *= to_end[:, None]
        if GATE == 1:
            sent = q32 * Dq + bk.to(tl.float32) * Dbk
            ends += tl.sum(k32 * Dkt, 1)
        Dkt += own[:, None] * q32 + bt * Dbk
        Dk = dot(dPT, qt, empty, OP, PREC)
        Dk = add_dot(Dk, dLT, bk, OP, PREC)
        if GATE == 1:
            dG += tl.sum(sent - k32 * Dk, 1)
        store_tokens(dk, start, rows, h, HV, r, d, K, Dk + Dkt)

    if GATE == 1:
        # A row's gate lies between every earlier row and itself and all later ones: it is owed what
        # these receive less what they send each other, what earlier keys are owed from the chunk's
        # end, and what the state keeps. The last two are only added; pairs of later rows cancel up
        # to rounding.
        from_row = tl.sum(tl.where(r[:, None] <= r[None, :], dG[None, :], 0.0), 1)
        before_row = tl.sum(tl.where(r[:, None] > r[None, :], ends[None, :], 0.0), 1)
        dG = from_row + before_row + total * tl.sum(kept)
        # Across a decay of 0 nothing flows: what is left there is rounding.
        before = tl.load(G + chunk * C + r - 1, mask=r > 0, other=0)
        dG = tl.where(forgets(Gr, before), 0.0, dG)
        store_tokens(dg, start, rows, h, HV, r, one, 1, dG[:, None])
    if not B_CHANNEL:
        store_tokens(db, start, rows, h, HV, r, one, 1, db_rows[:, None])
