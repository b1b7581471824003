"""The kernels on a machine without a GPU, within the properties."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from properties.case import OPERATORS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("operator", OPERATORS)
def test_interpreted_kernels_are_right(operator):
    run = subprocess.run(
        [sys.executable, "-m", "tests.triton.interpreted", operator],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert "cases, 0 failures" in run.stdout
