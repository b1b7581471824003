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

# A state handed over is rounded to float32 (or float64) once more than in one piece; 16-bit types
# are no exception, since states are never narrower.


@law(partial(cases, packed=False))
def test_split_equals_whole(case: Case, implementation: Implementation) -> float:
    """Tokens before and from ``cut`` as two calls, judged by the whole's truth and budget."""
    inputs = truth.inputs_of(case)
    first_case = replace(case, lengths=(case.cut,) * case.B, cut=0)
    second_case = replace(
        case, lengths=(case.T - case.cut,) * case.B, cut=0, initial_state="random"
    )
    first = with_arrays(inputs, **map_tokens(inputs, lambda x: x[:, : case.cut]))
    second = with_arrays(inputs, **map_tokens(inputs, lambda x: x[:, case.cut :]))

    state = run(first_case, implementation, with_arrays(first, do=None, dht=None))["ht"]
    state_type = {**inputs.dtypes, "h0": "float64" if case.dtype == "float64" else "float32"}
    late = run(second_case, implementation, replace(second, h0=state, dtypes=state_type))
    handed_back = {**inputs.dtypes, "dht": state_type["h0"]}
    early = run(first_case, implementation, replace(first, dht=late["dh0"], dtypes=handed_back))

    joined = {"ht": late["ht"]}
    for name in early:
        argument = name.removeprefix("d")
        if argument in PER_HEAD:
            joined[name] = early[name] + late[name]
        elif name == "dh0":
            joined[name] = early[name]
        elif name not in STATES:
            joined[name] = np.concatenate([early[name], late[name]], axis=1)
    verdict = judge(case, joined, *truth.budget(case, implementation.precision(case)))
    verdict.check()
    return verdict.score
