"""Sizes that 32 bits do not count, on the GPU at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from properties.case import OPERATORS

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def _told(*arguments: str) -> list[str]:
    """A process of its own, as tests.triton.on_device says."""
    command = [sys.executable, "-m", "tests.triton.large", *arguments]
    run = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    told = json.loads(run.stdout.splitlines()[-1])
    if isinstance(told, str):
        pytest.skip(told)
    return told


# Keys past 2**31, and values past it beside a channel gate; and where sizes are not compiled in.
@needs_gpu
@pytest.mark.parametrize(
    ("operator", "K", "V", "C"),
    [("gated_delta_rule", 256, 64, 64), ("gdn2", 64, 256, 64), ("kda", 64, 256, 32)],
)
def test_both_ends_of_a_huge_pack_are_as_alone(operator, K, V, C):
    assert _told("far", operator, str(K), str(V), str(C)) == []


@needs_gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_more_sequences_than_a_grid_has_rows(operator, dtype):
    assert _told("many", operator, dtype) == []


def test_the_comparisons_hold_in_the_interpreter():
    assert _told("far", "gated_delta_rule", "12", "9", "64", "cpu") == []
    assert _told("many", "gdn2", "bfloat16", "cpu") == []
