"""What compiling beforehand does to Triton's autotuner."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from measuring.rows import tune_anew, tune_briefly
from measuring.warming import compile_share
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
