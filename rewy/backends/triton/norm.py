"""Rows of q and k: their l2norm, and the gradients of rows from those of the value heads that share
them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rewy.backends.eager.activations import L2NORM_EPS
from rewy.backends.triton.configs import Config
from rewy.backends.triton.start import start
from rewy.backends.triton.tiles import padded

EPS = tl.constexpr(L2NORM_EPS)
ELEMENTS = 4096  # a program's


@triton.jit
def _rows(rows, D, DP: tl.constexpr, R: tl.constexpr):
    """A program's R rows of ``[rows, D]``: their numbers (int64), where they lie, which exist."""
    r, d = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, DP)
    return r, r[:, None] * D + d[None, :], (r < rows)[:, None] & (d < D)[None, :]


@triton.jit(do_not_specialize=["rows", "D"])
def _l2norm(x, y, rstd, rows, D, DP: tl.constexpr, R: tl.constexpr):
    """``y = rstd x``, ``rstd = 1 / sqrt(sum x^2 + 1e-6)``."""
    r, at, inside = _rows(rows, D, DP, R)
    xt = tl.load(x + at, mask=inside, other=0).to(tl.float32)
    root = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(xt * xt, 1) + EPS))
    tl.store(y + at, (xt * root[:, None]).to(y.dtype.element_ty), mask=inside)
    tl.store(rstd + r, root, mask=r < rows)


@triton.jit(do_not_specialize=["rows", "groups", "D"])
def _rows_adjoint(
    dy, x, rstd, dx, rows, groups, D, DP: tl.constexpr, R: tl.constexpr, NORM: tl.constexpr
):
    """``dx = sum dy`` over a row's groups or, where it was normalised, ``rstd (s - y (y . s))`` of
    that sum s with ``y = rstd x``.
    """
    r, at, inside = _rows(rows, D, DP, R)
    d = tl.arange(0, DP)
    s = tl.zeros([R, DP], dtype=tl.float32)
    for group in range(0, groups):
        own = (r * groups + group)[:, None] * D + d[None, :]
        s += tl.load(dy + own, mask=inside, other=0)
    if NORM:
        root = tl.load(rstd + r, mask=r < rows, other=0)[:, None]
        y = tl.load(x + at, mask=inside, other=0).to(tl.float32) * root
        s = root * (s - y * tl.sum(y * s, 1)[:, None])
    tl.store(dx + at, s.to(dx.dtype.element_ty), mask=inside)


def _launch(kernel, x: Tensor, arguments: list, **constants) -> None:
    """Launch for the rows of ``x [..., D]``."""
    DP = padded(x.shape[-1])
    R = ELEMENTS // DP
    rows = x.numel() // x.shape[-1]
    start(kernel, -(-rows // R), Config(0, 0, 4, 2), arguments, {"DP": DP, "R": R} | constants)


def l2norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x / sqrt(sum x^2 + 1e-6)`` over the last axis of a contiguous ``[B, T, H, K]``, in x's
    type, and the reciprocal root, float32 ``[B, T, H]``.
    """
    y = torch.empty_like(x)
    rstd = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    _launch(_l2norm, x, [x, y, rstd, rstd.numel(), x.shape[-1]])
    return y, rstd


def rows_adjoint(dy: Tensor, x: Tensor, rstd: Tensor | None) -> Tensor:
    """The gradient of ``x [B, T, H, K]``, in its type, from that of each value head, float32 ``[B,
    T, HV, K]``; through the l2norm unless ``rstd`` is None.
    """
    dx = torch.empty_like(x)
    rows, groups = x.numel() // x.shape[-1], dy.shape[2] // x.shape[2]
    given = rstd if rstd is not None else dy  # never touched
    _launch(_rows_adjoint, x, [dy, x, given, dx, rows, groups, x.shape[-1]], NORM=rstd is not None)
    return dx
