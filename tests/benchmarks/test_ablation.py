"""What of benchmarks/ablation.py needs no GPU."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import ablation
from ablating import rows
from ablating.comparison import prepared
from ablating.rows import COMPARISONS, candidates, exact
from ablating.table import ratio
from measuring import timing
from measuring.floors import Ceilings
from measuring.shapes import SHAPES, Shape, make_inputs

from tests.triton.compiling import Launch, compile_for, usage

STACK = 64  # bytes a thread that may be spilled registers
ROOT = Path(__file__).parents[2]
SIDES = [
    pytest.param(comparison, side, id=f"{comparison.name}-{side.name}")
    for comparison in COMPARISONS.values()
    for side in comparison.sides
]


def inputs(name, dtype, size):
    """A comparison's tensors on two chunks."""
    comparison = COMPARISONS[name]
    shape = Shape("two", (128,), H=1, HV=1, size=size)
    return comparison.make(make_inputs(comparison.operator, shape, "initial", "cpu"), dtype)


def scores(q, k, E):
    """``sum_d q_id k_jd E_ij,d``, strictly lower."""
    return torch.einsum("mid,mjd,mijd->mij", q, k, E).tril(-1)


def assert_are(found, truth):
    assert found.keys() == truth.keys()
    for name, y in found.items():
        torch.testing.assert_close(y, truth[name], rtol=1e-9, atol=1e-12)


def test_correction_s_truth_is_the_derivative():
    x = inputs("correction", torch.float64, 16)
    A = x["A"]
    system = A.inverse().tril(-1), x["b"] * x["v"], x["K_b"]
    L, R, K_b = (y.clone().requires_grad_() for y in system)
    one = torch.eye(64, dtype=L.dtype)
    U = torch.linalg.solve_triangular(one + L.tril(-1), R - K_b @ x["S"], upper=False)
    torch.testing.assert_close(U, x["U"])
    found = torch.autograd.grad((U * x["dU"]).sum(), (R, L, K_b))
    truth = COMPARISONS["correction"].truth(x)
    assert_are(dict(zip(("dR", "dL", "dK_b"), found, strict=True)), truth)
    Y = A.mT @ x["dU"]  # and so are three products
    assert_are({"dR": Y, "dL": -(Y @ x["U"].mT).tril(-1), "dK_b": -Y @ x["S"].mT}, truth)


def test_truth_some_chunks_at_a_time_is_the_truth(monkeypatch):
    comparison = COMPARISONS["reduction"]
    x = inputs("reduction", torch.float64, 16)
    monkeypatch.setattr(rows, "AT_ONCE", 1)
    assert_are(exact(comparison, x), comparison.truth(x))


@pytest.mark.parametrize("name", ["contraction", "reduction"])
def test_the_other_truths_are_the_derivatives(name):
    x = inputs(name, torch.float64, 16)
    q, keys, k = (y.clone().requires_grad_() for y in (x["q"], x["b"] * x["k"], x["k"]))
    G = (x["G"] * torch.tensor(2.0, dtype=torch.float64).log()).requires_grad_()  # natural
    E = (G[:, :, None] - G[:, None]).clamp(max=0).exp().expand(-1, -1, -1, 16)
    loss = (scores(q, k, E) * x["dP"]).sum() + (scores(keys, k, E) * x["dL"]).sum()
    by_name = {"Dq": q, "Dbk": keys, "Dk": k} | ({"dG": G} if name == "reduction" else {})
    found = torch.autograd.grad(loss, tuple(by_name.values()))
    assert_are(dict(zip(by_name, found, strict=True)), COMPARISONS[name].truth(x))


def test_interpreted_kernels_are_right():
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.ablated"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert "all right" in run.stdout
    assert run.stdout.count(": right") == 6


@pytest.mark.parametrize(("comparison", "side"), SIDES)
def test_candidates_compile_for_hopper_without_spills(comparison, side, record_property):
    x = inputs(comparison.name, torch.bfloat16, 128)
    out = comparison.empty(x)
    for tile in side.tiles[::3]:
        kernel, _, _, arguments, constants = prepared(comparison, side, tile, x, out)
        found = usage(compile_for(Launch(kernel, tuple(arguments), constants, tile, ()), 90))
        record_property(str(tile), str(found))
        assert found.stack <= STACK, (tile, found)
        assert found.shared <= 232_448, (tile, found)


def test_both_sides_have_the_same_programs_and_results():
    for comparison in COMPARISONS.values():
        x = inputs(comparison.name, torch.bfloat16, 128)
        found = comparison.empty(x)
        naive, ours = comparison.sides
        assert {tile._replace(UNROLL=1) for tile in naive.tiles} == set(ours.tiles)
        for side in comparison.sides:
            assert found.keys() <= set(side.kernel.arg_names)
        for tile in ours.tiles:
            programs = {prepared(comparison, side, tile, x, found)[1] for side in comparison.sides}
            assert len(programs) == 1


def test_counts_are_those_of_the_method():
    macs = {
        side.name: side.count(64, 128).products / 2e6
        for comparison in COMPARISONS.values()
        for side in comparison.sides
    }
    assert macs == pytest.approx({
        "seven products": 3.7, "three products": 2.1, "pairwise": 0, "centred": 3.1, "Gram": 3.1,
        "reuse": 2.1,
    }, abs=0.05)  # fmt: skip


def test_shapes_are_whole_chunks():
    assert set(ablation.shapes()) == set(SHAPES) - {"packed-t16384", "gva-b1-t8192"}
    side = COMPARISONS["contraction"].ours
    assert max(tile.BK for tile in candidates(side, 64)) == 64


def test_a_candidate_that_faults_is_left_out(monkeypatch):
    """Its process ends, and another goes on without it, for the shapes that are left."""
    asked = []

    def run(command):
        task = json.loads(command[-1])
        asked.append(task)
        lines = [{"trying": ["Gram", [32, 4, 2, 1]]}]
        if task["refused"]:
            lines += [{"comparison": "reduction", "shape": shape} for shape in task["shapes"]]
        Path(task["lines"]).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return subprocess.CompletedProcess(command, 0 if task["refused"] else -6)

    monkeypatch.setattr(subprocess, "run", run)
    options = type("Options", (), {"shapes": ["b1-t8192", "b8-t2048"], "repeats": 3})
    found, status = ablation.rows_of("reduction", options)
    assert [row["shape"] for row in found] == options.shapes
    assert status == 0
    assert [len(task["refused"]) for task in asked] == [0, 1]
    assert asked[1]["refused"] == [["Gram", [32, 4, 2, 1], "its process ended with -6"]]


def test_everything_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(ablation, "about", lambda commit: {"gpu": "none", "date": commit})
    monkeypatch.setattr(timing, "Card", lambda: None)
    monkeypatch.setattr(timing, "ceilings", lambda card: Ceilings(1e12, 1e14))
    row = {"comparison": "reduction", "shape": "b1-t8192", "sides": {}}
    monkeypatch.setattr(ablation, "rows_of", lambda name, options: ([row], -6))
    file = tmp_path / "x.json"
    options = argparse.Namespace(comparisons=["reduction"], commit="abc", repeats=3, json=file)
    found = json.loads(file.read_text()) if ablation.measure(options) else None
    assert found["about"].keys() == {"gpu", "date", "command", "repeats", "ceilings", "faults"}
    assert "ablation.py" in found["about"]["command"]
    assert found["rows"] == [row]


def test_ratio_is_naive_over_ours():
    sides = {"reuse": {"median": 1.0}, "Gram": {"median": 3.0}}
    assert ratio({"comparison": "reduction", "sides": sides}) == 3
    assert ratio({"comparison": "reduction", "sides": {"reuse": {"median": 1.0}}}) is None


def test_without_a_gpu_it_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, ROOT / "benchmarks/ablation.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs an NVIDIA GPU" in done.stderr
