"""What is not asked for changes nothing of what is."""

from __future__ import annotations

from properties import truth
from properties.case import Case
from properties.implementations import Implementation, TorchOperators
from properties.implementations.base import GRADIENTS
from properties.law import NOTHING, forward, law
from properties.strategies import cases
from properties.verdict import judge


@law(cases)
def test_what_is_not_asked_for_changes_nothing(
    case: Case, implementation: Implementation
) -> object:
    """Gradients of some arguments alone, then of none as where nothing is trained, and no final
    state where the loss knows none: what is left is within its budget.

    To the bit it need not be: who computes less may do so in another order.
    """
    if not isinstance(implementation, TorchOperators):
        return NOTHING
    exact, deviations = truth.budget(case, implementation.precision(case))
    there = [name for name in GRADIENTS if name in case.shapes()]
    some = [name for i, name in enumerate(there) if case.seed >> i & 1]
    scores = []
    for differentiated in (some, []) if some else ([],):
        asked = case.through != "output"
        graph = forward(case, implementation, differentiated=differentiated, final_state=asked)
        results = graph.results()
        if not asked:
            results.pop("ht", None)
        verdict = judge(case, results, {name: exact[name] for name in results}, deviations)
        verdict.check()
        scores.append(verdict.score)
    return max(scores)
