"""Every recorded failure again, an item a file: the law that found it, and nothing drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from properties import session
from properties.corpus import Entry, load
from properties.implementations import DEFAULT, find
from properties.law import load_laws
from properties.verdict import Mismatch


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "path" in metafunc.fixturenames:
        files = sorted(_root(metafunc.config).glob("*/*.json"))
        metafunc.parametrize("path", files, ids=[path.stem for path in files])


def _root(config: pytest.Config) -> Path:
    return Path(config.getoption("--corpus"))


def _entry(path: Path) -> Entry:
    """The entry of a file, whose law exists and speaks of its operator."""
    entry, laws = load(path), load_laws()
    if entry.property not in laws:
        wanted = f"one of {', '.join(sorted(laws))}"
        raise ValueError(f"{path}: property: got {entry.property!r}, wanted {wanted}")
    operators = laws[entry.property].operators
    if entry.case.operator not in operators:
        raise ValueError(
            f"{path}: operator: got {entry.case.operator!r}, and {entry.property} "
            f"speaks of {', '.join(operators)}"
        )
    return entry


def test_corpus_is_not_empty(pytestconfig: pytest.Config) -> None:
    root = _root(pytestconfig)
    assert list(root.glob("*/*.json")), f"{root}: no recorded failures, a replay proves nothing"


def test_every_file_lies_where_it_is_replayed(pytestconfig: pytest.Config) -> None:
    root = _root(pytestconfig)
    files = {path for path in root.rglob("*") if path.is_file()} - {root / "README.md"}
    assert files == set(root.glob("*/*.json"))


def test_recorded_failure_is_mended(path: Path, request: pytest.FixtureRequest) -> None:
    """The default implementations, and those that --implementation names, hold the law."""
    entry = _entry(path)
    found_by = entry.found.implementation
    chosen = request.config.getoption("--implementation") or ()
    foreign = ":" in found_by and " " not in found_by  # module:attribute
    if entry.status == "open" and foreign and found_by not in chosen:
        pytest.skip(f"open for somebody's own adapter: --implementation {found_by} replays it")
    if entry.status == "open":
        reason = f"open: {entry.note or entry.quantity} (holds it now? set status to fixed)"
        request.applymarker(pytest.mark.xfail(raises=Mismatch, strict=True, reason=reason))
    law = load_laws()[entry.property]
    for name in dict.fromkeys((*DEFAULT, *chosen)):
        implementation = find(name)
        if session.refusal(entry.case, implementation) is None:
            law.examine(entry.case, implementation)
