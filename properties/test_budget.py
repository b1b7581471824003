"""Outputs, final states and every gradient lie within the budget that the rounding of this very
input allows.
"""

from __future__ import annotations

from dataclasses import replace

from properties import truth
from properties.case import Case
from properties.implementations import Implementation
from properties.law import law, run
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


@law(cases)
def test_decoding_equals_chunkwise(case: Case, implementation: Implementation) -> float:
    """The token-by-token form has the chunkwise form's truth; its backward is of chunks of 64."""
    inputs, chunks = truth.inputs_of(case), replace(case, chunk_size=64)
    results = run(chunks, implementation, inputs, token_by_token=True)
    expected = truth.budget_of(chunks, inputs, implementation.precision(chunks))
    verdict = judge(chunks, results, *expected)
    verdict.check()
    return verdict.score
