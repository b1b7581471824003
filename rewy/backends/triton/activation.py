"""Raw gates and strengths: their activations and the adjoints of these, element by element.

The formulas, and why they are formed as they are, stand in rewy/backends/eager/activations.py.
Beside float32 products they are evaluated in float64, since the exponential of a GPU errs by more
than float32 rounds.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rewy.backends.triton.configs import Config
from rewy.backends.triton.start import start

ROWS = 16  # tokens a tile
STEPS = 16  # tiles a program of the adjoint, which sums over tokens
ELEMENTS = 1024  # a program's, of strengths


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _log1p(x):
    """``log(1 + x)`` for x from 0 to 1: the rounding of 1 + x cancels."""
    y = 1 + x
    return tl.where(y == 1, x, tl.log(y) * (x / tl.where(y == 1, 1, y - 1)))


@triton.jit
def _log_sigmoid(x):
    return tl.where(x < 0, x, 0) - _log1p(tl.exp(-tl.abs(x)))


@triton.jit
def _softplus(x):
    """softplus(x) and its logarithm; far below 0 it is exp(x) to the last bit."""
    y = tl.where(x > 0, x, 0) + _log1p(tl.exp(-tl.abs(x)))
    return y, tl.where(x < -40, x, tl.log(tl.where(x < -40, 1, y)))


@triton.jit
def _times_exp(A, factor, log_factor, HAS_A: tl.constexpr):
    """``exp(A) factor``, by logarithms where one of the two leaves the range."""
    if HAS_A:
        scale = tl.exp(A) + tl.zeros_like(factor)
        small = 1.1754943508222875e-38
        in_range = (scale < float("inf")) & (scale >= small) & (factor >= small)
        product = tl.where(in_range, scale, 1) * tl.where(in_range, factor, 1)
        factor = tl.where(in_range, product, tl.exp(A + log_factor))
    return factor


@triton.jit
def _argument(x, A, HAS_A: tl.constexpr):
    """``exp(A) x``, the argument of a bounded gate's sigmoid."""
    size = tl.abs(x)
    product = _times_exp(A, size, tl.log(size), HAS_A)
    return tl.where(x < 0, -product, product)


@triton.jit
def _columns(width, COLUMNS: tl.constexpr):
    """A program's place among tiles of tokens, and its columns of ``[rows, width]``."""
    parts = (width + COLUMNS - 1) // COLUMNS
    pid = tl.program_id(0)
    return (pid // parts).to(tl.int64), (pid % parts) * COLUMNS + tl.arange(0, COLUMNS)


@triton.jit
def _inputs(
    x, A_log, dt_bias, r, e, rows, width, D, COLUMNS: tl.constexpr,
    HAS_A: tl.constexpr, HAS_BIAS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Biased raw gates of a tile, ``A_log`` of its columns, where it lies and what of it exists."""
    at, inside = r[:, None] * width + e[None, :], (r < rows)[:, None] & (e < width)[None, :]
    xt = tl.load(x + at, mask=inside, other=0).to(WIDE)
    A = tl.zeros([1, COLUMNS], dtype=WIDE)
    if HAS_BIAS:
        xt += tl.load(dt_bias + e, mask=e < width, other=0).to(WIDE)[None, :]
    if HAS_A:
        A = tl.load(A_log + e // D, mask=e < width, other=0).to(WIDE)[None, :]
    return xt, A, at, inside


@triton.jit(do_not_specialize=["rows", "width", "D", "lower_bound"])
def _gate(
    x, A_log, dt_bias, g, lower_bound, rows, width, D,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BOUNDED: tl.constexpr,
    HAS_A: tl.constexpr, HAS_BIAS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The log decays of raw gates."""
    part, e = _columns(width, COLUMNS)
    r = part * ROWS + tl.arange(0, ROWS)
    xt, A, at, inside = _inputs(
        x, A_log, dt_bias, r, e, rows, width, D, COLUMNS, HAS_A, HAS_BIAS, WIDE
    )
    if BOUNDED:
        y = lower_bound * _sigmoid(_argument(xt, A, HAS_A))
    else:
        soft, log_soft = _softplus(xt)
        y = -_times_exp(A, soft, log_soft, HAS_A)
    tl.store(g + at, y.to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["rows", "width", "D", "lower_bound"])
def _gate_adjoint(
    dg, x, A_log, dt_bias, dx, dA_sums, dx_sums, lower_bound, rows, width, D,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, BOUNDED: tl.constexpr,
    HAS_A: tl.constexpr, HAS_BIAS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Adjoints of raw gates, and sums over this program's tokens of those of A_log and dt_bias. A
    gate that decays to 0 passes nothing on, whatever its factors: dg is 0 there.
    """
    part, e = _columns(width, COLUMNS)
    dA_sum = tl.zeros([COLUMNS], dtype=WIDE)
    dx_sum = dA_sum
    for step in range(0, STEPS):
        r = (part * STEPS + step) * ROWS + tl.arange(0, ROWS)
        xt, A, at, inside = _inputs(
            x, A_log, dt_bias, r, e, rows, width, D, COLUMNS, HAS_A, HAS_BIAS, WIDE
        )
        d = tl.load(dg + at, mask=inside, other=0).to(WIDE)
        if BOUNDED:
            z = _argument(xt, A, HAS_A)
            slope, log_slope = _sigmoid(z) * _sigmoid(-z), _log_sigmoid(z) + _log_sigmoid(-z)
            size = tl.abs(xt)
            d *= lower_bound  # first: the other factor may be as large as float32 holds
            by_x = _times_exp(A, slope, log_slope, HAS_A)
            by_A = _times_exp(A, slope * size, log_slope + tl.log(size), HAS_A)
            by_A = tl.where(tl.abs(z) < float("inf"), by_A, 0)  # saturated, whatever the factor
            by_A = tl.where(xt < 0, -by_A, by_A)
        else:
            soft, log_soft = _softplus(xt)
            by_x = -_times_exp(A, _sigmoid(xt), _log_sigmoid(xt), HAS_A)
            by_A = -_times_exp(A, soft, log_soft, HAS_A)
        of_x, of_A = tl.where(d == 0, 0, d * by_x), tl.where(d == 0, 0, d * by_A)
        tl.store(dx + at, of_x.to(dx.dtype.element_ty), mask=inside)
        dx_sum += tl.sum(of_x, 0)
        dA_sum += tl.sum(of_A, 0)
    at = part * width + e
    if HAS_A:
        tl.store(dA_sums + at, dA_sum, mask=e < width)
    if HAS_BIAS:
        tl.store(dx_sums + at, dx_sum, mask=e < width)


@triton.jit(do_not_specialize=["numbers", "times"])
def _strengths(x, y, times, numbers, ELEMENTS: tl.constexpr, WIDE: tl.constexpr):
    """``y = times sigmoid(x)``."""
    i = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    xt = tl.load(x + i, mask=i < numbers, other=0).to(WIDE)
    tl.store(y + i, (times * _sigmoid(xt)).to(y.dtype.element_ty), mask=i < numbers)


@triton.jit(do_not_specialize=["numbers", "times"])
def _strengths_adjoint(dy, x, dx, times, numbers, ELEMENTS: tl.constexpr, WIDE: tl.constexpr):
    """``dx = times sigmoid(x) sigmoid(-x) dy``."""
    i = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    xt = tl.load(x + i, mask=i < numbers, other=0).to(WIDE)
    d = tl.load(dy + i, mask=i < numbers, other=0).to(WIDE)
    found = times * (d * _sigmoid(xt) * _sigmoid(-xt))
    tl.store(dx + i, found.to(dx.dtype.element_ty), mask=i < numbers)


class Gate:
    """A raw gate's activation.

    x: ``[B, T, HV, D]``, contiguous, D = 1 or K. A_log: ``[HV]`` or None. dt_bias: ``[HV]`` or
    ``[HV * D]``, in any shape, or None. lower_bound: below 0, or None. wide: whether float64.
    """

    def __init__(
        self,
        x: Tensor,
        A_log: Tensor | None,
        dt_bias: Tensor | None,
        lower_bound: float | None,
        wide: bool,
    ):
        self.x, self.A_log, self.dt_bias = x, A_log, dt_bias
        self.rows, self.width = x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]
        parameters = (x if y is None else y.contiguous() for y in (A_log, dt_bias))
        self._read = [x, *parameters]
        bound = -1.0 if lower_bound is None else float(lower_bound)
        self._numbers = [bound, self.rows, self.width, x.shape[3]]
        self._constants = {
            "ROWS": ROWS, "COLUMNS": 16 if self.width <= 64 else 128,
            "BOUNDED": lower_bound is not None, "HAS_A": A_log is not None,
            "HAS_BIAS": dt_bias is not None, "WIDE": tl.float64 if wide else tl.float32,
        }  # fmt: skip

    def _start(self, kernel: Any, parts: int, arguments: list[Tensor], **more: int) -> None:
        """``parts``: how many programs share the tokens."""
        columns = -(-self.width // self._constants["COLUMNS"])
        start(
            kernel, parts * columns, Config(0, 0, 4, 2), [*arguments, *self._numbers],
            self._constants | more,
        )  # fmt: skip

    def forward(self) -> Tensor:
        """The log decay, float32, in x's shape."""
        g = torch.empty(self.x.shape, dtype=torch.float32, device=self.x.device)
        self._start(_gate, -(-self.rows // ROWS), [*self._read, g])
        return g

    def adjoint(self, dg: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of x, A_log and dt_bias from ``dg``, float32 in x's shape; each in its tensor's
        shape and type, None where that is.
        """
        dx, parts = torch.empty_like(self.x), -(-self.rows // (ROWS * STEPS))
        wide = torch.float64 if self._constants["WIDE"] == tl.float64 else torch.float32
        sums = [
            dx if y is None else dx.new_empty(parts, self.width, dtype=wide)
            for y in (self.A_log, self.dt_bias)
        ]
        self._start(_gate_adjoint, parts, [dg, *self._read, dx, *sums], STEPS=STEPS)
        A_log, dt_bias = self.A_log, self.dt_bias
        if A_log is not None:
            A_log = sums[0].sum(0).view(self.x.shape[2], -1).sum(1).to(A_log.dtype)
        if dt_bias is not None:
            dt_bias = sums[1].sum(0).view(dt_bias.shape).to(dt_bias.dtype)
        return dx, A_log, dt_bias


def strengths(x: Tensor, doubled: bool, wide: bool) -> Tensor:
    """``sigmoid(x)`` in float32, twice that where ``doubled``; x is contiguous."""
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    _start_strengths(_strengths, [x, y], doubled, wide)
    return y


def strengths_adjoint(dy: Tensor, x: Tensor, doubled: bool, wide: bool) -> Tensor:
    """The gradient of x, in its type."""
    dx = torch.empty_like(x)
    _start_strengths(_strengths_adjoint, [dy, x, dx], doubled, wide)
    return dx


def _start_strengths(kernel: Any, arguments: list[Tensor], doubled: bool, wide: bool) -> None:
    numbers = arguments[-1].numel()
    start(
        kernel, -(-numbers // ELEMENTS), Config(0, 0, 4, 2),
        [*arguments, 2.0 if doubled else 1.0, numbers],
        {"ELEMENTS": ELEMENTS, "WIDE": tl.float64 if wide else tl.float32},
    )  # fmt: skip
