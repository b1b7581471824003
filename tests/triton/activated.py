"""Activation kernels against float64: ``python -m tests.triton.activated DEVICE``, cpu interpreted.

A process of its own, because the interpreter replaces Triton for the whole process.
"""

from __future__ import annotations

import itertools
import sys

if __name__ == "__main__" and sys.argv[1:] == ["cpu"]:
    import tests.triton.interpreter  # noqa: F401  (before anything imports triton)

import torch
from torch import Tensor

from rewy.backends.eager import activations
from rewy.backends.triton.activation import Gate, strengths, strengths_adjoint

INF = float("inf")
RAW = [-INF, -1e30, -300.0, -90.0, -41.0, -39.0, -1.0, -1e-6, 0.0, 1e-6, 0.3, 7.0, 80.0, 1e30, INF]
A_LOGS = [-300.0, -90.0, -3.0, 0.0, 2.0, 80.0, 88.6, 200.0]
# Largest relative error of a number: float64 rounded to float32, and float32's exponential, which
# errs by what rounding its argument does, and is 0 below 1e-38.
LIMITS = {True: 1.2e-7, False: 2e-5}


def off(found: Tensor, right: Tensor, wide: bool) -> float:
    """The largest error, relative to what is right, which float32 must hold."""
    right = right.float().double()
    found = found.double().cpu()
    floor = 1e-30 if not wide else 1e-37
    same = (found == right) | ((right.abs() < floor) & (found.abs() < floor))
    error = torch.where(same, 0.0, (found - right).abs() / right.abs().clamp(min=floor))
    return float(error.nan_to_num(nan=INF).max())


def gates(device: str, wide: bool, bound: float | None, has_A: bool, bias: float | None) -> list:
    """What is wrong with a gate and its adjoint, at extremes and everywhere between."""
    torch.manual_seed(0)
    HV, D = len(A_LOGS), 3
    x = torch.cat([torch.tensor(RAW), 20 * torch.randn(40)]).float()
    x = x[:, None, None].expand(-1, HV, D).contiguous()[None]
    A_log = torch.tensor(A_LOGS) if has_A else None
    dt_bias = None if bias is None else bias * torch.randn(HV * D)
    dg = 0.1 * torch.randn(x.shape)  # with A_log = 88.6 a factor of it alone overflows
    exact = [
        x.double(),
        None if A_log is None else A_log.double()[:, None],
        None if dt_bias is None else dt_bias.double().view(HV, D),
        bound,
    ]
    g = activations.gate(*exact)
    dg[g == -INF] = 0  # what the kernels give a gate that forgets
    dx, dA = activations.gate_adjoint(dg.double(), *exact)
    there = (None if y is None else y.to(device) for y in (x, A_log, dt_bias))
    gate = Gate(*there, bound, wide)
    found = gate.adjoint(dg.to(device))
    errors = {"g": off(gate.forward(), g, wide), "dx": off(found[0], dx, wide)}
    # Of sums, what their terms could lose.
    sums = {"A_log": (found[1], dA, (0, 1, 3)), "dt_bias": (found[2], dx, (0, 1))}
    for name, (y, terms, axes) in sums.items():
        if y is not None:
            y, right = y.double().cpu(), terms.sum(axes).flatten()
            fits = right.abs() < 1e38
            lost = (y - right).abs() / terms.abs().sum(axes).flatten().clamp(min=1e-30)
            errors[f"d{name}"] = float(torch.where(fits, lost, 0.0).nan_to_num(nan=INF).max())
    return [
        f"{name} {error:.1e} of {'float64' if wide else 'float32'}, bound {bound}, A_log {has_A}, "
        f"bias {bias}"
        for name, error in errors.items()
        if not error <= LIMITS[wide]
    ]


def sigmoids(device: str, wide: bool, doubled: bool) -> list:
    """What is wrong with strengths."""
    torch.manual_seed(0)
    x = torch.cat([torch.tensor(RAW), 20 * torch.randn(2000)]).to(device)
    dy = torch.randn(x.shape).to(device)
    right = activations.beta_sigmoid(x.double(), doubled).cpu()
    adjoint = activations.beta_sigmoid_adjoint(dy.double(), x.double(), doubled).cpu()
    errors = {
        "strengths": off(strengths(x, doubled, wide), right, wide),
        "their adjoint": off(strengths_adjoint(dy, x, doubled, wide), adjoint, wide),
    }
    return [f"{name} {error:.1e}" for name, error in errors.items() if not error <= LIMITS[wide]]


def wrong(device: str) -> list:
    """What is wrong, a line each."""
    told = []
    for wide, has_A in itertools.product((True, False), (True, False)):
        for bound, bias in itertools.product((None, -5.0), (None, 2.0)):
            told += gates(device, wide, bound, has_A, bias)
        told += sigmoids(device, wide, has_A)
    return told


if __name__ == "__main__":
    (device,) = sys.argv[1:]
    found = wrong(device)
    print("\n".join(found) or "right")
    sys.exit(bool(found))
