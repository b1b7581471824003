"""The kernels under NVIDIA's compute-sanitizer, on the GPU at hand: what they touch in global
memory, and races in shared memory.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from properties.case import OPERATORS

ROOT = Path(__file__).parents[2]
# Each tensor is an allocation of its own, or what passes its end lands in the next unseen.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
SECONDS = 240
FOUND = 117  # an exit status that nothing else has
TOOL = shutil.which("compute-sanitizer")

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(TOOL is None, reason="compute-sanitizer is not on the PATH"),
]


def _run(*command: str) -> tuple[int, str]:
    """Exit status and output; what runs too long is ended with all that it has started."""
    run = subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = run.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        output, _ = run.communicate()
        pytest.fail(f"{' '.join(command)} ran longer than {SECONDS} s:\n{output[-2000:]}")
    return run.returncode, output


def _sanitize(tool: str, what: str) -> tuple[int, str]:
    """Exit status and output of ``tests.triton.sanitized`` under a tool of the sanitizer."""
    script = sys.executable, "-m", "tests.triton.sanitized", what
    status, output = _run(*script)  # compiles, which is slow under the sanitizer
    assert status == 0, output[-2000:]
    status, output = _run(TOOL, "--tool", tool, "--error-exitcode", str(FOUND), *script)
    if "Device not supported" in output:
        pytest.skip("compute-sanitizer does not support this device or its driver")
    assert re.search("SUMMARY: [0-9]+", output), output[-2000:]
    return status, output


@pytest.mark.parametrize("tool", ["racecheck", "memcheck"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_nothing_is_found(tool, operator):
    status, output = _sanitize(tool, operator)
    assert status == 0, output[:4000]
    assert f"{operator} ran" in output


@pytest.mark.parametrize(("tool", "fault"), [("memcheck", "write"), ("racecheck", "race")])
def test_a_planted_fault_is_found(tool, fault):
    status, output = _sanitize(tool, fault)
    assert status == FOUND, output[-2000:]
