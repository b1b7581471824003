"""What a run of the suite has come to, and its report."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

from hypothesis import settings

from properties import session as suite


class Tally:
    """What the controller knows: the counts of every process, and what became of each test."""

    def __init__(self) -> None:
        self.started = time.time()
        self.clock: Counter = Counter()
        self.regimes: Counter = Counter()
        self.checks: Counter = Counter()
        self.tests: list[dict] = []
        self.recorded: list[str] = []
        self.known: list[str] = []
        self.flaky: list[dict] = []
        self.unclaimed = 0

    def add(self, clock: dict, regimes: dict, checks: dict) -> None:
        self.clock.update(clock)
        self.regimes.update(regimes)
        self.checks.update(checks)

    def write(self, path: Path) -> None:
        report = {
            "seconds": round(time.time() - self.started, 1),
            "profile": settings.get_current_profile_name(),
            "device": suite.hardware(),
            "implementations": dict(sorted(self.checks.items())),  # name -> checks that it ran
            "clock": {name: round(value, 3) for name, value in sorted(self.clock.items())},
            "regimes": dict(sorted(self.regimes.items())),
            "tests": sorted(self.tests, key=lambda test: test["test"]),
            "recorded": sorted(set(self.recorded)),
            "recorded already": sorted(set(self.known)),
            "flaky": self.flaky,
        }
        path.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
