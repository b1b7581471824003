"""Whether a side is right, before it is timed."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from measuring.shapes import Inputs
from measuring.sides import Side, named
from rewy.problem import Problem, Tensors

# ||error|| / ||truth|| of a right kernel at bfloat16 is 2e-3 to 8e-3, of a wrong one 1e-1 or more.
LARGEST_ERROR = 2e-2
HEADS = 4  # the eager graph keeps all chunks at once: key heads at a time, for its memory's sake


def truth(x: Inputs, dtype: torch.dtype) -> dict[str, Tensor]:
    """Outputs and gradients by the eager graph, everything in ``dtype``."""
    parts = [_truth(_heads(x, first), dtype) for first in range(0, x.problem.spec.H, HEADS)]
    return {name: torch.cat([part[name] for part in parts], 2) for name in parts[0]}


def _heads(x: Inputs, first: int) -> Inputs:
    """HEADS key heads and the value heads that belong to them."""
    spec, t = x.problem
    group = spec.HV // spec.H
    count = min(HEADS, spec.H - first)

    def cut(y: Tensor | None, each: int) -> Tensor | None:
        return None if y is None else y[:, :, first * each : (first + count) * each]

    tensors = [cut(y, 1 if name in ("q", "k") else group) for name, y in t._asdict().items()]
    spec = replace(spec, H=count, HV=count * group)
    return x._replace(problem=Problem(spec, Tensors(*tensors)), do=cut(x.do, group))


def _truth(x: Inputs, dtype: torch.dtype) -> dict[str, Tensor]:
    from rewy.backends.eager import eager

    spec, t = x.problem
    wide = Tensors(*(None if y is None else y.to(dtype) for y in t))
    problem = Problem(replace(spec, compute_dtype=dtype, policy="save"), wide)
    o, _, saved = eager.forward(problem)
    return {"o": o, **named(eager.backward(problem, saved, x.do.to(dtype), None)._asdict())}


def results(side: Side, operator: str, x: Inputs) -> dict[str, Tensor]:
    """Outputs and gradients of a side."""
    o, kept = side.forward(operator, x)
    return {"o": o, **side.backward(operator, x, kept)}


def errors(found: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    """``||x - y|| / ||y||`` of every quantity of the truth."""
    missing = truth.keys() - found.keys()
    if missing:
        raise ValueError(f"results lack {sorted(missing)}")
    return {
        name: float((found[name].to(y.dtype) - y).norm() / y.norm()) for name, y in truth.items()
    }


def complaint(errors: dict[str, float], where: str) -> str | None:
    """What is wrong with a side, if anything."""
    wrong = {name: e for name, e in errors.items() if not (math.isfinite(e) and e <= LARGEST_ERROR)}
    if not wrong:
        return None
    return f"wrong at the {where}: " + ", ".join(f"{name} {e:.1e}" for name, e in wrong.items())
