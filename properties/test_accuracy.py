"""ReWY is no less accurate than the naive seven-product backward at the same precision."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from properties import session, truth
from properties.case import OPERATORS, Case
from properties.implementations import find
from properties.strategies import cases
from properties.verdict import judge

# A one-sided sign test: were the two equally accurate, ReWY would seem worse by this chance once in
# a million runs.
SIGNIFICANCE = 1e-6
FEWEST = 60  # with less than 20 decided cases the test could not fail


def chance_of_at_least(worse: int, decided: int) -> float:
    """P(X >= worse) of X ~ Binomial(decided, 1/2): what a fair coin would give."""
    return sum(math.comb(decided, n) for n in range(worse, decided + 1)) / 2**decided


def comparison(operator: str, ratios: list[float]) -> Callable[[], None]:
    """The search: for every case, the geometric mean over its gradients of error ReWY / error
    naive.
    """
    ours, naive = find("eager"), find("naive")

    @settings(max_examples=max(FEWEST, settings.default.max_examples))
    @given(case=cases(operator))
    def search(case: Case) -> None:
        if session.out_of_time():
            # Ends the search; what was found is judged all the same.
            pytest.skip(session.TIME_IS_UP)
        with session.seeing_failures():
            inputs, scores = truth.inputs_of(case), []
            for implementation in (ours, naive):
                results = implementation.run(case, inputs, session.device())
                expected = truth.budget(case, implementation.precision(case))
                scores.append(judge(case, results, *expected).scores)
            first, second = scores
            both = [q for q in first if q.startswith("d") and first[q] > 0 and second[q] > 0]
            if both:
                ratios.append(math.exp(np.mean([math.log(first[q] / second[q]) for q in both])))

    return search


@pytest.mark.parametrize("operator", OPERATORS)
def test_residual_backward_is_no_less_accurate_than_naive(
    operator: str, record_property: Callable[[str, object], None]
) -> None:
    """Over a run's draws ReWY is worse than naive no more often than a fair coin would be."""
    ratios: list[float] = []
    with contextlib.suppress(pytest.skip.Exception):
        comparison(operator, ratios)()
    worse, better = sum(r > 1 for r in ratios), sum(r < 1 for r in ratios)
    if ratios:
        for name, percent in (("median", 50), ("99th percentile", 99), ("largest", 100)):
            record_property(
                f"error ReWY / naive, {name}", round(float(np.percentile(ratios, percent)), 3)
            )
    chance = chance_of_at_least(worse, worse + better)
    assert chance > SIGNIFICANCE, (
        f"{operator}: ReWY erred more than naive in {worse} of {worse + better} cases, which a "
        f"fair coin does with probability {chance:.1e}; median ratio {np.median(ratios):.3f}, "
        f"largest {max(ratios):.3f}"
    )


test_residual_backward_is_no_less_accurate_than_naive.is_search = True  # shares the time box
