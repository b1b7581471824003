"""On inputs on which nothing rounds, every implementation gives the oracle's bits: no tolerance at
all.
"""

from __future__ import annotations

import math
from functools import cache, partial

import numpy as np
import torch
from hypothesis import currently_in_test_context, event

from properties import session, truth
from properties.case import Case
from properties.editing import with_arrays
from properties.exactness import exact_results, significand
from properties.implementations import Implementation
from properties.law import law, run
from properties.materialize import round_to
from properties.strategies import exact_cases
from properties.verdict import judge_bits, output_type


@cache
def decays_are_exact(device: str, dtype: str) -> bool:
    """Whether the device's exponential turns the gates of `powers_of_two`, and twice them, into
    exact powers.
    """
    g = float(round_to(np.array(-math.log(2)), dtype))
    wide = torch.float64 if dtype == "float64" else torch.float32
    x = torch.tensor([g, 2 * g, 0.0, -math.inf], dtype=wide, device=device)
    return x.exp().tolist() == [0.5, 0.25, 1.0, 0.0]


def _mark(what: str) -> None:
    """An event of the search; a replay has none."""
    if currently_in_test_context():
        event(f"exact: {what}")


@law(partial(exact_cases, max_tokens=80))
def test_exact_inputs_give_exact_bits(case: Case, implementation: Implementation) -> None:
    """A wrong mask, a shifted gate, a dropped diagonal, one unmasked lane shows as a bit."""
    inputs, gamma = truth.inputs_of(case), None
    if inputs.g is not None:
        g = inputs.g
        if not decays_are_exact(session.device(), case.gate_dtype):
            _mark("this exponential leaves only 0 and -inf")
            g = np.where(np.isfinite(g), 0.0, g)
        # What an exact exponential makes of them, which the oracle's own need not.
        gamma = np.where(g == 0, 1.0, np.where(np.isfinite(g), 0.5, 0.0))
        inputs = with_arrays(inputs, g=g)
    expected = exact_results(case, inputs, gamma, significand(implementation.precision(case)))
    _mark("would round" if expected is None else "accepted")
    if expected is None:
        return
    expected = {name: round_to(x, output_type(case, name)) for name, x in expected.items()}
    judge_bits(case, run(case, implementation, inputs), expected, "the exact values")
