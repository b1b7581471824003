"""The same call again, with another in between, gives the same bits."""

from __future__ import annotations

from dataclasses import replace

from properties import truth
from properties.case import Case
from properties.implementations import Implementation
from properties.law import law, run
from properties.strategies import cases
from properties.verdict import judge_bits


@law(cases)
def test_repeated_calls_are_bitwise_equal(case: Case, implementation: Implementation) -> None:
    """A, B, A: no state is left behind, no order of summation is up to chance."""
    first = run(case, implementation)
    run(case, implementation, truth.inputs_of(replace(case, seed=case.seed ^ 0xB)))
    judge_bits(case, run(case, implementation), first, "those of the first call")
