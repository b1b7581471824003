"""Raw-input options in floating point: key norm, gate, sigmoid of beta, and their adjoints.

Each function returns the activated array and a pullback, the map from its adjoint to the raw
inputs' adjoints. They are finite wherever the true values are: products of a huge and a vanishing
factor are taken in the log domain.
"""

from __future__ import annotations

import numpy as np

EPSILON = 1e-6  # added to the sum of squares, forward and backward alike


def l2norm(x, arithmetic):
    """y = x / sqrt(sum x^2 + 1e-6) over the last axis, x [..., K]; pullback dy -> dx."""
    r = arithmetic.accumulate(1 / np.sqrt(arithmetic.sum(x * x, -1) + EPSILON))
    y = arithmetic.store(x * r)

    def pullback(dy):
        dy = arithmetic.store(dy)
        return r * (dy - arithmetic.accumulate(y * arithmetic.sum(y * dy, -1)))

    return y, pullback


def beta_sigmoid(x, top, arithmetic):
    """y = top * sigmoid(x); pullback dy -> dx."""
    y = arithmetic.store(top * sigmoid(x))

    def pullback(dy):
        return arithmetic.store(dy) * (top * sigmoid(x) * sigmoid(-x))

    return y, pullback


def gate(x, A_log, dt_bias):
    """g = -exp(A_log) softplus(x + dt_bias), natural log; all arrays broadcast against x.

    Returns g and a pullback dg -> (dx, dA_log), both in x's shape and not yet summed; dx is
    dt_bias's adjoint too.
    """
    u = x if dt_bias is None else x + dt_bias
    g = -np.exp(A_log + log_softplus(u))
    slope = -np.exp(A_log - np.logaddexp(0, -u))  # dg/du, with log sigmoid(u) = -softplus(-u)
    return g, lambda dg: (vanishing(dg, slope), vanishing(dg, g))


def bounded_gate(x, A_log, dt_bias, lower_bound, arithmetic):
    """g = lower_bound * sigmoid(exp(A_log) (x + dt_bias)), with exp(A_log) = 1 when A_log is None.

    Returns g and a pullback dg -> (dx, dA_log), as `gate` does.
    """
    u = x if dt_bias is None else x + dt_bias
    rate = np.ones_like(u) if A_log is None else np.exp(A_log)
    z = arithmetic.accumulate(rate * u)  # the slope's exponential magnifies its error
    slope = lower_bound * sigmoid(z) * sigmoid(-z)  # dg/dz
    return lower_bound * sigmoid(z), lambda dg: (
        vanishing(dg * slope, rate),
        vanishing(dg * slope, z),
    )


def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow, with full relative accuracy on both sides."""
    return np.exp(-np.logaddexp(0, -x))


def log_softplus(u):
    """log log(1 + exp u), which tends to u on the left where softplus itself underflows."""
    # log1p(e^u) = e^u (1 - e^u / 2 + e^2u / 3 ...), whose third term is below 1e-26 from here on.
    far = u < -30
    left = np.where(far, u, -30)
    right = np.where(far, 0, u)
    return np.where(far, left + np.log1p(-np.exp(left) / 2), np.log(np.logaddexp(0, right)))


def vanishing(d, factor):
    """d * factor with 0 * inf = 0.

    d carries a decay exp(g), which vanishes faster than any such factor grows.
    """
    return np.where(d == 0, 0, d * factor)
