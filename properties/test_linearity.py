"""(o, ht) is jointly linear in (v, h0), o in scale, the gradients in (do, dht)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from properties import truth
from properties.case import Case
from properties.editing import with_arrays
from properties.implementations import Implementation
from properties.law import law, run
from properties.strategies import cases
from properties.verdict import judge, judge_bits

# Powers of two scale without rounding but among the subnormals: an underflowed term can break a tie
# far above them. So types that are wide, and gates whose products stay far from the smallest
# number.
WIDE = ("float32", "float64")
scalable_cases = partial(cases, dtypes=WIDE, gates=("zero", "barely", "powers_of_two"))


def _times(results: dict, **factors: float) -> dict:
    return {name: x * factors.get(name, 1.0) for name, x in results.items()}


@law(scalable_cases)
def test_scale_multiplies_the_output_only(case: Case, implementation: Implementation) -> None:
    """Twice the scale: twice o and dq to the bit, the same state."""
    case = replace(case, through="output")
    scale = case.head_size**-0.5 if case.scale is None else case.scale
    once = run(replace(case, scale=scale), implementation, truth.inputs_of(case))
    twice = run(replace(case, scale=2 * scale), implementation, truth.inputs_of(case))
    kept = ("o", "dq", "ht")
    judge_bits(
        case,
        {name: twice[name] for name in kept},
        _times({name: once[name] for name in kept}, o=2.0, dq=2.0),
        "twice those at half the scale",
        subnormals=False,
    )


@law(scalable_cases)
def test_doubling_values_and_state_doubles_results(
    case: Case, implementation: Implementation
) -> None:
    """v and h0 doubled: o and ht doubled to the bit, and every gradient but theirs."""
    inputs = truth.inputs_of(case)
    doubled = {name: 2 * inputs[name] for name in ("v", "h0") if inputs[name] is not None}
    once = run(case, implementation)
    twice = run(case, implementation, with_arrays(inputs, **doubled))
    factors = {name: 2.0 for name in once if name not in ("dv", "dh0")}
    judge_bits(case, twice, _times(once, **factors), "doubled with v and h0", subnormals=False)


@law(scalable_cases)
def test_doubling_adjoints_doubles_gradients(case: Case, implementation: Implementation) -> None:
    """do and dht doubled: every gradient doubled to the bit."""
    inputs = truth.inputs_of(case)
    doubled = {name: 2 * inputs[name] for name in ("do", "dht") if inputs[name] is not None}
    once = run(case, implementation)
    twice = run(case, implementation, with_arrays(inputs, **doubled))
    factors = {name: 2.0 for name in once if name.startswith("d")}
    judge_bits(case, twice, _times(once, **factors), "doubled with do and dht", subnormals=False)


@law(partial(cases, dtypes=WIDE))
def test_joint_linearity_in_values_and_state(case: Case, implementation: Implementation) -> float:
    """(v, 0) and (0, h0) apart add up to (v, h0); each part brings its own budget."""
    case = replace(case, initial_state="random")
    inputs = replace(truth.inputs_of(case), do=None, dht=None)
    precision = implementation.precision(case)
    total: dict[str, np.ndarray] = {}
    expected, noise = truth.budget_of(case, inputs, precision)
    for salt, absent in enumerate(("h0", "v"), 1):
        part = with_arrays(inputs, **{absent: np.zeros_like(inputs[absent])})
        _, spread = truth.budget_of(case, part, precision, salt)
        results = run(case, implementation, part)
        noise = {name: noise[name] + spread[name] for name in expected}
        total = {name: total.get(name, 0.0) + results[name] for name in expected}
    verdict = judge(case, total, expected, noise)
    verdict.check()
    return verdict.score
