"""The kernels keep to what is theirs, on the GPU at hand and in Triton's interpreter."""

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
from tests.triton.guards import FENCE, Fences, filled, same_bits, unfilled

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def _told(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "tests.triton.guards", *arguments]
    run = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
# Sizes that do not fill their padding, of more than one tile of key channels; and compiled in.
@pytest.mark.parametrize(
    ("dtype", "K", "V"), [("bfloat16", 100, 60), ("float32", 100, 60), ("bfloat16", 64, 128)]
)
@pytest.mark.parametrize("operator", OPERATORS)
def test_kernels_keep_to_their_memory(operator, dtype, K, V):
    assert _told(operator, dtype, str(K), str(V)) == []


@pytest.mark.parametrize("operator", OPERATORS)
def test_interpreted_kernels_keep_to_their_memory(operator):
    assert _told(operator, "bfloat16", "12", "9", "cpu") == []


def test_what_torch_hands_out_is_filled_and_only_then():
    before = torch.are_deterministic_algorithms_enabled()
    assert unfilled("cpu") == []
    with filled():
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.are_deterministic_algorithms_enabled() == before


def test_fences_surround_what_is_made_and_fall_when_written_to():
    values = torch.arange(6.0).view(2, 3)
    fences = Fences()
    given = fences.add("given", values.bfloat16())
    with fences:
        made = torch.empty(3, dtype=torch.float64), torch.empty_like(values), values.new_empty(1, 4)
        zeros = torch.zeros(2, 3)
    assert not fences.holds(values)
    assert all(fences.holds(x) for x in (given, *made, zeros))
    assert all(x.isnan().all() for x in made)
    assert not zeros.any()
    assert torch.equal(given.float(), values)
    beside = given.as_strided((8,), (1,), given.storage_offset() - 1)
    assert beside[[0, -1]].isnan().all()
    assert beside.is_contiguous()
    assert given.data_ptr() % 16 == FENCE % 16 == 0

    made[0].add_(1)  # its own memory, and NaN stays NaN
    assert fences.broken() == []
    beside[-1] = 0
    (told,) = fences.broken()
    assert told == "bytes after given are overwritten"
    x = made[1]
    x.as_strided((1,), (1,), x.storage_offset() - 1).fill_(torch.nan)
    assert len(fences.broken()) == 2


def test_bits_are_compared():
    x = torch.tensor([0.0, torch.nan])
    assert same_bits(x, x.clone())
    assert not same_bits(x, torch.tensor([-0.0, torch.nan]))
    assert not same_bits(x, x.double())


# A kernel that is not started leaves its results unwritten; chunks that are a row too long are read
# beyond the last token; outputs that start a token late are written beyond it.
PLANTED = """
import torch
import tests.triton.interpreter
from rewy.backends.triton import tiles
from rewy.backends.triton.run import Run
from tests.triton.guards import arguments, guarded_results
from tests.triton.on_device import Layout

layout = Layout(1, 1, 5, (0, 3, 5), 16, 1.0)
x = arguments("delta_rule", torch.float32, 3, 2, layout)
adjoints = torch.randn_like(x["v"]), torch.randn_like(x["initial_state"])
launch, tables = Run.launch, tiles._tables

def call():
    return guarded_results("delta_rule", x, layout, adjoints)

def faulty(run, kernel, programs, config, *arguments, **constants):
    if kernel.fn.__name__ == "_output":
        o = arguments[kernel.arg_names.index("o")]
        arguments = [y[:, 1:] if y is o else y for y in arguments]
    if (kernel.fn.__name__, constants.get("REVERSE")) != ("_local", True):
        launch(run, kernel, programs, config, *arguments, **constants)

def longer(*arguments):
    starts, table, firsts = tables(*arguments)
    return starts, table + torch.tensor([0, 1]), firsts

Run.launch = faulty
found, told = call()
assert found["ht"].isfinite().all() and found["dv"].isnan().any()
assert found["o"][:, 0].isnan().all() and len(told) == 1, told
assert told[0].startswith("bytes after aten.empty_like"), told

Run.launch, tiles._tables = launch, longer
found, told = call()
assert found["ht"].isnan().any()
"""


def test_planted_faults_are_found():
    run = subprocess.run(
        [sys.executable, "-c", PLANTED], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
