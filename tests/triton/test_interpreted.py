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


# Nearest, not cut off; no NaN is lost, nor the driver's, whose bits are all set.
OPERANDS = """
import tests.triton.interpreter
import torch
import triton
import triton.language as tl
from rewy.backends.triton.common import operand

@triton.jit
def kernel(x, out, OP: tl.constexpr, PREC: tl.constexpr):
    at = tl.arange(0, 8)
    tl.store(out + at, operand(tl.load(x + at), OP, PREC).to(tl.float32))

ulp = 2.0 ** -10
given = torch.tensor([1, 1 + ulp, 1 + 0.49 * ulp, 1 + 0.51 * ulp, -1 - 0.75 * ulp, torch.inf, 0, 0])
bits = given.view(torch.int32)
bits[6], bits[7] = 0x7FFFFFFF, -1
out = torch.empty(8)
kernel[(1,)](given, out, tl.float32, "tf32")
assert out[:6].tolist() == [1, 1 + ulp, 1, 1 + ulp, -1 - ulp, torch.inf], out
assert out[6:].isnan().all(), out
kernel[(1,)](given, out, tl.float32, "ieee")
assert torch.equal(out[:6], given[:6]) and out[6:].isnan().all(), out
"""


def test_operands_are_rounded_to_tf32():
    run = subprocess.run([sys.executable, "-c", OPERANDS], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
