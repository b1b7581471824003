"""Raw inputs to what the recurrence takes: l2norm of q and k, the gate's activation, sigmoids of
beta.

Each forward has its adjoint beside it. All work in the compute type on ``[B, T, H, D]`` and are
finite wherever the result is: products of a huge and a tiny factor are formed as one exponential.
Rows of q and k whose squares leave the compute type's range (1e19 in float32) normalise to 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

L2NORM_EPS = 1e-6  # flash-linear-attention's, forward and backward


def l2norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """``y = x / sqrt(sum x^2 + 1e-6)`` over the last axis, and the reciprocal root."""
    rstd = (x.square().sum(-1, keepdim=True) + L2NORM_EPS).rsqrt()
    return x * rstd, rstd


def l2norm_adjoint(dy: Tensor, y: Tensor, rstd: Tensor) -> Tensor:
    """``dx = rstd (dy - y (y . dy))``."""
    return rstd * (dy - y * (y * dy).sum(-1, keepdim=True))


def beta_sigmoid(x: Tensor, neg_eigval: bool) -> Tensor:
    """``sigmoid(x)``, doubled where negative eigenvalues are allowed."""
    return x.sigmoid() * 2 if neg_eigval else x.sigmoid()


def beta_sigmoid_adjoint(dy: Tensor, x: Tensor, neg_eigval: bool) -> Tensor:
    """``dx = sigmoid(x) sigmoid(-x) dy``: the product, since 1 - sigmoid(x) loses all digits for
    large x.
    """
    dx = dy * x.sigmoid() * (-x).sigmoid()
    return dx * 2 if neg_eigval else dx


def _times_exp(A_log: Tensor | None, factor: Tensor, log_factor: Tensor) -> Tensor:
    """``exp(A_log) factor`` for factor >= 0; None stands for A_log = 0.

    By logarithms where one of the two leaves the range and the product may not: a sum of large
    logarithms errs by as much as they are large, so everywhere else it is a product.
    """
    if A_log is None:
        return factor
    scale = A_log.exp()
    small = torch.finfo(factor.dtype).tiny
    in_range = scale.isfinite() & (scale >= small) & (factor >= small)
    return torch.where(in_range, scale * factor, (A_log + log_factor).exp())


def _softplus(x: Tensor) -> tuple[Tensor, Tensor]:
    """softplus(x) and its logarithm; below -40 it is exp(x) to the last bit."""
    y = x.clamp(min=0) + (-x.abs()).exp().log1p()
    return y, torch.where(x < -40, x, y.log())


def gate(
    x: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None
) -> Tensor:
    """The log decay of a raw gate.

    ``-exp(A_log) softplus(x + dt_bias)``, or with a lower bound
    ``lower_bound sigmoid(exp(A_log) (x + dt_bias))``. x is ``[B, T, HV, 1 or K]``; A_log is
    ``[HV, 1]`` or None (then 0); dt_bias is ``[HV, 1 or K]`` or None.
    """
    if dt_bias is not None:
        x = x + dt_bias
    if lower_bound is not None:
        return lower_bound * _bounded_argument(x, A_log).sigmoid()
    return -_times_exp(A_log, *_softplus(x))


def _bounded_argument(x: Tensor, A_log: Tensor | None) -> Tensor:
    """``exp(A_log) x``."""
    return x.sign() * _times_exp(A_log, x.abs(), x.abs().log())


def gate_adjoint(
    dg: Tensor, x: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None
) -> tuple[Tensor, Tensor]:
    """Adjoints of x (and so of dt_bias) and of A_log, before their sums; shaped as ``dg``.

    A gate of -inf has decay 0, and 0 times any factor of its own is the limit: both adjoints are 0
    wherever dg is.
    """
    if dt_bias is not None:
        x = x + dt_bias
    if lower_bound is not None:
        z = _bounded_argument(x, A_log)
        slope, log_slope = z.sigmoid() * (-z).sigmoid(), F.logsigmoid(z) + F.logsigmoid(-z)
        dx = lower_bound * dg * _times_exp(A_log, slope, log_slope)
        log_x = x.abs().log()
        dA = lower_bound * dg * x.sign() * _times_exp(A_log, slope * x.abs(), log_slope + log_x)
        dA = dA.masked_fill(z.isinf(), 0)  # saturated, whatever the factor
    else:
        dx = -dg * _times_exp(A_log, x.sigmoid(), F.logsigmoid(x))  # softplus' is the sigmoid
        dA = -dg * _times_exp(A_log, *_softplus(x))
    return dx.masked_fill(dg == 0, 0), dA.masked_fill(dg == 0, 0)
