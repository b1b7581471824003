"""What a first call launches is compiled before, side by side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime import _async_compile

from rewy.backends.triton import ahead, graph
from tests.triton.compiling import problem

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("operator", ["delta_rule", "kda"])
def test_nothing_is_left_for_launches_to_compile(operator):
    command = [sys.executable, "-m", "tests.triton.compiled_ahead", operator]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    compiled, left = (int(part.split()[0]) for part in run.stdout.split(", ")[:2])
    assert compiled >= 8, run.stdout
    assert left == 0, run.stdout


def test_each_kind_is_gone_through_once_and_what_fails_is_left_to_the_launch(monkeypatch):
    tried = []

    def forward(given):
        assert _async_compile.active_mode.get() is not None
        tried.append(given)
        raise RuntimeError("no such GPU")

    monkeypatch.setattr(graph, "forward", forward)
    monkeypatch.setattr(ahead, "_seen", set())
    monkeypatch.setattr(ahead.knobs.runtime, "interpret", False)
    given = problem("kda", torch.bfloat16, 64, 64, 64)
    for other in (given, given, problem("kda", torch.float16, 64, 64, 64)):
        ahead.compile_ahead(other)
    assert [x.tensors.q.dtype for x in tried] == [torch.bfloat16, torch.float16]
    assert _async_compile.active_mode.get() is None  # launches compile as they always do
