"""Outputs, final states and every gradient lie within the budget that the rounding of this very
input allows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from properties import truth
from properties.case import Case
from properties.editing import with_arrays
from properties.implementations import Implementation
from properties.law import NOTHING, law, run
from properties.strategies import cases
from properties.verdict import judge


@law(cases)
def test_results_are_within_budget(case: Case, implementation: Implementation) -> float:
    """Every quantity, each judged alone: a right dv hides no wrong dk, a right output no wrong
    gradient.
    """
    results = run(case, implementation)
    verdict = judge(case, results, *truth.budget(case, implementation.precision(case)))
    verdict.check()
    return verdict.score


@law(partial(cases, max_tokens=200))
def test_decoding_equals_chunkwise(case: Case, implementation: Implementation) -> float | None:
    """The token-by-token form has the chunkwise form's truth.

    It rounds its state at every token, so its outputs have the budget of chunks of one; its
    backward is of chunks of 64.
    """
    if not implementation.decodes(case):
        return NOTHING
    inputs, chunks = truth.inputs_of(case), replace(case, chunk_size=64)
    precision = implementation.precision(case)
    results = run(chunks, implementation, inputs, token_by_token=True)
    expected, deviations = truth.budget_of(chunks, inputs, precision)
    forward = with_arrays(inputs, do=None, dht=None)
    _, stepwise = truth.budget_of(case, forward, precision, chunk_size=1)
    verdict = judge(chunks, results, expected, {**deviations, **stepwise})
    verdict.check()
    return verdict.score
