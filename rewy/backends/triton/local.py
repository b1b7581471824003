"""What else is local to a chunk before the states are known, and parallel over chunks.

Forward: the solved halves of the residual system, ``U = U_hat - W_hat S_0`` with ``U_hat = A (w *
V)`` and ``W_hat = A K_b``. Backward: the halves of its adjoint, ``Y = Y_hat + K_hat dS_1`` with
``Y_hat = A^T P^T dO`` and ``K_hat = A^T K_t``. So each step of the state passes is left with its
own products only.
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
    minus_dot,
    operand,
    place,
    tile,
    tile_t,
)


@triton.jit
def _erase(b, start, rows, h, HV, r, d, K, B_CHANNEL: tl.constexpr):
    """b as a factor of ``[C, BK]`` keys."""
    if B_CHANNEL:
        factor = load_tokens(b, start, rows, h, HV, r, d, K).to(tl.float32)
    else:
        factor = load_rows(b, start, rows, h, HV, r)[:, None]
    return factor


@triton.jit
def _unit_dot(A, x, r, OP: tl.constexpr, PREC: tl.constexpr):
    """``A @ x`` for A with ones on the diagonal, to which float32 products are added last: in
    between, a large x would round every small product to its own digits.
    """
    x = operand(x, OP, PREC)
    if PREC == "ieee":
        found = minus_dot(x, tl.where(r[:, None] == r[None, :], 0.0, -A), x, OP, PREC)
    else:
        found = dot(A, x, tl.zeros([A.shape[0], x.shape[1]], dtype=tl.float32), OP, PREC)
    return found


@triton.jit
def _sums(G, chunk, r, d, GATE: tl.constexpr, C: tl.constexpr, KP):
    """The chunk's gate sums as a factor's exponent: ``[C, 1]`` or ``[C, BK]``, and its last row."""
    if GATE == 2:
        Gt = tl.load(tile(G, chunk, C, KP, r, d))
        last = tl.load(G + chunk * (C * KP) + (C - 1) * KP + d)[None, :]
    else:
        Gt = tl.load(G + chunk * C + r)[:, None]
        last = tl.load(G + chunk * C + C - 1)
    return Gt, last


@triton.jit(do_not_specialize=["T", "NT", "PACKED", "scale", "H", "HV", "K", "V"])
def _local(
    q, k, v, b, w, do, G, A, P, W_hat, U_hat, K_t, Y_hat, K_hat, Q_g, K_b, b_g, table, scale, T, NT,
    H, HV, K, V, C: tl.constexpr,
    KP, VP, BK: tl.constexpr, BV: tl.constexpr, GATE: tl.constexpr,
    FORWARD: tl.constexpr, REVERSE: tl.constexpr, DECAYED: tl.constexpr, FACTOR: tl.constexpr,
    B_CHANNEL: tl.constexpr, W_CHANNEL: tl.constexpr, OP: tl.constexpr, PREC: tl.constexpr,
    PACKED,
):  # fmt: skip
    """``FORWARD``: W_hat, U_hat and, if ``DECAYED``, K_t. ``REVERSE``: Y_hat, K_hat, the decayed
    queries and the decayed erase keys or, if ``FACTOR``, by what each row of keys is multiplied for
    them. A backward that recomputes wants both, of the same keys.

    P is read with a channel gate; else it costs less to multiply out anew, as its transpose, which
    is what is wanted here.
    """
    chunk, h, start, rows = place(tl.program_id(0), HV, table, T, NT, C, PACKED)
    hk = h // (HV // H)
    r = tl.arange(0, C)
    if FORWARD:
        At = tl.load(tile(A, chunk, C, C, r, r))
    if REVERSE:
        AT = tl.load(tile_t(A, chunk, C, C, r, r))
        PT = tl.zeros([C, C], dtype=tl.float32)
    for kt in range(0, KP, BK):
        d = kt + tl.arange(0, BK)
        kt_ = load_tokens(k, start, rows, hk, H, r, d, K)
        k_t = kt_.to(tl.float32)
        kb = k_t * _erase(b, start, rows, h, HV, r, d, K, B_CHANNEL)
        if GATE > 0:
            Gt, last = _sums(G, chunk, r, d, GATE, C, KP)
            kb *= decay(Gt)
            k_t *= decay(last - Gt)
        if FORWARD:
            if DECAYED:
                keep(tile(K_t, chunk, C, KP, r, d), k_t, PREC)
            W = _unit_dot(At, kb, r, OP, PREC)
            keep(tile(W_hat, chunk, C, KP, r, d), W, PREC)
        if REVERSE:
            if not FACTOR:
                keep(tile(K_b, chunk, C, KP, r, d), kb, PREC)
            qg = load_tokens(q, start, rows, hk, H, r, d, K).to(tl.float32) * scale
            if GATE > 0:
                qg *= decay(Gt)
            keep(tile(Q_g, chunk, C, KP, r, d), qg, PREC)
            if GATE < 2:
                PT = dot(kt_, load_tokens_t(q, start, rows, hk, H, r, d, K), PT, OP, PREC)
            X = _unit_dot(AT, k_t, r, OP, PREC)
            keep(tile(K_hat, chunk, C, KP, r, d), X, PREC)
    if REVERSE:
        if GATE == 1:
            Gr = tl.load(G + chunk * C + r)
        if FACTOR:
            factor = load_rows(b, start, rows, h, HV, r)
            if GATE == 1:
                factor *= decay(Gr)
            tl.store(b_g + chunk * C + r, factor)
        if GATE == 2:
            PT = tl.load(tile_t(P, chunk, C, C, r, r)).to(tl.float32)
        else:
            PT *= scale
            if GATE == 1:
                PT *= decay(Gr[None, :] - Gr[:, None])
            PT = tl.where(r[:, None] <= r[None, :], PT, 0.0)
    for vt in range(0, VP, BV):
        d = vt + tl.arange(0, BV)
        if FORWARD:
            R = load_tokens(v, start, rows, h, HV, r, d, V).to(tl.float32)
            if W_CHANNEL:
                R *= load_tokens(w, start, rows, h, HV, r, d, V).to(tl.float32)
            else:
                R *= load_rows(b, start, rows, h, HV, r)[:, None]
            U = _unit_dot(At, R, r, OP, PREC)
            tl.store(tile(U_hat, chunk, C, VP, r, d), U.to(U_hat.dtype.element_ty))
        if REVERSE:
            dO = load_tokens(do, start, rows, h, HV, r, d, V)
            X = dot(operand(PT, OP, PREC), dO, tl.zeros([C, BV], dtype=tl.float32), OP, PREC)
            Y = _unit_dot(AT, X, r, OP, PREC)
            tl.store(tile(Y_hat, chunk, C, VP, r, d), Y.to(Y_hat.dtype.element_ty))
