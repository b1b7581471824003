"""A law: a check on (case, implementation), searched by Hypothesis as a test and replayed by name.

    @law(cases)
    def test_results_are_within_budget(case, implementation):
        ...

becomes one pytest item an operator. The check stays reachable under its name, so that a corpus file
is replayed by the very code that found it, and so that planted faults are hunted by it.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import event, given, target
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from properties import session
from properties.case import OPERATORS, Case
from properties.implementations import Implementation, TorchOperators
from properties.implementations.base import Graph
from properties.truth import clock, inputs_of
from properties.verdict import BrokenBudget, Mismatch

Check = Callable[[Case, Implementation], float | None]
Draw = Callable[..., st.SearchStrategy[Case]]


NOTHING = object()  # what a check returns where the implementation has not what the law is about


class Unclaimed(Exception):
    """A law came to a case that the implementation makes no claim for."""


class Crash(Mismatch):
    """An implementation raised where it should have answered, or answered where it should have
    raised.
    """

    quantity = "call"


@dataclass(frozen=True)
class Law:
    """One property.

    name: the test's, without ``test_``. check: raises a Mismatch where the law is broken; may
        return a score.
    draw: operator to strategy. operators: those it speaks of.
    """

    name: str
    check: Check
    draw: Draw
    operators: tuple[str, ...]

    def examine(self, case: Case, implementation: Implementation) -> float | None:
        """Check one case; a failure leaves with its implementation, its corpus record and a command
        to replay it. A BrokenBudget is the suite's own and leaves with the command alone.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")  # a warning of a kernel's is no failure
                score = self.check(case, implementation)
            if score is NOTHING:
                return None
            session.ran(implementation)
            return score
        except Unclaimed:
            return None
        except Mismatch as mismatch:
            failure = mismatch
        except BrokenBudget as error:
            error.add_note(replay_command(self.name, case, implementation))
            raise
        except HypothesisException:  # the search's own, such as an overrun draw
            raise
        except Exception as error:
            failure = Crash(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
        session.ran(implementation)
        failure.implementation = implementation.name
        failure.record = session.record(self.name, case, implementation, failure)
        failure.args = (explain(self.name, case, implementation, failure),)
        raise failure


LAWS: dict[str, Law] = {}


def law(draw: Draw, operators: Iterable[str] = OPERATORS) -> Callable[[Check], Callable]:
    """Make a check a law: register it, and return the Hypothesis test that searches for its
    counterexamples.
    """

    def decorate(check: Check) -> Callable:
        name = check.__name__.removeprefix("test_")
        made = Law(name, check, draw, tuple(operators))
        LAWS[name] = made

        @given(data=st.data())
        def search(operator: str, data: st.DataObject) -> None:
            case = data.draw(draw(operator), label="case")
            # Behind the draw, since a test that stops drawing earlier looks flaky; and a skip ends
            # the search, where a return would draw on to no purpose. properties/time_box.py makes a
            # pass of it where a case was judged.
            if session.out_of_time():
                pytest.skip(f"{session.TIME_IS_UP} after {session.cases_of_test()} cases")
            before = clock["cases"]
            try:
                for implementation in session.implementations(case):
                    with session.journal(name, case, implementation):
                        score = made.examine(case, implementation)
                    if score is not None and 0 < score < float("inf"):
                        target(score, label=implementation.name)
            finally:  # a case that failed was run; one that nobody claims was not
                if clock["cases"] > before:
                    session.saw(case)
                    for regime in sorted(case.regimes()):
                        event(regime)

        search.is_law = True
        search.__name__ = search.__qualname__ = check.__name__
        search.__doc__, search.__module__ = check.__doc__, check.__module__
        return pytest.mark.parametrize("operator", [pytest.param(o, id=o) for o in made.operators])(
            search
        )

    return decorate


def explain(name: str, case: Case, implementation: Implementation, failure: Mismatch) -> str:
    """What a reader of the failure needs: the law, who broke it, how badly, and the command that
    shows it again, which holds the case.
    """
    return (
        f"{case.operator}: {name} fails on {implementation.name}: {failure.args[0]}\n"
        + replay_command(name, case, implementation)
    )


def replay_command(name: str, case: Case, implementation: Implementation) -> str:
    """One line for a shell; of the case only what is not at its default."""
    return (
        f"replay: python -m properties replay --property {name} "
        f"--implementation {session.name_of(implementation)} "
        f"--case '{case.to_json(short=True)}'"
    )


def run(
    case: Case, implementation: Implementation, inputs=None, *, token_by_token: bool = False
) -> dict:
    """Run an implementation on a case (or on inputs that a law has changed) and keep the time.

    Raises:
        Unclaimed: it makes no claim for that case; then the law says nothing.
    """
    inputs = inputs_of(case) if inputs is None else inputs
    _claimed(case, implementation)
    started = time.perf_counter()
    try:
        return implementation.run(case, inputs, session.device(), token_by_token=token_by_token)
    finally:
        clock["implementation"] += time.perf_counter() - started


def forward(case: Case, implementation: TorchOperators, inputs=None, **wanted: object) -> Graph:
    """The same of a forward alone; ``wanted`` as in `TorchOperators.forward`."""
    inputs = inputs_of(case) if inputs is None else inputs
    _claimed(case, implementation)
    started = time.perf_counter()
    try:
        return implementation.forward(case, inputs, session.device(), **wanted)
    finally:
        clock["implementation"] += time.perf_counter() - started


def _claimed(case: Case, implementation: Implementation) -> None:
    if (reason := session.refusal(case, implementation)) is not None:
        raise Unclaimed(reason)


def load_laws() -> dict[str, Law]:
    """Every law of the suite, by name; importing the families registers them."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"properties.{path.stem}")
    return LAWS
