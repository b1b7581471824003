"""Activations of raw gates and strengths as kernels, at extremes and everywhere between."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
        ),
    ],
)
def test_activations_are_right(device):
    command = [sys.executable, "-m", "tests.triton.activated", device]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
