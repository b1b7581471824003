"""The operators on an accelerator's device type, without an accelerator: see on_npu.py."""

import os
import subprocess
import sys
from pathlib import Path

import npu
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.skipif(npu.missing() is not None, reason=str(npu.missing()))
def test_operators_on_npu(tmp_path):
    environment = {name: x for name, x in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider",
         f"--basetemp={tmp_path / 'child'}", str(HERE / "on_npu.py")],
        cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=900,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    assert " skipped" not in run.stdout, run.stdout
