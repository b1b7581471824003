"""The suite's search without pytest: how many cases it takes a law to catch an implementation."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings

from properties import session
from properties.case import Case
from properties.implementations import Implementation
from properties.law import Law
from properties.verdict import Mismatch


@dataclass(frozen=True)
class Catch:
    """A law that was broken: by which case, in which quantity, after how many cases of this law."""

    law: str
    operator: str
    case: Case
    failure: Mismatch
    cases: int


def hunt(law: Law, operator: str, implementation: Implementation, examples: int) -> Catch | None:
    """Draw up to ``examples`` cases, the same ones every time, and stop at the first failure,
    unshrunk.
    """
    drawn, caught = 0, []

    @seed(zlib.crc32(f"{law.name} {operator}".encode()))  # the same draws every time, for this law
    @settings(
        settings.get_profile("default"),
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=law.draw(operator))
    def search(case: Case) -> None:
        nonlocal drawn
        if caught or session.refusal(case, implementation) is not None:
            return
        drawn += 1
        try:
            law.examine(case, implementation)
        except Mismatch as failure:
            caught.append(Catch(law.name, operator, case, failure, drawn))

    search()
    return caught[0] if caught else None
