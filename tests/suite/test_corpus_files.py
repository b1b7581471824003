"""Corpus files: written once and whole, read back exactly, refused by file and field when wrong."""

import json
import math
from dataclasses import replace

import pytest

from properties.case import Case
from properties.corpus import Entry, Found, entries, load, save
from properties.materialize import materialize

CASE = Case(operator="kda", lengths=(0, 17), packed=True, gates="resets", scale=0.1, seed=3)


def entry(case: Case = CASE, **fields) -> Entry:
    found = Found(
        date="2026-01-31",
        implementation="eager",
        score=3.25,
        device="cpu",
        versions={"numpy": "2.4.6", "torch": "2.13.0"},
    )
    own = {
        "property": "matches_oracle",
        "quantity": "dg",
        "inputs": materialize(case).digest,
        "found": found,
        "note": "dg is NaN after a reset",
    }
    return Entry(case=case, **own | fields)


@pytest.fixture
def path(tmp_path):
    return save(entry(), tmp_path)


def edit(path, **changes):
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | changes))


def test_entry_round_trips(path):
    assert load(path) == entry()
    assert entries(path.parents[1]) == [entry()]


@pytest.mark.parametrize("score", [math.inf, None, 0.1, 1e300])
def test_every_score_round_trips(tmp_path, score):
    scored = entry(found=replace(entry().found, score=score))
    assert load(save(scored, tmp_path)) == scored


def test_undefined_score_round_trips(tmp_path):
    scored = entry(found=replace(entry().found, score=math.nan))
    assert math.isnan(load(save(scored, tmp_path)).found.score)


def test_file_is_short_sorted_json(path, tmp_path):
    text = path.read_text()
    data = json.loads(text)
    assert list(data) == sorted(data)
    assert data["case"] == CASE.to_dict(short=True)
    assert 10 <= len(text.splitlines()) <= 30
    assert text.endswith("}\n")
    assert path.relative_to(tmp_path).parts[0] == "kda"
    assert path.name.startswith("matches_oracle-")


def test_name_depends_on_property_and_case_only():
    names = {entry(note="other", quantity="dk", status="fixed").name, entry().name}
    names |= {entry(property="is_causal").name, entry(case=replace(CASE, seed=4)).name}
    assert len(names) == 3


def test_name_is_stable():
    assert entry().name == "matches_oracle-88147b88b7b7"


def test_existing_file_is_kept(path, tmp_path):
    text = path.read_text()
    assert save(entry(note="found again"), tmp_path) == path
    assert path.read_text() == text
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_entries_are_sorted_and_skip_other_files(path, tmp_path):
    (tmp_path / "README.md").write_text("what belongs here\n")
    for seed in range(5):
        save(entry(case=replace(CASE, seed=seed)), tmp_path)
    found = entries(tmp_path)
    assert len(found) == 5
    paths = [one.relative_path for one in found]
    assert paths == sorted(paths)


def test_empty_corpus_has_no_entries(tmp_path):
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("schema", {"schema": 2}),
        ("schema", {"schema": "1"}),
        ("property", {"property": "Matches oracle"}),
        ("operator", {"operator": "gdn2"}),
        ("quantity", {"quantity": ""}),
        ("case.heads", {"case": {"operator": "kda", "heads": 0}}),
        ("case.colour", {"case": {"operator": "kda", "colour": "red"}}),
        ("case", {"case": []}),
        ("file name", {"case": {"operator": "kda"}}),
        ("inputs", {"inputs": "0" * 64}),
        ("found", {"found": None}),
        ("found.date", {"found": {}}),
        ("found.colour", {"found": entry().found.__dict__ | {"colour": "red"}}),
        ("found.date", {"found": entry().found.__dict__ | {"date": "yesterday"}}),
        ("found.score", {"found": entry().found.__dict__ | {"score": "big"}}),
        ("found.versions", {"found": entry().found.__dict__ | {"versions": {"numpy": 2}}}),
        ("status", {"status": "closed"}),
        ("note", {"note": None}),
        ("colour", {"colour": "red"}),
    ],
)
def test_wrong_field_is_named_with_its_file(path, field, changes):
    edit(path, **changes)
    with pytest.raises(ValueError, match=f"{field}: ") as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {field}: ")


def test_missing_field_is_named(path):
    data = json.loads(path.read_text())
    del data["quantity"]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="quantity: missing"):
        load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_malformed_file_is_named(path, text):
    path.write_text(text)
    with pytest.raises(ValueError, match=path.name):
        load(path)


def test_drifted_inputs_stop_the_whole_corpus(path, tmp_path):
    edit(path, inputs="f" * 64)
    with pytest.raises(ValueError, match="drifted"):
        entries(tmp_path)
