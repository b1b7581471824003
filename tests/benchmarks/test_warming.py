"""What compiling beforehand does to Triton's autotuner."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from measuring.rows import tune_anew, tune_briefly
from measuring.shapes import SHAPES
from measuring.warming import Job, compile_share, jobs
from triton.runtime import autotuner


class Kernel:
    """Notes how it was started."""

    def __init__(self):
        self.started = []
        self.fn = lambda x: None

    def run(self, *arguments, **constants):
        self.started.append(constants["num_warps"])


@pytest.fixture
def tuned(monkeypatch):
    """A kernel with four candidates; Triton is as it was afterwards."""
    for name in ("_bench", "do_bench"):
        monkeypatch.setattr(autotuner.Autotuner, name, vars(autotuner.Autotuner)[name])
    configs = [autotuner.Config({}, num_warps=warps) for warps in (1, 2, 4, 8)]
    return autotuner.Autotuner(Kernel(), ["x"], configs, ["x"], None, None)


def test_shapes_go_together_where_code_is_the_same_but_not_for_flashqla(monkeypatch):
    monkeypatch.setattr("measuring.sides.missing", lambda package: False)
    shapes = [SHAPES[name] for name in ("b1-t8192", "b8-t2048", "packed-t16384")]
    found = jobs(["delta_rule", "gated_delta_rule"], shapes, False)
    dense, packed = ("b1-t8192", "b8-t2048"), ("packed-t16384",)
    gated = "gated_delta_rule"
    assert found[:3] == [Job(gated, "flash-qla", (shape.name,), 0, 1) for shape in shapes]
    for operator in ("delta_rule", gated):
        theirs = [job for job in found if job[:2] == (operator, "fla")]
        assert [job.shapes for job in theirs] == 3 * [dense] + 3 * [packed]
        assert [job.shard for job in theirs] == 2 * [0, 1, 2]
        ours = [Job(operator, "rewy", names, 0, 1) for names in (dense, packed)]
        assert [job for job in found if job[:2] == (operator, "rewy")] == ours
    every = list(SHAPES.values())
    assert {job.whose for job in jobs([gated], every, True)} == {"rewy"}
    ours = [name for job in jobs([gated], every, True) for name in job.shapes]
    assert sorted(ours) == sorted(SHAPES)


@pytest.mark.parametrize(("shard", "compiled"), [(0, [1, 4]), (1, [2, 8])])
def test_a_process_compiles_its_share_and_runs_on(tuned, shard, compiled):
    compile_share(shard, 2)
    tuned.run(x=1)
    assert tuned.fn.started == [*compiled, compiled[0]]


def test_a_share_that_cannot_be_compiled_is_not_chosen(tuned):
    compile_share(1, 2)

    def run(*arguments, num_warps, **constants):
        if num_warps in (2, 8):
            raise autotuner.OutOfResources(2, 1, "shared memory")

    tuned.fn.run = run
    tuned.run(x=1)
    assert tuned.cache[(1,)].num_warps == 1


def test_tuning_is_brief_and_can_be_forgotten(tuned, monkeypatch):
    asked = []

    def do_bench(call, **options):
        call()
        asked.append(options)
        return [1.0, 1.0, 1.0]

    monkeypatch.setattr("triton.testing.do_bench", do_bench)
    tune_briefly()
    tuned.run(x=1)
    tuned.run(x=1)
    assert asked == 4 * [{"warmup": 5, "rep": 25, "quantiles": (0.5, 0.2, 0.8)}]
    tune_anew()
    tuned.run(x=1)
    assert len(asked) == 8
