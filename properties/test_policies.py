"""Saving instead of recomputing changes time and memory, and no bit."""

from __future__ import annotations

from properties import session, truth
from properties.case import Case
from properties.implementations import Implementation
from properties.law import NOTHING, law, run
from properties.strategies import cases
from properties.verdict import judge_bits


@law(cases)
def test_policies_are_bitwise_equal(case: Case, implementation: Implementation) -> object:
    """'save' and 'recompute' give the same bits, whichever is under test."""
    other = implementation.with_other_policy()
    if other is None or session.refusal(case, other) is not None:
        return NOTHING
    expected = run(case, implementation)
    found = run(case, other, truth.inputs_of(case))
    judge_bits(case, found, expected, "those of the other policy")
