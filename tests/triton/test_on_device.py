"""Every configuration that can be selected, on the GPU at hand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

from properties.case import OPERATORS
from tests.triton.on_device import LIMITS

# Configurations depend on the padded sizes, the type and the kind of gate; sizes that fill their
# padding, that do not, and that differ.
SIZES = [
    *[(128, 128), (64, 64), (256, 256), (128, 256), (256, 64)],  # compiled in for bfloat16
    *[(100, 60), (32, 17), (3, 5), (1, 5)],
]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(("K", "V"), SIZES)
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_configuration_is_right(operator, dtype, K, V):
    command = [sys.executable, "-m", "tests.triton.on_device", operator, dtype, str(K), str(V)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout.splitlines()[-1]) == []
