"""A fixture that runs the suite in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Adapters as a user would write them, wrong in one way each.
ADAPTERS = """
import os

from properties.implementations.ours import Ours


class Right(Ours):
    def __init__(self):
        super().__init__(type(self).__name__.lower(), "eager", "recompute")


class TwoQuantities(Right):
    def run(self, case, inputs, device, **options):
        results = super().run(case, inputs, device, **options)
        wrong = "o" if case.head_size == 1 else "ht"
        results[wrong] = 2 * results[wrong] + 1
        return results


class OneQuantity(Right):
    def run(self, case, inputs, device, **options):
        results = super().run(case, inputs, device, **options)
        results["ht"] = results["ht"] + 1
        return results


class Flaky(Right):
    calls = 0

    def run(self, case, inputs, device, **options):
        results = super().run(case, inputs, device, **options)
        Flaky.calls += 1
        if Flaky.calls == 3:
            results["ht"] = results["ht"] + 1
        return results


class Raises(Right):
    def run(self, case, inputs, device, **options):
        raise KeyError("a table without this size")


class Refuses(Right):
    def refuses(self, case, device):
        return "no packed sequences" if case.packed else None


class RefusesAll(Right):
    def refuses(self, case, device):
        return "nothing of the kind"


class Dies(Right):
    def run(self, case, inputs, device, **options):
        os._exit(3)


class DiffersWithoutGates(Right):
    def run(self, case, inputs, device, **options):
        results = super().run(case, inputs, device, **options)
        if case.operator == "delta_rule":
            results["ht"] = results["ht"] + 1
        return results
"""


class Suite:
    """Runs the suite in an empty directory, with a corpus and an example database of its own."""

    def __init__(self, directory: Path):
        self.directory, self.corpus = directory, directory / "corpus"
        (directory / "adapters.py").write_text(ADAPTERS)
        inherited = {n: x for n, x in os.environ.items() if not n.startswith(("PYTEST_", "CI"))}
        self.environment = {
            **inherited,
            "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "storage"),
            "OMP_NUM_THREADS": "1",
        }

    def python(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )

    def pytest(self, test: str, *options: str, adapter: str | None = None):
        chosen = ("--implementation", f"adapters:{adapter}") if adapter else ()
        where = (str(ROOT / "properties" / test), "--corpus", str(self.corpus))
        return self.python("-m", "pytest", "-p", "no:cacheprovider", *where, *chosen, *options)


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)
