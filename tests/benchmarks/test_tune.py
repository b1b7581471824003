"""What tuning keeps, and that it is not asked while it tunes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

import tune

from rewy.backends.triton import remembered, run, start
from rewy.backends.triton.configs import Config, config

LINE = {"operator": "gdn2", "kernel": "channel_scores", "config": [64, 0, 1, 2], "size": 64}


@pytest.fixture(autouse=True)
def card(tmp_path, monkeypatch):
    monkeypatch.setenv("REWY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a card")
    remembered._of_card.cache_clear()
    yield
    remembered._of_card.cache_clear()


def test_the_fastest_is_kept_and_a_pass_is_not(capsys):
    tune.keep(LINE)
    name = remembered.name_of("channel_scores", 2, True, 64, 64)
    assert remembered.recall(torch.device("cuda"), name) == Config(64, 0, 1, 2)
    tune.keep({**LINE, "kernel": "passes"})
    assert "not remembered" in capsys.readouterr().err


@pytest.mark.parametrize("kernel", tune.TILES)
def test_what_ships_is_among_the_candidates(kernel):
    for operator, gate in (("delta_rule", 0), ("gated_delta_rule", 1), ("kda", 2)):
        if tune.launched(operator, kernel):
            shipped = config(kernel, 64, 128, 128, "bf16", gate, True, 16)
            assert tuple(shipped) in tune.candidates(kernel, None), operator


def test_a_candidate_goes_before_what_is_remembered(monkeypatch):
    monkeypatch.setattr(run, "config", config)  # both are put back afterwards
    monkeypatch.setattr(run, "recall", lambda device, name: Config(16, 16, 2, 2))
    tune.choose(tune.Job("gdn2", "local", (64, 64, 8, 3)))
    assert run.recall(torch.device("cuda"), "local") is None
    sizes = 64, 128, 128, "bf16", 2, True, 16
    assert run.config("local", *sizes) == Config(64, 64, 8, 3)
    assert run.config("output", *sizes) == config("output", *sizes)


@pytest.mark.parametrize(
    ("error", "found", "right"), [(0.003, [], True), (0.3, [], False), (0.003, ["a copy"], False)]
)
def test_right_is_what_errs_little_and_overwrites_nothing(monkeypatch, error, found, right):
    monkeypatch.setattr(tune, "in_a_process", lambda *_: (0, [[error, found]]))
    outcome = tune.check(tune.Job("kda", "solve", (0, 0, 1, 2)), None)
    assert outcome.right == right
    assert all(line in outcome.told for line in found)


def test_what_was_launched_is_looked_through(monkeypatch):
    seen = []
    kernels = {n: SimpleNamespace(name="_k", asm={"ttgir": f"code {n}"}) for n in range(2)}
    monkeypatch.setattr(start, "_compiled", kernels)
    monkeypatch.setattr("properties.hazards.hazards", lambda code: seen.append(code) or [code])
    assert tune.overwritten() == ["_k: code 0", "_k: code 1"]
    assert seen == ["code 0", "code 1"]
