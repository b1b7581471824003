"""Split = whole: a sequence cut anywhere, the state handed on, its adjoint handed back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from properties import truth
from properties.case import Case
from properties.editing import PER_HEAD, map_tokens, with_arrays
from properties.implementations import Implementation
from properties.law import law, run
from properties.strategies import cases
from properties.verdict import STATES, judge

# A state handed over is never narrower than float32, so the hand-over itself costs no digits.


@law(partial(cases, packed=False))
def test_split_equals_whole(case: Case, implementation: Implementation) -> float:
    """Tokens before and from ``cut`` as two calls, judged by the whole's truth.

    The parts' chunks are not the whole's, so the budget is the whole's and the parts' together.
    """
    # Parameters' gradients are sums of the parts': narrow ones would carry a rounding a part.
    case = replace(case, parameter_dtype=None)
    inputs, precision = truth.inputs_of(case), implementation.precision(case)
    first_case = replace(case, lengths=(case.cut,) * case.B, cut=0)
    second_case = replace(
        case, lengths=(case.T - case.cut,) * case.B, cut=0, initial_state="random"
    )
    first = with_arrays(inputs, **map_tokens(inputs, lambda x: x[:, : case.cut]))
    second = with_arrays(inputs, **map_tokens(inputs, lambda x: x[:, case.cut :]))

    state = run(first_case, implementation, with_arrays(first, do=None, dht=None))["ht"]
    state_type = "float64" if case.dtype == "float64" else "float32"
    second = replace(second, h0=state, dtypes={**inputs.dtypes, "h0": state_type})
    late = run(second_case, implementation, second)
    first = replace(first, dht=late["dh0"], dtypes={**inputs.dtypes, "dht": state_type})
    early = run(first_case, implementation, first)

    expected, noise = truth.budget(case, precision)
    _, early_noise = truth.budget_of(first_case, first, precision, salt=1)
    _, late_noise = truth.budget_of(second_case, second, precision, salt=2)
    parts = _join(early_noise, late_noise, tokens=2)
    noise = {name: noise[name] + parts[name] for name in noise}
    verdict = judge(case, _join(early, late, tokens=1), expected, noise)
    verdict.check()
    return verdict.score


def _join(early: dict, late: dict, tokens: int) -> dict:
    """Two parts' results (or deviations) as those of the whole; ``tokens`` is the token axis."""
    joined = {"ht": late["ht"]}
    for name in early:
        if name.removeprefix("d") in PER_HEAD:
            joined[name] = early[name] + late[name]
        elif name == "dh0":
            joined[name] = early[name]
        elif name not in STATES:
            joined[name] = np.concatenate([early[name], late[name]], axis=tokens)
    return joined
