"""Operators that are special cases of one another: run as the general one, judged as the special
one.

The truth and its budget are the special operator's oracle; gradients of an argument that the
special operator shares between channels are sums over them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from properties import session, truth
from properties.case import Case
from properties.editing import plain_arguments, with_arrays
from properties.implementations import Implementation
from properties.law import NOTHING, law, run
from properties.materialize import Inputs
from properties.strategies import cases
from properties.verdict import judge

plain_cases = partial(cases, plain=True)


def _check(
    case: Case,
    implementation: Implementation,
    general: Case,
    inputs: Inputs,
    shared: dict[str, tuple[str, ...]],
) -> float:
    """Run ``general`` on ``inputs``; sum its gradients into the special case's, and judge them
    there.

    ``shared`` maps a special quantity to the general ones it is the sum of; those with more axes
    are summed over the last.
    """
    results = run(general, implementation, inputs)
    expected, deviations = truth.budget(case, implementation.precision(case))
    found = dict(results)
    for name, parts in shared.items():
        arrays = [found.pop(part) for part in parts if part in found]
        if name in expected and arrays:
            axes = expected[name].ndim
            found[name] = sum(x.sum(-1) if x.ndim > axes else x for x in arrays)
    found = {name: x for name, x in found.items() if name in expected}
    verdict = judge(case, found, expected, deviations)
    verdict.check()
    return verdict.score


def _widen(x: np.ndarray, channels: int) -> np.ndarray:
    return np.repeat(x[..., None], channels, axis=-1)


# Gradients are summed here in float64 after they were rounded to their type: float32 or wider only,
# or the sum over K channels would carry K roundings that the special operator does not make.
WIDE = ("float32", "float64")


@law(partial(plain_cases, dtypes=WIDE), ["delta_rule"])
def test_zero_gates_reduce_to_the_delta_rule(case: Case, implementation: Implementation) -> object:
    """g = 0 per head, and per channel, changes nothing, and neither does no g at all."""
    case = replace(case, gate_dtype=case.dtype, beta_dtype=None, parameter_dtype=None)
    inputs = truth.inputs_of(case)
    dtypes = {**inputs.dtypes, "g": case.gate_dtype}
    scores = []
    for operator, shape in (
        ("gated_delta_rule", inputs.beta.shape),
        ("kda", (*inputs.beta.shape, case.head_size)),
    ):
        gated = replace(inputs, g=np.zeros(shape), dtypes=dtypes)
        for given, without_g in ((gated, False), (inputs, True)):
            general = replace(case, operator=operator, without_g=without_g)
            if session.refusal(general, implementation) is None:
                scores.append(_check(case, implementation, general, given, {}))
    return max(scores, default=NOTHING)


@law(partial(plain_cases, dtypes=WIDE), ["gated_delta_rule"])
def test_equal_channels_reduce_kda_to_the_gated_delta_rule(
    case: Case, implementation: Implementation
) -> float:
    """One gate for all channels; dg is the sum over them."""
    case = replace(case, gate_dtype=case.dtype, beta_dtype=None, parameter_dtype=None)
    inputs = truth.inputs_of(case)
    general = replace(case, operator="kda")
    g = None if inputs.g is None else _widen(inputs.g, case.head_size)
    gated = with_arrays(inputs, g=g)
    return _check(case, implementation, general, gated, {"dg": ("dg",)})


@law(partial(plain_cases, dtypes=WIDE), ["kda"])
def test_equal_gates_reduce_gdn2_to_kda(case: Case, implementation: Implementation) -> float:
    """b = w = beta; dbeta is the sum of db and dw over their channels."""
    case = replace(case, gate_dtype=case.dtype, beta_dtype=None, parameter_dtype=None)
    inputs = truth.inputs_of(case)
    b, w = _widen(inputs.beta, case.head_size), _widen(inputs.beta, case.value_size)
    dtypes = {**inputs.dtypes, "b": case.gate_dtype, "w": case.gate_dtype}
    general = replace(case, operator="gdn2")
    gated = replace(inputs, beta=None, b=b, w=w, dtypes=dtypes)
    return _check(case, implementation, general, gated, {"dbeta": ("db", "dw")})


@law(plain_cases)
def test_zero_beta_only_decays_the_state(case: Case, implementation: Implementation) -> None:
    """Nothing is written or erased, o_t = scale (exp(G_t) S_0)^T q_t, and v has no gradient."""
    assert plain_arguments(case)
    inputs = truth.inputs_of(case)
    zeros = {
        name: np.zeros_like(inputs[name]) for name in ("beta", "b", "w") if inputs[name] is not None
    }
    inputs = with_arrays(inputs, **zeros)
    results = run(case, implementation, inputs)
    expected, deviations = truth.budget_of(case, inputs, implementation.precision(case))
    if "dv" in expected:
        assert not results["dv"].any(), "a value reached the results through a write gate of 0"
    if case.initial_state != "random":
        assert not results["o"].any(), "an output without a state and without a write"
    judge(case, results, expected, deviations).check()
