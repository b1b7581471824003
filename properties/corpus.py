"""The corpus: shrunk failing cases as JSON, corpus/<operator>/<property>-<digest>.json, one each.

A file holds the case and not its arrays; the digest of the arrays shows when a case has come to
mean something else. A file is written once; afterwards only its `status` and `note` change.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path

from properties.case import Case
from properties.materialize import materialize

SCHEMA = 1
STATUSES = ("open", "fixed")
ENTRY_FIELDS = "schema property operator quantity case inputs found status note".split()
FOUND_FIELDS = "date implementation score device versions".split()


@dataclass(frozen=True, kw_only=True)
class Found:
    """When and how an entry was found.

    date: ISO, such as 2026-01-31. implementation: the adapter's name. score: error over budget,
    infinite when a result was not finite and where a law has no score (a crash, a refusal).
    device: the hardware's name. versions: library -> version.
    """

    date: str
    implementation: str
    score: float | None
    device: str
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One failing case: the law it broke, in which quantity, and how it was found.

    status: "open" while some implementation still fails it, "fixed" once it is a regression test.
    inputs: digest of the materialised inputs. Raises ValueError naming the field at fault.
    """

    property: str
    quantity: str
    case: Case
    inputs: str
    found: Found
    status: str = "open"
    note: str = ""

    def __post_init__(self) -> None:
        named = re.fullmatch(r"[a-z0-9_]+", self.property) if _text(self.property) else None
        _require("property", self.property, named, "lower-case words joined by underscores")
        for name in ("quantity", "inputs"):
            value = getattr(self, name)
            _require(name, value, _text(value) and value, "a non-empty string")
        _require("case", self.case, isinstance(self.case, Case), "a case")
        _require("status", self.status, self.status in STATUSES, f"one of {', '.join(STATUSES)}")
        _require("note", self.note, _text(self.note), "a string")
        found, number = self.found, self.found.score
        _require("found.date", found.date, _is_date(found.date), "an ISO date")
        _require("found.score", number, number is None or type(number) is float, "a float or null")
        for name in ("implementation", "device"):
            value = getattr(found, name)
            _require(f"found.{name}", value, _text(value), "a string")
        versions = found.versions
        strings = isinstance(versions, Mapping) and all(map(_text, (*versions, *versions.values())))
        _require("found.versions", versions, strings, "an object of strings")

    @property
    def name(self) -> str:
        """`<property>-<digest>`; the digest covers the property and the case alone."""
        # Defaults are left out, so that a new field of Case renames no file.
        identity = {"property": self.property, "case": self.case.to_dict(short=True)}
        canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return f"{self.property}-{sha256(canonical.encode()).hexdigest()[:12]}"

    @property
    def relative_path(self) -> Path:
        """Where the entry lies below the corpus's root."""
        return Path(self.case.operator) / f"{self.name}.json"

    def to_json(self) -> str:
        """The file's text: sorted keys, two spaces of indent, lists on one line."""
        score = self.found.score
        if score is not None and not math.isfinite(score):
            score = str(score)  # JSON has no infinity
        found = {name: getattr(self.found, name) for name in FOUND_FIELDS} | {"score": score}
        data = {name: getattr(self, name) for name in ("property", "quantity", "inputs")}
        data |= {"schema": SCHEMA, "operator": self.case.operator, "status": self.status}
        data |= {"case": self.case.to_dict(short=True), "found": found, "note": self.note}
        return _object(data, indent=0, depth=2) + "\n"


def parse(text: str) -> Entry:
    """The entry that `Entry.to_json` wrote; raises ValueError naming the field at fault."""
    return _parse(json.loads(text))


def load(path: str | os.PathLike, *, anywhere: bool = False) -> Entry:
    """The entry in a file.

    Raises ValueError naming the file and the field if it is malformed, has an unknown or missing
    field, a newer schema, inputs that no longer have its digest, or, unless ``anywhere``, a name
    that is not its own.
    """
    path = Path(path)
    try:
        entry = parse(path.read_text(encoding="utf-8"))
        wanted = entry.relative_path.as_posix()
        got = Path(*path.absolute().parts[-2:]).as_posix()
        _require("file name", got, anywhere or got == wanted, wanted)
        digest = materialize(entry.case).digest
        _require("inputs", entry.inputs, entry.inputs == digest, f"{digest}: the inputs drifted")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return entry


def save(entry: Entry, root: str | os.PathLike) -> Path:
    """Write an entry below `root` unless its file exists already; returns the file's path.

    The file appears whole or not at all, and of several writers the first one wins.
    """
    path = Path(root) / entry.relative_path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".draft")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(entry.to_json())
        os.chmod(draft, 0o644)  # mkstemp's files are private
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)
    return path


def entries(root: str | os.PathLike) -> list[Entry]:
    """Every entry below `root`, sorted by path; raises ValueError as `load` does."""
    return [load(path) for path in sorted(Path(root).glob("*/*.json"))]


def _parse(data: object) -> Entry:
    _require("entry", data, isinstance(data, dict), "an object")
    schema = data.get("schema")
    known = type(schema) is int and 1 <= schema <= SCHEMA
    _require("schema", schema, known, f"at most {SCHEMA}: a newer version wrote this")
    _require_fields(data, ENTRY_FIELDS, "")
    for name in ("case", "found"):
        _require(name, data[name], isinstance(data[name], dict), "an object")
    _require_fields(data["found"], FOUND_FIELDS, "found.")
    found = dict(data["found"])
    if found["score"] in ("inf", "nan") or type(found["score"]) is int:
        found["score"] = float(found["score"])
    try:
        case = Case.from_dict(data["case"])
    except ValueError as error:
        raise ValueError(f"case.{error}") from error
    _require("operator", data["operator"], data["operator"] == case.operator, case.operator)
    own = {name: data[name] for name in ("property", "quantity", "inputs", "status", "note")}
    return Entry(**own, case=case, found=Found(**found))


def _require(name: str, got: object, condition: object, wanted: str) -> None:
    if not condition:
        raise ValueError(f"{name}: got {got!r}, wanted {wanted}")


def _require_fields(data: Mapping, names: list[str], prefix: str) -> None:
    for name in names:
        if name not in data:
            raise ValueError(f"{prefix}{name}: missing")
    for name in data:
        if name not in names:
            raise ValueError(f"{prefix}{name}: not a field of an entry")


def _text(value: object) -> bool:
    return type(value) is str


def _is_date(value: object) -> bool:
    try:
        return _text(value) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _object(data: Mapping, indent: int, depth: int) -> str:
    if not depth or not data:
        return json.dumps(data, sort_keys=True, allow_nan=False)
    lines = []
    for name, value in sorted(data.items()):
        if isinstance(value, Mapping):
            text = _object(value, indent + 2, depth - 1)
        else:
            text = json.dumps(value, allow_nan=False)
        lines.append(f"{' ' * (indent + 2)}{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
