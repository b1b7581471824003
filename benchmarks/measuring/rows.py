"""A row: one operator, shape, kind of gates and policy; every side checked, then timed."""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from measuring.checks import complaint, errors, results, truth
from measuring.shapes import SHAPES, Inputs, Shape, gates_of, make_inputs, small
from measuring.sides import Side, sides_of
from measuring.timing import Card, peak_mib

Truth = dict[str, Tensor]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tune_briefly() -> None:
    """Have Triton's autotuner try each candidate for 25 ms instead of 100: fla has hundreds."""
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    Autotuner.do_bench = staticmethod(partial(do_bench, warmup=5, rep=25))


def tune_anew() -> None:
    """Make every autotuner forget: fla's keys leave out B and T, so that it keeps for all shapes
    what was best for the first.
    """
    from triton.runtime.autotuner import Autotuner

    for kernel in gc.get_objects():
        if issubclass(type(kernel), Autotuner):
            kernel.cache.clear()


def measured(
    operator: str, shapes: list[Shape], kinds: list[str], policies: list[str], options: Any
) -> Iterator[dict[str, Any]]:
    """Rows, most wanted first, until the deadline; ``options`` are the command's."""
    card = Card()
    sides = sides_of(operator, options.ours_only)
    gates = [kind for kind in gates_of(operator) if kind in (*kinds, "none")]
    for kind, shape in itertools.product(gates, shapes):
        if time.time() > options.deadline:
            say(f"{operator}: out of time before {shape.name}, {kind} gates")
            return
        if options.tune_each:
            tune_anew()
        x, few = (make_inputs(operator, each, kind, dtype=options.dtype)
                  for each in (shape, small(shape)))  # fmt: skip
        exact = truth(few, torch.float64), truth(x, torch.float32)
        for policy in policies:
            started = time.perf_counter()
            row = _row(operator, shape, sides, (few.under(policy), x.under(policy)), exact, card,
                       options.repeats)  # fmt: skip
            yield {"operator": operator, "shape": shape.name, "gates": kind, "policy": policy,
                   "sides": row}  # fmt: skip
            say(f"{operator}, {shape.name}, {kind} gates, {policy}: {told(row)} "
                f"({time.perf_counter() - started:.1f} s)")  # fmt: skip


def _row(
    operator: str,
    shape: Shape,
    sides: list[Side],
    inputs: tuple[Inputs, Inputs],
    exact: tuple[Truth, Truth],
    card: Card,
    repeats: int,
) -> dict[str, dict[str, Any]]:
    """What is found for each side: times, errors and memory, or why it is refused."""
    x = inputs[1]
    found: dict[str, dict[str, Any]] = {}
    calls: dict[str, Any] = {}
    for side in sides:
        told = side.refuses(operator, shape, x.problem.spec.policy)
        found[side.name] = {"refused": told} if told else _checked(side, operator, inputs, exact)
        if "refused" in found[side.name]:
            continue
        found[side.name]["peak_mib"] = peak_mib(partial(results, side, operator, x))
    for side in sides:
        if "refused" not in found[side.name]:
            kept = side.forward(operator, x)[1]
            calls[f"{side.name}/forward"] = partial(side.forward, operator, x)
            calls[f"{side.name}/backward"] = partial(side.backward, operator, x, kept)
    for call, times in card.times(calls, repeats).items():
        name, _, direction = call.partition("/")
        found[name][direction] = times
    return found


def _checked(
    side: Side, operator: str, inputs: tuple[Inputs, Inputs], exact: tuple[Truth, Truth]
) -> dict[str, Any]:
    """Errors at the timed shape and at a small one.

    The timed shape comes first, since what autotunes keeps what is best for the first it meets.
    """
    few, x = inputs
    try:
        large = errors(results(side, operator, x), exact[1])
        tiny = errors(results(side, operator, few), exact[0])
    except Exception as error:  # whatever another package raises is that side's answer
        torch.cuda.synchronize()  # unless the card has faulted: then nothing more can be measured
        return {"refused": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
    told = complaint(tiny, "small shape, against float64")
    told = told or complaint(large, "timed shape, against float32")
    if told:
        return {"refused": told, "errors": large, "errors_small": tiny}
    return {"errors": large, "errors_small": tiny, "used": side.used()}


def told(row: dict[str, dict[str, Any]]) -> str:
    """A row in a few words."""
    return "; ".join(
        f"{name} {side['forward']['median']:.3f} + {side['backward']['median']:.3f} ms"
        if "forward" in side
        else f"{name} refused: {side['refused']}"
        for name, side in row.items()
    )


def first_call(operator: str, side: str, policy: str, dtype: str) -> float:
    """Seconds of the first forward and backward of this process, the card being awake."""
    (found,) = (s for s in sides_of(operator, ours_only=False) if s.name == side)
    gates = gates_of(operator)[0]
    x = make_inputs(operator, SHAPES["b1-t8192"], gates, dtype=dtype).under(policy)
    torch.cuda.synchronize()
    started = time.perf_counter()
    results(found, operator, x)
    torch.cuda.synchronize()
    return time.perf_counter() - started
