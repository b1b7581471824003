"""What one run of the suite is about: implementations, device, operators, time; set by the
recorder's options.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch
from hypothesis.errors import HypothesisException

from properties.case import Case
from properties.corpus import Entry, Found
from properties.implementations import DEFAULT, Implementation, find
from properties.truth import clock, inputs_of

try:
    import fcntl
except ImportError:  # Windows, where a case in flight cannot be told from a leftover
    fcntl = None

JOURNAL = Path(".journal")
TIME_IS_UP = "time is up"  # begins the reason for which a search ends before it has drawn enough


@dataclass
class _Session:
    names: tuple[str, ...] = DEFAULT
    found: dict[str, Implementation] = field(default_factory=dict)
    device: str = "cpu"
    deadline: float | None = None
    until: float | None = None  # of the search at hand
    failed: bool = False
    regimes: Counter = field(default_factory=Counter)
    checks: Counter = field(default_factory=Counter)
    cases_of_test: int = 0
    journalling: bool = False


_current = _Session()


def configure(
    names: tuple[str, ...], device: str, deadline: float | None, journalling: bool = True
) -> None:
    """Say what this run is about. Raises ValueError for an unknown implementation or device."""
    found = {name: find(name) for name in names}
    try:
        torch.empty(0, device=device)
    except Exception as error:
        raise ValueError(f"device: got {device!r}: {error}") from error
    _current.names, _current.found = names, found
    _current.device, _current.deadline, _current.until = device, deadline, deadline
    _current.journalling = journalling


def device() -> str:
    """Where implementations run."""
    return _current.device


def deadline() -> float | None:
    """When no new cases are drawn any more, in seconds since the epoch."""
    return _current.deadline


def implementations(case: Case) -> list[Implementation]:
    """The implementations under test that claim a case."""
    return [x for x in _chosen() if refusal(case, x) is None]


def refusal(case: Case, implementation: Implementation) -> str | None:
    """Why an implementation makes no claim for a case here: what it says itself, or what it lacks
    of what the case asks for.
    """
    lacks = getattr(implementation, "lacks", lambda case: None)
    return implementation.refuses(case, _current.device) or lacks(case)


def _chosen() -> Collection[Implementation]:
    return (_current.found or {name: find(name) for name in _current.names}).values()


def kept_to(what: str) -> set | None:
    """The dtypes, chunk_sizes or head_sizes that the implementations under test keep to by an
    attribute of that name; None where one of them takes any.
    """
    kept = [getattr(implementation, what, None) for implementation in _chosen()]
    return None if None in kept else set().union(*kept)


def name_of(implementation: Implementation) -> str:
    """What ``--implementation`` must say to get this one: its own name, or module:attribute."""
    given = (name for name, x in _current.found.items() if x.name == implementation.name)
    return next(given, implementation.name)


def begin_test(left: int = 1) -> None:
    """A new search: an earlier one's failure does not keep it going when time is up.

    Of what is left of the time box it gets one part in ``left``, which counts this search and those
    to come. What it does not use is theirs: no law goes without cases because others came first.
    """
    _current.failed, _current.cases_of_test = False, 0
    if _current.deadline is not None:
        now = time.time()
        _current.until = now + (_current.deadline - now) / max(left, 1)


def cases_of_test() -> int:
    """How many cases the search at hand has run."""
    return _current.cases_of_test


def out_of_time() -> bool:
    """Whether this search's share of the time box is spent. Never after a failure in the same
    search, which must see it again to shrink it.
    """
    return _current.until is not None and not _current.failed and time.time() > _current.until


@contextlib.contextmanager
def seeing_failures() -> Iterator[None]:
    """A failure inside keeps this search going when its time is up, as :func:`out_of_time` says."""
    try:
        yield
    except HypothesisException:  # the search's own, such as an assumption that does not hold
        raise
    except Exception:
        _current.failed = True
        raise


def drew() -> None:
    """Count a case of the search at hand."""
    _current.cases_of_test += 1


def ran(implementation: Implementation) -> None:
    """Count a check of a case on an implementation, whatever came of it."""
    clock["cases"] += 1
    _current.checks[name_of(implementation)] += 1


def checks() -> Counter:
    """How many checks each implementation under test has run, by name; 0 where it claimed none."""
    return Counter({name: _current.checks[name] for name in _current.names})


def saw(case: Case) -> None:
    """Count a case that some implementation ran, and its regimes."""
    drew()
    _current.regimes.update(f"{case.operator} {regime}" for regime in case.regimes())


def regimes() -> Counter:
    """How often each regime was visited, as 'operator regime'."""
    return _current.regimes


def record(name: str, case: Case, implementation: Implementation, failure: Exception) -> str:
    """The corpus entry of a failure, as JSON; also notes that this search has failed."""
    _current.failed = True
    entry = Entry(
        property=name,
        quantity=failure.quantity,
        case=case,
        inputs=inputs_of(case).digest,
        found=Found(
            date=datetime.now(UTC).date().isoformat(),
            implementation=name_of(implementation),
            score=float(failure.score),
            device=hardware(),
            versions=dict(implementation.versions()),
        ),
    )
    return entry.to_json()


def hardware() -> str:
    """The device's name, as a corpus file or a report gives it."""
    kind = torch.device(_current.device).type
    module = getattr(torch, kind, None)
    if kind != "cpu" and hasattr(module, "get_device_name"):
        return module.get_device_name()
    return f"{kind} {platform.machine()}"


@contextlib.contextmanager
def journal(name: str, case: Case, implementation: Implementation) -> Iterator[None]:
    """Keep the case in flight on disk, so that a crash of the whole process leaves it behind.

    The file is locked while the process lives, which tells others that it is no leftover.
    """
    if not _current.journalling:
        yield
        return
    JOURNAL.mkdir(exist_ok=True)
    path = JOURNAL / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}.json"
    flight = {"property": name, "implementation": name_of(implementation), "case": case.to_dict()}
    with path.open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(flight, sort_keys=True))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def leftovers() -> list[Path]:
    """The journals of processes that are gone: nobody holds their lock."""
    return [path for path in sorted(JOURNAL.glob("*.json")) if _is_leftover(path)]


def _is_leftover(path: Path) -> bool:
    if fcntl is None:
        return True
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return bool(file.read())  # one that is empty is about to be locked and written
    except (BlockingIOError, FileNotFoundError):  # in flight, or just landed
        return False
