"""The suite's default search against a planted fault: which law finds it, after how many cases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from properties.case import Case
from properties.hunt import hunt
from properties.implementations import Implementation, find
from properties.law import LAWS, Law, load_laws
from properties.truth import clock
from tests.faults.fault import Fault
from tests.faults.mutant import implementation

EXAMPLES = 30  # cases a law and operator, as under the profile dev

# The budget finds most faults. Most of the next laws need no oracle, and so a fifth of the others'
# time; the rest follow as the suite has them.
FIRST = (
    "results_are_within_budget",
    "bad_input_is_refused_by_name",
    "decoding_equals_chunkwise",
    "repeated_calls_are_bitwise_equal",
    "copies_in_one_call_get_equal_bits",
    "calls_in_flight_are_independent",
    "what_is_not_asked_for_changes_nothing",
    "the_graph_can_be_used_again",
    "policies_are_bitwise_equal",
    "suffix_edits_keep_the_prefix_bitwise",
    "views_equal_contiguous_copies",
    "arguments_are_left_unchanged",
)


@dataclass(frozen=True)
class Catch:
    """Who found a fault: the law, the quantity that it found wrong, and the cases of all laws and
    operators until then.
    """

    law: str
    operator: str
    quantity: str
    cases: int


def laws() -> list[Law]:
    """Every law of the suite, in the order of the hunt."""
    load_laws()
    return [LAWS[name] for name in FIRST] + [x for name, x in LAWS.items() if name not in FIRST]


def holds(law: Law, case: Case, sound: Implementation) -> bool:
    """Whether an implementation without the fault passes: else the catch says nothing about it."""
    alone = replace(law, draw=lambda operator: st.just(case))
    return hunt(alone, case.operator, sound, 1) is None


def hunt_fault(fault: Fault, examples: int = EXAMPLES) -> Catch | None:
    """Law after law, the fault's operators each, until one catches it; None where it survives."""
    mutant, sound = implementation(fault), find(fault.implementation)
    examined = 0
    for law in laws():
        for operator in fault.operators:
            if operator not in law.operators:
                continue
            before = clock["cases"]
            caught = hunt(law, operator, mutant, examples)
            examined += clock["cases"] - before
            if caught is not None and holds(law, caught.case, sound):
                return Catch(law.name, operator, caught.failure.quantity, examined)
    return None


def hunt_soundness(law: Law, operators: Iterable[str], examples: int) -> list[str]:
    """What a law finds in an unmutated copy: nothing, or the suite is wrong about it."""
    copy = implementation()
    caught = [hunt(law, x, copy, examples) for x in operators if x in law.operators]
    return [str(x.failure) for x in caught if x is not None]
