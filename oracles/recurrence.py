"""The recurrence token by token, and its adjoint derived by hand: the definition.

S'_t = Diag(gamma_t) S_{t-1}                    decay
r_t  = w_t * v_t - (b_t * k_t)^T S'_t           residual: write minus erase
S_t  = S'_t + k_t r_t^T
o_t  = scale S_t^T q_t
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .numbers import sum_to, zero


class Gradients(NamedTuple):
    """Adjoints of the inputs, each in its input's shape (broadcast last axes summed).

    dg is with respect to the log gate: gamma * d gamma, hence 0 where gamma is 0.
    """

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dg: np.ndarray
    db: np.ndarray
    dw: np.ndarray
    dS0: np.ndarray


def forward(q, k, v, gamma, b, w, S0, scale):
    """Outputs and final state of one sequence.

    q, k: [..., T, K]; v: [..., T, V]; S0: [..., K, V]; scale: an element. Leading axes broadcast.
    gamma, b: [..., T, K or 1]; w: [..., T, V or 1]. gamma are factors exp(g), not logarithms.
    Returns o [..., T, V] and S_T [..., K, V]. Source: docs/method.md, one recurrence.
    """
    o = _tokens(v, S0)
    S = S0
    for t in range(q.shape[-2]):
        S, _ = _step(_at(t, k, v, gamma, b, w), S)
        o[..., t, :] = scale * _left(q[..., t, :], S)
    return o, S


def backward(q, k, v, gamma, b, w, S0, scale, do, dS) -> Gradients:
    """Adjoints given do [..., T, V] and dS [..., K, V], those of o and S_T.

    Other arguments as in `forward`.
    """
    T = q.shape[-2]
    before, residuals = [], []
    S = S0
    for t in range(T):
        before.append(S)
        S, r = _step(_at(t, k, v, gamma, b, w), S)
        residuals.append(r)
    dq, dk, dv = _tokens(q, S0), _tokens(k, S0), _tokens(v, S0)
    dg, db, dw = _tokens(gamma, S0), _tokens(b, S0), _tokens(w, S0)
    for t in reversed(range(T)):
        k_t, v_t, gamma_t, b_t, w_t = _at(t, k, v, gamma, b, w)
        q_t, do_t, r = q[..., t, :], do[..., t, :], residuals[t]
        decayed = gamma_t[..., None] * before[t]
        dq[..., t, :] = scale * _right(decayed + _outer(k_t, r), do_t)
        dS = dS + scale * _outer(q_t, do_t)
        dr = _left(k_t, dS)
        erase = -_right(decayed, dr)  # adjoint of b * k
        dk[..., t, :] = _right(dS, r) + b_t * erase
        dv[..., t, :] = w_t * dr
        dw[..., t, :] = sum_to(v_t * dr, w.shape[-1])
        db[..., t, :] = sum_to(k_t * erase, b.shape[-1])
        dS = dS - _outer(b_t * k_t, dr)
        dg[..., t, :] = gamma_t * sum_to((before[t] * dS).sum(axis=-1), gamma.shape[-1])
        dS = gamma_t[..., None] * dS
    return Gradients(dq, dk, dv, dg, db, dw, dS)


def _step(token, S):
    """One token: the state after it and its residual r."""
    k, v, gamma, b, w = token
    S = gamma[..., None] * S
    r = w * v - _left(b * k, S)
    return S + _outer(k, r), r


def _at(t, *arrays):
    return tuple(x[..., t, :] for x in arrays)


def _tokens(x, S0):
    """An array for results of x's token and last axis, with the state's leading axes."""
    leading = np.broadcast_shapes(x.shape[:-2], S0.shape[:-2])
    return np.full((*leading, *x.shape[-2:]), np.asarray(zero(S0)), dtype=S0.dtype)


def _left(x, S):
    return (x[..., None, :] @ S)[..., 0, :]


def _right(S, x):
    return (S @ x[..., None])[..., 0]


def _outer(x, y):
    return x[..., :, None] * y[..., None, :]
