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


def _interpret(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_operands_are_rounded_to_tf32():
    run = _interpret(OPERANDS)
    assert run.returncode == 0, run.stderr


PRODUCT = """
import tests.triton.interpreter
import torch
import triton
import triton.language as tl
from rewy.backends.triton.common import dot, operand

@triton.jit
def kernel(x, out, OP: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    y = tl.load(x + at)
    y = {operand}
    tl.store(out + at, dot(y, y, tl.zeros([16, 16], dtype=tl.float32), OP, "tf32"))

x = torch.rand(16, 16)
kernel[(1,)](x, torch.empty(16, 16), tl.float32)
"""


@pytest.mark.parametrize(
    ("operand", "refused"),
    [('operand(y, OP, "tf32")', False), ("y.to(tl.float16)", False), ("y", True)],
)
def test_the_interpreter_refuses_a_product_of_what_is_not_rounded(operand, refused):
    run = _interpret(PRODUCT.format(operand=operand))
    assert (run.returncode != 0) == refused, run.stderr
    assert ("a TF32 product of what nobody rounded" in run.stderr) == refused


# Sixteen terms of a quarter of 1's last bit each: gone one by one, four units together.
SUMS = """
import tests.triton.interpreter
import torch
import triton
import triton.language as tl
from rewy.backends.triton.common import add_dot, dot

@triton.jit
def kernel(x, y, out, APART: tl.constexpr, PREC: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    x, y, one = tl.load(x + at), tl.load(y + at), tl.full([16, 16], 1.0, dtype=tl.float32)
    if APART:
        tl.store(out + at, add_dot(one, x, y, tl.float32, PREC))
    else:
        tl.store(out + at, dot(x, y, one, tl.float32, PREC))

x, y = torch.full((16, 16), 2.0**-13), torch.full((16, 16), 2.0**-12)
found = {}
for apart in (False, True):
    out = torch.empty(16, 16)
    kernel[(1,)](x, y, out, apart, "ieee")
    (found[apart],) = set((out.flatten() - 1).tolist())
assert found == {False: 0, True: 2.0**-21}, found
"""


def test_the_interpreter_sums_as_a_gpu_does_and_kernels_sum_apart():
    run = _interpret(SUMS)
    assert run.returncode == 0, run.stderr


RECORDED = "corpus/delta_rule/joint_linearity_in_values_and_state-6f8a3c2e37d3.json"


def test_what_a_gpu_found_is_replayed_without_one():
    command = [sys.executable, "-m", "tests.triton.interpreter", "replay", RECORDED]
    command += ["--implementation", "triton"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("triton: holds")


# Within budget, but not within one that does not know.
FLUSHED = """
import tests.triton.interpreter
from dataclasses import replace
from pathlib import Path
from properties import session
from properties.corpus import load
from properties.implementations.ours import Kernels
from properties.law import load_laws
from properties.verdict import Mismatch

class Strict(Kernels):
    def precision(self, case):
        return replace(super().precision(case), flush=0.0)

session.configure(("triton",), "cpu", None, journalling=False)
entry = load(Path("{path}"))
law = load_laws()[entry.property]
law.examine(entry.case, Kernels("triton", "triton", "recompute"))
try:
    law.examine(entry.case, Strict("triton", "triton", "recompute"))
except Mismatch as mismatch:
    assert "got 0, truth -1.75" in str(mismatch), mismatch
else:
    raise AssertionError("nothing was flushed")
"""
ENTRY = "equal_channels_reduce_kda_to_the_gated_delta_rule-2e4a06f6821b.json"


def test_a_decay_that_is_flushed_is_within_budget():
    """As recorded on an H200; the eager graph flushes nothing."""
    run = _interpret(FLUSHED.format(path=ROOT / "corpus" / "gated_delta_rule" / ENTRY))
    assert run.returncode == 0, run.stderr
