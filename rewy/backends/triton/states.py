"""The two sequential passes: states forward, their adjoints backward, one program a sequence, head
and tile of value channels.

They need nothing of each other: the adjoint of the residuals comes from ``Y_hat`` and ``K_hat``. A
backward that recomputes the states therefore runs both at once, each on half of the machine.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import (
    decay,
    dot,
    load_rows,
    load_tokens,
    load_tokens_t,
    tile,
    tile_t,
)


@triton.jit
def _sequence(n, firsts, T, NT, C: tl.constexpr, PACKED: tl.constexpr):
    """First chunk, chunks, first token and tokens of sequence n."""
    if PACKED:
        first = tl.load(firsts + n)
        chunks = (tl.load(firsts + n + 1) - first).to(tl.int32)
    else:
        first = n.to(tl.int64) * NT
        chunks = NT
    return first, chunks


@triton.jit
def _rows(m, i, n, table, T, C: tl.constexpr, PACKED: tl.constexpr):
    """First token and rows of a sequence's chunk i, which is chunk m."""
    if PACKED:
        start, rows = tl.load(table + 2 * m), tl.load(table + 2 * m + 1).to(tl.int32)
    else:
        start, rows = n.to(tl.int64) * T + i * C, tl.minimum(T - i * C, C)
    return start, rows


@triton.jit
def _total(G, chunk, d, GATE: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, there):
    """Decay over the whole chunk, a factor of the state: ``[KP, 1]`` or ``[1, 1]``."""
    if GATE == 2:
        at = G + chunk * (C * KP) + (C - 1) * KP + d
    else:
        at = G + chunk * C + C - 1 + tl.arange(0, 1)
    return decay(tl.load(at, mask=there, other=0))[:, None]


@triton.jit
def _state_tile(x, n, h, HV, K, V, d, e, V_FIRST: tl.constexpr):
    """Addresses ``[d, e]`` of a state ``[N, HV, K, V]`` or ``[N, HV, V, K]``, and which exist."""
    x += (n.to(tl.int64) * HV + h) * (K * V)
    if V_FIRST:
        at = x + e[None, :] * K + d[:, None]
    else:
        at = x + d[:, None] * V + e[None, :]
    return at, (d < K)[:, None] & (e < V)[None, :]


@triton.jit
def _states(
    n, h, vt, k, G, W_hat, U_hat, K_t, h0, S, U, ht, table, firsts, T, NT,
    H, HV, K, V, C: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr, BV: tl.constexpr, GATE: tl.constexpr,
    HAS_STATE: tl.constexpr, V_FIRST: tl.constexpr, FINAL: tl.constexpr, OP: tl.constexpr,
    PREC: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """``U = U_hat - W_hat S_0``, ``S_1 = exp(G_C) S_0 + K_t^T U``, chunk after chunk."""
    first, chunks = _sequence(n, firsts, T, NT, C, PACKED)
    r, d, e = tl.arange(0, C), tl.arange(0, KP), vt * BV + tl.arange(0, BV)
    state = tl.zeros([KP, BV], dtype=tl.float32)
    if HAS_STATE:
        at, inside = _state_tile(h0, n, h, HV, K, V, d, e, V_FIRST)
        state = tl.load(at, mask=inside, other=0).to(tl.float32)
    for i in range(0, chunks):
        chunk = (first + i) * HV + h
        before = state.to(S.dtype.element_ty)
        tl.store(tile(S, chunk, KP, VP, d, e), before)
        local = tl.load(tile(U_hat, chunk, C, VP, r, e))
        Wt = tl.load(tile(W_hat, chunk, C, KP, r, d))
        Ut = dot(Wt, before, tl.zeros([C, BV], dtype=tl.float32), OP, PREC)
        Ut = local.to(tl.float32) - Ut
        tl.store(tile(U, chunk, C, VP, r, e), Ut.to(U.dtype.element_ty))
        if GATE == 2:
            kT = tl.load(tile_t(K_t, chunk, C, KP, r, d))
        else:
            start, rows = _rows(first + i, i, n, table, T, C, PACKED)
            kT = load_tokens_t(k, start, rows, h // (HV // H), H, r, d, K)
        if GATE == 1:
            Gr = tl.load(G + chunk * C + r)
            Ut *= decay(tl.load(G + chunk * C + C - 1) - Gr)[:, None]
        if GATE > 0:
            state *= _total(G, chunk, d, GATE, C, KP, True)
        state = dot(kT, Ut, state, OP, PREC)
    if FINAL:
        at, inside = _state_tile(ht, n, h, HV, K, V, d, e, V_FIRST)
        tl.store(at, state, mask=inside)


@triton.jit
def _reverse_states(
    n, h, vt, q, k, b, do, G, Y_hat, K_hat, Q_g, K_b, dht, dS, Y, dh0, table, firsts, scale, T, NT,
    H, HV, K, V, C: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr, BV: tl.constexpr, GATE: tl.constexpr, STORED: tl.constexpr,
    HAS_DHT: tl.constexpr, V_FIRST: tl.constexpr, HAS_STATE: tl.constexpr, OP: tl.constexpr,
    PREC: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """``Y = Y_hat + K_hat dS_1``, ``dS_0 = exp(G_C) dS_1 + Q_g^T dO - K_b^T Y``, last chunk first.

    ``Q_g = scale Q * exp(G)``. Unless ``STORED``, its row factors, and those of ``K_b = b * K *
    exp(G)``, go to dO and Y.
    """
    first, chunks = _sequence(n, firsts, T, NT, C, PACKED)
    r, d, e = tl.arange(0, C), tl.arange(0, KP), vt * BV + tl.arange(0, BV)
    state = tl.zeros([KP, BV], dtype=tl.float32)
    if HAS_DHT:
        at, inside = _state_tile(dht, n, h, HV, K, V, d, e, V_FIRST)
        state = tl.load(at, mask=inside, other=0).to(tl.float32)
    # What a step needs at once is loaded one step ahead; the pipeliner leaves it where it is.
    chunk = (first + chunks - 1) * HV + h
    local = tl.load(tile(Y_hat, chunk, C, VP, r, e), mask=(r < chunks * C)[:, None], other=0)
    total = tl.full([1, 1], 1.0, dtype=tl.float32)
    if GATE > 0:
        total = _total(G, chunk, d, GATE, C, KP, chunks > 0)
    for step in range(0, chunks):
        i = chunks - 1 - step
        chunk = (first + i) * HV + h
        more = i > 0
        next_local = tl.load(
            tile(Y_hat, chunk - HV, C, VP, r, e), mask=(r < i * C)[:, None], other=0
        )
        next_total = total
        if GATE > 0:
            next_total = _total(G, chunk - HV, d, GATE, C, KP, more)
        start, rows = _rows(first + i, i, n, table, T, C, PACKED)
        after = state.to(dS.dtype.element_ty)
        tl.store(tile(dS, chunk, KP, VP, d, e), after)
        Kt = tl.load(tile(K_hat, chunk, C, KP, r, d))
        Yt = dot(Kt, after, tl.zeros([C, BV], dtype=tl.float32), OP, PREC) + local.to(tl.float32)
        tl.store(tile(Y, chunk, C, VP, r, e), Yt.to(Y.dtype.element_ty))
        dO = load_tokens(do, start, rows, h, HV, r, e, V)
        if STORED:
            qT = tl.load(tile_t(Q_g, chunk, C, KP, r, d))
            kT = tl.load(tile_t(K_b, chunk, C, KP, r, d))
        else:
            qT = load_tokens_t(q, start, rows, h // (HV // H), H, r, d, K)
            kT = load_tokens_t(k, start, rows, h // (HV // H), H, r, d, K)
            factor = load_rows(b, start, rows, h, HV, r)
            from_start = tl.full([C], 1.0, dtype=tl.float32)
            if GATE == 1:
                from_start = decay(tl.load(G + chunk * C + r))
            Yt *= (factor * from_start)[:, None]
            dO = dO.to(tl.float32) * (scale * from_start)[:, None]
        if GATE > 0:
            state *= total
        state = dot(qT, dO, state, OP, PREC)
        state = dot(kT, -Yt, state, OP, PREC)
        local = next_local
        total = next_total
    if HAS_STATE:
        at, inside = _state_tile(dh0, n, h, HV, K, V, d, e, V_FIRST)
        tl.store(at, state, mask=inside)


@triton.jit(do_not_specialize=["T", "NT", "scale"])
def _passes(
    q, k, b, do, G, W_hat, U_hat, K_t, h0, S, U, ht, Y_hat, K_hat, Q_g, K_b, dht, dS, Y, dh0,
    table, firsts, scale, T, NT,
    H, HV, K, V, C: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr, BV: tl.constexpr, GATE: tl.constexpr, STORED: tl.constexpr,
    FORWARD: tl.constexpr, REVERSE: tl.constexpr, HAS_STATE: tl.constexpr, FINAL: tl.constexpr,
    HAS_DHT: tl.constexpr, V_FIRST: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Either pass or, where both are asked for, both side by side."""
    pid = tl.program_id(0)
    reverse = REVERSE
    if FORWARD and REVERSE:
        reverse = pid % 2 == 1
        pid = pid // 2
    NV: tl.constexpr = VP // BV
    vt = pid % NV
    n, h = pid // NV // HV, pid // NV % HV
    if reverse:
        _reverse_states(
            n, h, vt, q, k, b, do, G, Y_hat, K_hat, Q_g, K_b, dht, dS, Y, dh0, table, firsts, scale,
            T, NT, H, HV, K, V, C, KP, VP, BV, GATE, STORED, HAS_DHT, V_FIRST, HAS_STATE, OP, PREC,
            PACKED,
        )  # fmt: skip
    else:
        _states(
            n, h, vt, k, G, W_hat, U_hat, K_t, h0, S, U, ht, table, firsts, T, NT, H, HV, K, V, C,
            KP, VP, BV, GATE, HAS_STATE, V_FIRST, FINAL, OP, PREC, PACKED,
        )  # fmt: skip
