"""The two sequential passes: states forward, their adjoints backward, one program a sequence, head
and tile of value channels.

They need nothing of each other: the adjoint of the residuals comes from ``Y_hat`` and ``K_hat``. A
backward that recomputes the states can therefore run both at once, each on half of the machine.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import (
    add_dot,
    decay,
    dot,
    keep,
    load_tokens,
    load_tokens_t,
    minus_dot,
    operand,
    tile,
    tile_t,
)

# Not worth a compiled form of their own.
NUMBERS = [
    "scale", "T", "NT", "H", "HV", "K", "V", "PACKED", "HAS_STATE", "FINAL", "HAS_DHT", "V_FIRST",
]  # fmt: skip


@triton.jit
def _sequence(n, starts, firsts, T, NT, PACKED):
    """First chunk, chunks, first token and tokens of sequence n."""
    first, chunks = n.to(tl.int64) * NT, NT
    start, tokens = n.to(tl.int64) * T, T
    if PACKED:
        first, start = tl.load(firsts + n), tl.load(starts + n)
        chunks = (tl.load(firsts + n + 1) - first).to(tl.int32)
        tokens = (tl.load(starts + n + 1) - start).to(tl.int32)
    return first, chunks, start, tokens


@triton.jit
def _last(G, chunk, d, GATE: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, there):
    """A chunk's last gate sum, ``[1]``, or ``[KP]`` with one a key channel; 0 where none is there.

    It is asked for a step before it is wanted, and what is made of it a step later: at once, and
    the step would wait for memory.
    """
    if GATE == 0:
        last = tl.zeros([1], dtype=tl.float32)
    elif GATE == 1:
        last = tl.load(G + chunk * C + C - 1 + tl.arange(0, 1), mask=there, other=0)
    else:
        last = tl.load(G + chunk * (C * KP) + (C - 1) * KP + d, mask=there, other=0)
    return last


@triton.jit
def _rows(x, chunk, r, C: tl.constexpr, there):
    """A chunk's number a row, ``[C]``; 0 where none is there."""
    return tl.load(x + chunk * C + r, mask=(r < C) & there, other=0)


@triton.jit
def _total(last, GATE: tl.constexpr):
    """Decay over the whole chunk, a factor of the state: ``[KP, 1]`` or ``[1, 1]``."""
    if GATE == 0:
        total = tl.full([1], 1.0, dtype=tl.float32)
    else:
        total = decay(last)
    return total[:, None]


@triton.jit
def _state_tile(x, n, h, HV, K, V, d, e, V_FIRST, there):
    """Addresses ``[d, e]`` of a state ``[N, HV, K, V]`` or ``[N, HV, V, K]``, and which exist."""
    x += (n.to(tl.int64) * HV + h) * (K * V)
    by_d, by_e = tl.where(V_FIRST != 0, 1, V), tl.where(V_FIRST != 0, K, 1)
    at = x + d[:, None] * by_d + e[None, :] * by_e
    return at, (d < K)[:, None] & (e < V)[None, :] & (there != 0)


@triton.jit
def _states(
    n, h, vt, k, G, W_hat, U_hat, K_t, h0, S, U, ht, starts, firsts, T, NT,
    H, HV, K, V, C: tl.constexpr,
    KP: tl.constexpr, VP, BV: tl.constexpr, GATE: tl.constexpr, DECAYED: tl.constexpr,
    HAS_STATE, V_FIRST, FINAL, OP: tl.constexpr,
    PREC: tl.constexpr, PACKED,
):  # fmt: skip
    """``U = U_hat - W_hat S_0``, ``S_1 = exp(G_C) S_0 + K_t^T U``, chunk after chunk. U may be
    where U_hat is: a tile is read before it is written. Unless ``DECAYED``, which says that K_t is
    there, not keys but U is decayed to the chunk's end.
    """
    first, chunks, start, tokens = _sequence(n, starts, firsts, T, NT, PACKED)
    r, d, e = tl.arange(0, C), tl.arange(0, KP), vt * BV + tl.arange(0, BV)
    at, inside = _state_tile(h0, n, h, HV, K, V, d, e, V_FIRST, HAS_STATE)
    state = tl.load(at, mask=inside, other=0).to(tl.float32)
    chunk = first * HV + h
    last = _last(G, chunk, d, GATE, C, KP, chunks > 0)
    if GATE == 1 and not DECAYED:
        Gr = _rows(G, chunk, r, C, chunks > 0)
    for i in range(0, chunks):
        before = operand(state, OP, PREC)
        tl.store(tile(S, chunk, KP, VP, d, e), state.to(S.dtype.element_ty))
        local = tl.load(tile(U_hat, chunk, C, VP, r, e))
        Wt = tl.load(tile(W_hat, chunk, C, KP, r, d))
        Ut = dot(Wt, before, tl.zeros([C, BV], dtype=tl.float32), OP, PREC)
        Ut = local.to(tl.float32) - Ut
        keep(tile(U, chunk, C, VP, r, e), Ut, PREC)
        if DECAYED:
            kT = tl.load(tile_t(K_t, chunk, C, KP, r, d))
        else:
            rows = tl.minimum(tokens - i * C, C)
            kT = load_tokens_t(k, start + i * C, rows, h // (HV // H), H, r, d, K)
        state *= _total(last, GATE)
        chunk += HV
        there = i + 1 < chunks
        if GATE == 1 and not DECAYED:
            Ut *= decay(last - Gr)[:, None]
            Gr = _rows(G, chunk, r, C, there)
        last = _last(G, chunk, d, GATE, C, KP, there)
        if PREC == "ieee":  # rounded into the state once a chunk, not once a token
            state = minus_dot(state, kT, -Ut, OP, PREC)
        else:
            state = dot(kT, operand(Ut, OP, PREC), state, OP, PREC)
    at, inside = _state_tile(ht, n, h, HV, K, V, d, e, V_FIRST, FINAL)
    tl.store(at, state, mask=inside)


@triton.jit
def _reverse_states(
    n, h, vt, k, do, G, Y_hat, K_hat, Q_g, K_b, b_g, dht, dS, Y, dh0, starts, firsts, T, NT,
    H, HV, K, V, C: tl.constexpr,
    KP: tl.constexpr, VP, BV: tl.constexpr, GATE: tl.constexpr, FACTOR: tl.constexpr,
    HAS_DHT, V_FIRST, HAS_STATE, OP: tl.constexpr,
    PREC: tl.constexpr, PACKED,
):  # fmt: skip
    """``Y = Y_hat + K_hat dS_1``, ``dS_0 = exp(G_C) dS_1 + Q_g^T dO - K_b^T Y``, last chunk first,
    with ``Q_g = scale Q * exp(G)``. Y may be where Y_hat is, as above. If ``FACTOR``, not keys but
    Y is multiplied by what makes them decayed erase keys.
    """
    first, chunks, start, tokens = _sequence(n, starts, firsts, T, NT, PACKED)
    r, d, e = tl.arange(0, C), tl.arange(0, KP), vt * BV + tl.arange(0, BV)
    at, inside = _state_tile(dht, n, h, HV, K, V, d, e, V_FIRST, HAS_DHT)
    state = tl.load(at, mask=inside, other=0).to(tl.float32)
    chunk = (first + chunks - 1) * HV + h
    last = _last(G, chunk, d, GATE, C, KP, chunks > 0)
    if FACTOR:
        factor = _rows(b_g, chunk, r, C, chunks > 0)
    for step in range(0, chunks):
        i = chunks - 1 - step
        after = operand(state, OP, PREC)
        tl.store(tile(dS, chunk, KP, VP, d, e), state.to(dS.dtype.element_ty))
        local = tl.load(tile(Y_hat, chunk, C, VP, r, e))
        Kt = tl.load(tile(K_hat, chunk, C, KP, r, d))
        # -Y, as the state wants it; as a sum with Y_hat it would start from Y_hat in registers,
        # which the compiler then does not load ahead.
        Yt = -1.0 * local.to(tl.float32) - dot(
            Kt, after, tl.zeros([C, BV], dtype=tl.float32), OP, PREC
        )
        keep(tile(Y, chunk, C, VP, r, e), -1.0 * Yt, PREC)
        rows = tl.minimum(tokens - i * C, C)
        dO = load_tokens(do, start + i * C, rows, h, HV, r, e, V)
        qT = tl.load(tile_t(Q_g, chunk, C, KP, r, d))
        state *= _total(last, GATE)
        if FACTOR:
            kT = load_tokens_t(k, start + i * C, rows, h // (HV // H), H, r, d, K)
            Yt *= factor[:, None]
        else:
            kT = tl.load(tile_t(K_b, chunk, C, KP, r, d))
        chunk -= HV
        if FACTOR:
            factor = _rows(b_g, chunk, r, C, i > 0)
        last = _last(G, chunk, d, GATE, C, KP, i > 0)
        if PREC == "ieee":  # as in the forward pass
            added = dot(qT, dO, tl.zeros_like(state), OP, PREC)
            state += add_dot(added, kT, Yt, OP, PREC)
        else:
            state = dot(qT, dO, state, OP, PREC)
            state = dot(kT, operand(Yt, OP, PREC), state, OP, PREC)
    at, inside = _state_tile(dh0, n, h, HV, K, V, d, e, V_FIRST, HAS_STATE)
    tl.store(at, state, mask=inside)


@triton.jit(do_not_specialize=NUMBERS)
def _passes(
    k, do, G, W_hat, U_hat, K_t, h0, S, U, ht, Y_hat, K_hat, Q_g, K_b, b_g, dht, dS, Y,
    dh0, starts, firsts, T, NT,
    H, HV, K, V, C: tl.constexpr,
    KP: tl.constexpr, VP, BV: tl.constexpr, GATE: tl.constexpr, DECAYED: tl.constexpr,
    FACTOR: tl.constexpr, FORWARD: tl.constexpr, REVERSE: tl.constexpr, HAS_STATE, FINAL,
    HAS_DHT, V_FIRST, OP: tl.constexpr, PREC: tl.constexpr,
    PACKED,
):  # fmt: skip
    """Either pass or, where both are asked for, both side by side."""
    pid = tl.program_id(0)
    reverse = REVERSE
    if FORWARD and REVERSE:
        reverse = pid % 2 == 1
        pid = pid // 2
    NV = VP // BV
    vt = pid % NV
    n, h = pid // NV // HV, pid // NV % HV
    if reverse:
        _reverse_states(
            n, h, vt, k, do, G, Y_hat, K_hat, Q_g, K_b, b_g, dht, dS, Y, dh0, starts, firsts, T, NT,
            H, HV, K, V, C, KP, VP, BV, GATE, FACTOR, HAS_DHT, V_FIRST, HAS_STATE, OP, PREC,
            PACKED,
        )  # fmt: skip
    else:
        _states(
            n, h, vt, k, G, W_hat, U_hat, K_t, h0, S, U, ht, starts, firsts, T, NT, H, HV, K, V, C,
            KP, VP, BV, GATE, DECAYED, HAS_STATE, V_FIRST, FINAL, OP, PREC, PACKED,
        )  # fmt: skip
