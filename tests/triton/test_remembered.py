"""Configurations that tuning found, on disk."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("triton")

from rewy.backends.triton import remembered, run
from rewy.backends.triton.configs import Config
from rewy.backends.triton.remembered import name_of, path, recall, remember
from tests.triton.compiling import problem, recorded

CARD = "NVIDIA H200/2"
NAME = name_of("local", 1, False, 128, 64)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("REWY_CACHE_DIR", str(tmp_path / "new"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: CARD)
    remembered._of_card.cache_clear()
    yield tmp_path / "new"
    remembered._of_card.cache_clear()


def test_what_is_remembered_is_recalled(folder):
    gpu = torch.device("cuda", 0)
    assert recall(gpu, NAME) is None
    file = remember(CARD, {NAME: Config(64, 64, 4, 3)})
    assert file.parent == folder
    assert file == path(CARD)
    assert recall(gpu, NAME) == Config(64, 64, 4, 3)
    remember(CARD, {NAME: Config(64, 32, 8, 2), "other": Config(0, 0, 2, 2)})
    assert recall(gpu, NAME) == Config(64, 32, 8, 2)
    remember(CARD, {"other": Config(0, 0, 4, 2)})
    assert recall(gpu, NAME) == Config(64, 32, 8, 2)
    assert [p.name for p in folder.iterdir()] == [file.name]
    assert recall(torch.device("cpu"), NAME) is None


def test_another_card_or_version_has_its_own(monkeypatch):
    first = path(CARD)
    monkeypatch.setattr(remembered.triton, "__version__", "9.9")
    assert len({first, path(CARD), path("another")}) == 3


def test_names_tell_apart_what_configurations_depend_on():
    names = {
        name_of(kernel, gate, erase, KP, VP)
        for kernel in ("local", "output")
        for gate in (0, 1, 2)
        for erase in (False, True)
        for KP in (64, 128)
        for VP in (64, 128)
    }
    assert len(names) == 48


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        json.dumps({NAME: [64, 64, 4]}),
        json.dumps({NAME: [64, 48, 4, 2]}),
        json.dumps({NAME: [64, 64, 4, 1]}),
        json.dumps({NAME: [64, 64, 0, 2]}),
        json.dumps({NAME: ["64", 64, 4, 2]}),
        json.dumps({NAME: 7}),
    ],
)
def test_a_file_that_makes_no_sense_is_ignored_aloud(folder, text):
    folder.mkdir()
    path(CARD).write_text(text)
    with pytest.warns(UserWarning, match="ignored"):
        assert recall(torch.device("cuda"), NAME) is None


def test_it_is_asked_where_sizes_are_compiled_in_and_for_no_pass(monkeypatch):
    asked = []
    tuned = Config(64, 64, 8, 2)

    def recall(device, name):
        asked.append(name)
        return tuned if name.startswith("local,") else None

    monkeypatch.setattr(run, "recall", recall)
    with recorded():  # starts nothing
        known = run.Run(problem("gated_delta_rule", torch.bfloat16, 128, 64, 64))
    assert known.config("local") == tuned
    assert known.config("output") not in (tuned, None)
    known.config("passes")
    assert asked == [NAME, name_of("output", 1, False, 128, 64)]
    for other in (
        problem("gated_delta_rule", torch.float32, 128, 64, 64),
        problem("gated_delta_rule", torch.bfloat16, 100, 64, 64),
        problem("gated_delta_rule", torch.bfloat16, 128, 64, 32),
    ):
        with recorded():
            assert run.Run(other).config("local") != tuned
    assert len(asked) == 2
