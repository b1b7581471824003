"""What of benchmarks/gpu.py needs no GPU."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import gpu
import pytest
import torch
from measuring.checks import complaint, errors, truth
from measuring.floors import Ceilings, floor, moved_bytes, product_flops
from measuring.plot import plot
from measuring.report import add_floors, means, ratio, report
from measuring.shapes import (
    DTYPES,
    LOWEST_GATE,
    OPERATORS,
    POLICIES,
    SHAPES,
    SIX,
    Shape,
    gates_of,
    make_inputs,
    small,
)
from measuring.timing import spread

ROOT = Path(__file__).parents[2]
H200 = Ceilings(4.3e12, 788e12)
TINY = Shape("tiny", (70, 70), H=2, HV=4, size=16)


def row(shape="b1-t8192", ours=1.0, theirs=2.0, **changes):
    """A row as it is recorded."""

    def side(ms):
        times = {"median": ms, "low": ms, "high": ms, "host": 0.1}
        wrong = {"errors": {"o": 1e-3, "dg": 4e-3}, "errors_small": {"o": 1e-3}}
        return {"forward": times, "backward": {**times}, "peak_mib": 100.0, "used": [], **wrong}

    return {
        "operator": "kda", "shape": shape, "gates": "initial", "policy": "save",
        "sides": {"rewy": side(ours), "fla": side(theirs), "fla safe_gate": {"refused": "a & b"}},
        **changes,
    }  # fmt: skip


def run(rows):
    """A recorded run."""
    return {
        "about": {"date": "2026-12-01", "command": "python benchmarks/gpu.py", "gpu": "H200",
                  "versions": {"rewy": "0.1.0"}, "dtype": "bfloat16", "repeats": 30,
                  "ceilings": H200._asdict()},
        "rows": rows,
    }  # fmt: skip


def test_shapes_are_the_issue_s():
    sizes = {name: (s.B, s.tokens, s.H, s.HV, s.size) for name, s in SHAPES.items()}
    assert sizes == {
        "b1-t8192": (1, 8192, 16, 16, 128),
        "b1-t32768": (1, 32768, 16, 16, 128),
        "b8-t2048": (8, 16384, 16, 16, 128),
        "b4-t8192": (4, 32768, 16, 16, 128),
        "packed-t16384": (1, 16384, 16, 16, 128),
        "b4-t4096-k64": (4, 16384, 16, 16, 64),
        "gva-b1-t8192": (1, 8192, 16, 32, 128),
    }
    assert len(SHAPES["packed-t16384"].lengths) == 8
    assert "gva-b1-t8192" not in SIX
    assert len(SIX) == 6


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_small_shapes_compile_to_the_same(shape):
    few = small(shape)
    assert few.tokens <= 250 * shape.B
    kept = ("packed", "B", "H", "HV", "size")
    assert [getattr(few, name) for name in kept] == [getattr(shape, name) for name in kept]


@pytest.mark.parametrize("operator", OPERATORS)
def test_inputs(operator):
    for gates in gates_of(operator):
        spec, t = make_inputs(operator, TINY, gates, "cpu").problem
        assert (spec.B, spec.T, spec.HV, spec.N) == (2, 70, 4, 2)
        assert (t.g is None) == (operator == "delta_rule")
        if t.g is not None:
            assert float(t.g.max()) <= 0
            assert float(t.g.min()) >= LOWEST_GATE
            assert (float(t.g.max()) <= -1) == (gates == "strong")


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_of_the_type_that_is_wanted_but_gates(dtype):
    x = make_inputs("gdn2", TINY, "initial", "cpu", dtype)
    t = x.problem.tensors
    found = {y.dtype for y in (t.q, t.k, t.v, t.b, t.w, x.do)}
    assert found == {getattr(torch, dtype)}
    assert t.g.dtype == torch.float32


def test_truth_by_heads_is_the_eager_graph():
    from rewy.backends.eager import eager
    from rewy.problem import Problem

    x = make_inputs("gdn2", TINY._replace(H=8, HV=16), "initial", "cpu")
    found = truth(x, torch.float32)
    spec, t = x.under("save").problem
    problem = Problem(spec, type(t)(*(None if y is None else y.float() for y in t)))
    o, _, saved = eager.forward(problem)
    torch.testing.assert_close(found["o"], o)
    d = eager.backward(problem, saved, x.do.float(), None)
    assert max(errors(found, {"dk": d.k, "dg": d.g, "dw": d.w}).values()) < 1e-5
    assert found.keys() == {"o", "dq", "dk", "dv", "dg", "db", "dw"}


def test_what_is_wrong_is_told():
    assert complaint({"o": 1e-3}, "here") is None
    assert complaint({"o": 1e-3, "dg": 0.3}, "here") == "wrong at the here: dg 3.0e-01"
    assert complaint({"o": float("nan")}, "here") == "wrong at the here: o nan"
    with pytest.raises(ValueError, match="lack"):
        errors({}, {"o": torch.ones(1)})


def test_floors_are_those_of_the_design():
    """Milliseconds of the backward at B1 T32768 on an H200, counted by hand; P is kept beside a
    channel gate, where the design forms it anew.
    """
    shape = SHAPES["b1-t32768"]
    macs_a_chunk_and_head = product_flops("kda", shape, "recompute", "backward") / 2 / 512 / 16
    assert macs_a_chunk_and_head == pytest.approx(14.2e6, rel=0.01)
    found = {
        operator: floor(operator, shape, "recompute", "backward", H200) for operator in OPERATORS
    }
    ms = {operator: round(1e3 * x.seconds, 2) for operator, x in found.items()}
    assert ms == {"delta_rule": 0.31, "gated_delta_rule": 0.31, "kda": 0.38, "gdn2": 0.5}
    assert (found["kda"].binding, found["delta_rule"].binding) == ("bytes", "products")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_bytes_are_those_of_the_tensors(operator, policy):
    x = make_inputs(operator, TINY, gates_of(operator)[0], "cpu")
    inputs = sum(y.nbytes for y in x.problem.tensors if y is not None)
    size = TINY.size
    matrices = {"recompute": 64 * 64, "save": 64 * 64 + 64 * size + size * size}[policy]
    if operator in ("kda", "gdn2"):
        matrices += 64 * 64
    kept = 2 * (2 * 2) * 4 * matrices  # two chunks of two sequences, four heads
    assert moved_bytes(operator, TINY, policy, "forward") == inputs + x.do.nbytes + kept
    assert moved_bytes(operator, TINY, policy, "backward") == 2 * inputs + x.do.nbytes + kept


@pytest.mark.parametrize("policy", POLICIES)
def test_the_adjoint_multiplies_out_what_was_not_kept(policy):
    counts = {
        operator: product_flops(operator, SHAPES["b1-t8192"], policy, "backward")
        for operator in OPERATORS
    }
    scores = 2 * 128 * 16 * 64 * 64 * 128  # P, which is kept beside a channel gate
    assert counts["delta_rule"] == counts["gated_delta_rule"] == counts["kda"] + scores


def test_means_are_geometric_and_over_the_six():
    rows = [row("b1-t8192", 1, 2), row("b1-t32768", 1, 8), row("gva-b1-t8192", 1, 100)]
    (forward, backward) = means(rows)
    assert (forward["direction"], backward["direction"]) == ("forward", "backward")
    assert backward["mean"] == pytest.approx(4)
    assert (backward["against"], backward["shapes"], backward["least"]) == ("fla", 2, 2)
    assert ratio(rows[0], "fla safe_gate", "backward") is None


def test_shares_and_report():
    found = run([row()])
    add_floors(found["rows"], H200)
    side = found["rows"][0]["sides"]["rewy"]
    least = found["rows"][0]["floors"]["backward"]
    assert side["backward"]["share"] == pytest.approx(least["ms"])
    text = report(run([row(), row("b8-t2048")]))
    assert "| kda | initial | save | b1-t8192 | fla | 2.000 | 2.000 to 2.000 | 2.00 |" in text
    assert "| kda | initial | save | fla | backward | 2.00 | 2.00 | 2 of 6 |" in text
    assert "- fla safe_gate, kda: a & b: b1-t8192 (initial gates, save), b8-t2048" in text
    widths = {line.count("|") for line in text.split("## ")[1].splitlines() if line[:1] == "|"}
    assert widths == {14}


def test_plot_is_svg():
    svg = plot(run([row(), row("b8-t2048", 1, 0.5)]), "backward")
    circles = ElementTree.fromstring(svg).findall(".//{*}circle")
    assert len(circles) == 2 + 2  # the legend's and the rows'
    ElementTree.fromstring(plot(run([]), "forward"))


def test_from_merges_runs_of_one_card(tmp_path):
    files = [tmp_path / f"{name}.json" for name in "abcd"]
    other = run([])
    other["about"]["gpu"] = "another"
    half = run([])
    half["about"]["dtype"] = "float16"
    before = run([row()])
    del before["about"]["dtype"]  # as it was when there was no other
    calls = [{"operator": "kda", "policy": "save", "side": "rewy", "seconds": 7.25}]
    runs = (before, {**run([]), "first_calls": calls}, other, half)
    for file, found in zip(files, runs, strict=True):
        file.write_text(json.dumps(found))
    command = [sys.executable, ROOT / "benchmarks/gpu.py", "--plot", tmp_path / "x.svg", "--from"]
    done = subprocess.run([*command, *files[:2]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| kda | save | rewy | 7.2 |" in done.stdout
    assert (tmp_path / "x.svg").read_text().startswith("<svg")
    for file, what in ((files[2], "gpu"), (files[3], "dtype")):
        done = subprocess.run([*command, files[0], file], capture_output=True, text=True)
        assert f"was not measured with {files[0]}'s {what}" in done.stderr


def test_spread():
    assert spread([5.0, 1.0, 2.0, 3.0, 4.0, 6.0]) == {"median": 3.5, "low": 2.0, "high": 5.0}


def test_a_row_is_measured_and_told():
    """All but the card: the kernels are interpreted, the clock is the host's."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.interpreted"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert "1 rows" in run.stdout


@pytest.mark.skipif(importlib.util.find_spec("fla") is None, reason="fla-core is not installed")
def test_fla_takes_what_it_is_given():
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.launchless"],
        cwd=ROOT,
        env={**os.environ, "FLA_CACHE_RESULTS": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert "30 calls" in run.stdout


def test_a_run_that_is_stopped_keeps_its_rows(tmp_path, monkeypatch):
    def stopped(step, options, environment, rows, **values):
        Path(rows).write_text(json.dumps(row()) + "\n" + json.dumps(row())[:-1])
        raise SystemExit(143)

    monkeypatch.setattr(gpu, "in_a_process", stopped)
    monkeypatch.setattr(gpu, "about", lambda commit: {})
    monkeypatch.setattr("measuring.timing.ceilings", lambda card: H200)
    monkeypatch.setattr("measuring.timing.Card", object)
    options = argparse.Namespace(
        operators=["kda", "gdn2"], commit=None, repeats=2, minutes=1, dtype="float16",
        json=tmp_path / "x.json",
    )  # fmt: skip
    with pytest.raises(SystemExit):
        gpu.measure(options)
    found = json.loads(options.json.read_text())
    assert found["rows"] == [row()]
    assert found["about"]["dtype"] == "float16"
    assert found["about"]["faults"] == {"kda": "stopped"}
