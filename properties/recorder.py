"""pytest plugin: the suite's options, Hypothesis profiles, and a corpus file for every shrunk
failure.

A failure carries its corpus entry; the worker that saw it hands the text to the controller through
the report, and the controller alone writes, so a failure is one file with and without xdist.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from properties import session as suite
from properties.case import OPERATORS
from properties.corpus import parse, save
from properties.implementations import default
from properties.tally import Tally
from properties.truth import clock

pytest_plugins = ["properties.time_box"]

ROOT = Path(__file__).parent.parent
# As for Hypothesis itself, but at home in the repository and not in the current directory.
STORAGE = Path(os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY", ROOT / ".hypothesis"))
FAILURE = "rewy_failure"
DRAWN = "rewy_drawn"
# Why a law is skipped that has judged nothing: a pass would say what nobody looked at. The last
# lines count these, so that an adapter which claims too little is seen.
UNCLAIMED = "no implementation under test claims any of these cases"
DEFAULT_PROFILE = "dev"

# Every profile names its parent: without one it would inherit from the current profile, and under
# CI=true silently be derandomized and without a database.
_PARENT = settings.get_profile("default")
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
_WITHOUT_EXPLAIN = [phase for phase in Phase if phase is not Phase.explain]


def _register(name: str, examples: int, *, database: bool = True, **options: object) -> None:
    settings.register_profile(
        name,
        parent=_PARENT,
        max_examples=examples,
        deadline=None,
        derandomize=options.pop("derandomize", False),
        database=DirectoryBasedExampleDatabase(STORAGE / "examples") if database else None,
        suppress_health_check=_SLOW,
        print_blob=False,
        **options,
    )


_register("dev", 30, phases=_WITHOUT_EXPLAIN)
_register("gate", 12, database=False, derandomize=True, phases=_WITHOUT_EXPLAIN)
_register("nightly", 2000, phases=_WITHOUT_EXPLAIN)
_register("hunt", 10_000)
settings.load_profile(DEFAULT_PROFILE)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rewy", "property suite")
    group.addoption(
        "--implementation",
        action="append",
        metavar="NAME",
        help="what to test: eager, eager-save, naive, triton, triton-save, fla, or "
        "module:attribute for your own adapter; repeatable",
    )
    group.addoption(
        "--device",
        default="cpu",
        help="where implementations run: cpu, cuda, npu, ... (default cpu)",
    )
    group.addoption(
        "--operator", action="append", choices=OPERATORS, help="only this operator; repeatable"
    )
    group.addoption(
        "--minutes", type=float, help="draw new cases for so many minutes, shared by the searches"
    )
    group.addoption("--report", metavar="FILE", help="write a JSON report of the run")
    group.addoption(
        "--corpus", metavar="DIR", default=str(ROOT / "corpus"), help="where failures are recorded"
    )


def pytest_configure(config: pytest.Config) -> None:
    names = _names(config)
    minutes = config.getoption("--minutes")
    if minutes is not None and not minutes > 0:
        raise pytest.UsageError(f"--minutes: got {minutes}, wanted a number above 0")
    report = config.getoption("--report")
    if report is not None and not Path(report).absolute().parent.is_dir():
        raise pytest.UsageError(f"--report: got {report}, whose folder does not exist")
    try:
        suite.configure(names, config.getoption("--device"), _deadline(config, minutes))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[_TALLY] = Tally()
    if _is_worker():
        import torch

        torch.set_num_threads(1)  # workers share the cores
    else:
        _report_leftovers()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """xdist: the workers share the controller's deadline."""
    node.workerinput["rewy_deadline"] = suite.deadline()


def _names(config: pytest.Config) -> tuple[str, ...]:
    chosen = config.getoption("--implementation")
    return tuple(chosen or default(config.getoption("--device")))


def _deadline(config: pytest.Config, minutes: float | None) -> float | None:
    if _is_worker():
        return config.workerinput.get("rewy_deadline")
    return None if minutes is None else time.time() + 60 * minutes


def _is_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


def pytest_report_header(config: pytest.Config) -> str:
    names = _names(config)
    profile = settings.get_current_profile_name()
    return f"rewy: {', '.join(names)} on {suite.hardware()}, profile {profile}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--operator")
    if not wanted:
        return
    kept, dropped = [], []
    for item in items:
        operator = getattr(item, "callspec", None) and item.callspec.params.get("operator")
        (kept if operator is None or operator in wanted else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """A law that no implementation claims a case of has proved nothing, and says so."""
    before = clock["cases"]
    try:
        result = yield
    finally:
        if cases := suite.cases_of_test():
            item.user_properties.append((DRAWN, cases))
    if getattr(item.obj, "is_law", False) and clock["cases"] == before:
        pytest.skip(UNCLAIMED)
    return result


def leaves(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """The failures inside an exception, and whether Hypothesis called them flaky."""
    if isinstance(error, BaseExceptionGroup):
        flaky = "Flaky" in type(error).__name__
        for inner in error.exceptions:
            for leaf, was in leaves(inner):
                yield leaf, flaky or was
    else:
        yield error, False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    if call.when == "call" and call.excinfo is not None:
        for error, flaky in leaves(call.excinfo.value):
            if (record := getattr(error, "record", None)) is not None:
                # On the item, before the reports are made: the JUnit writer reads the last report.
                item.user_properties.append(
                    (FAILURE, json.dumps({"entry": record, "flaky": flaky}))
                )
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session):
    config = session.config
    if _is_worker():
        config.workeroutput["rewy_clock"] = dict(clock)
        config.workeroutput["rewy_regimes"] = dict(suite.regimes())
        config.workeroutput["rewy_checks"] = dict(suite.checks())
    result = yield
    if not _is_worker():
        config.stash[_TALLY].add(clock, suite.regimes(), suite.checks())
        if path := config.getoption("--report"):
            config.stash[_TALLY].write(Path(path))
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    output = getattr(node, "workeroutput", {})
    if "rewy_clock" in output:
        node.config.stash[_TALLY].add(
            output["rewy_clock"], output["rewy_regimes"], output["rewy_checks"]
        )


_TALLY = pytest.StashKey[Tally]()


class _Controller:
    """Hooks that need the config: registered once, in the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        tally = self.config.stash[_TALLY]
        tally.unclaimed += report.skipped and UNCLAIMED in str(report.longrepr)
        tally.tests.append(
            {
                "test": report.nodeid,
                "outcome": report.outcome,
                "seconds": round(report.duration, 2),
                "drawn": dict(report.user_properties).get(DRAWN, 0),
            }
        )
        if report.when != "call" or not report.failed:  # an open entry's replay fails and is known
            return
        for key, text in report.user_properties:
            if key != FAILURE:
                continue
            failure = json.loads(text)
            if failure["flaky"]:
                tally.flaky.append(json.loads(failure["entry"]))
            else:
                entry, corpus = parse(failure["entry"]), Path(self.config.getoption("--corpus"))
                known = (corpus / entry.relative_path).exists()
                (tally.known if known else tally.recorded).append(str(save(entry, corpus)))

    def pytest_terminal_summary(self, terminalreporter) -> None:
        tally, write = self.config.stash[_TALLY], terminalreporter.write_line
        cases, spent = tally.clock["cases"], sum(report["seconds"] for report in tally.tests)
        if cases and spent:
            elapsed = time.time() - tally.started
            ours, oracle = tally.clock["implementation"], tally.clock["oracle"]
            rest = max(spent - ours - oracle, 0)
            write(
                f"rewy: {cases} cases in {elapsed:.0f} s ({cases / elapsed:.1f} a second); "
                f"implementations {ours / spent:.0%}, oracles {oracle / spent:.0%}, "
                f"Hypothesis and the rest {rest / spent:.0%}"
            )
        elif suite.deadline() is not None:
            write("rewy: no implementation has run a case", yellow=True)
        if tally.unclaimed:
            write(
                f"rewy: {tally.unclaimed} of {len(tally.tests)} tests met no case that is claimed, "
                "and say nothing (-rs --no-fold-skipped names them)",
                yellow=True,
            )
        for path in sorted(set(tally.recorded)):
            write(f"rewy: recorded {path}", red=True)
        for path in sorted(set(tally.known)):
            write(f"rewy: recorded already {path}", red=True)
        for entry in tally.flaky:
            write(
                f"rewy: flaky, not recorded: {entry['property']} {json.dumps(entry['case'])}",
                red=True,
            )


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if not _is_worker():
        session.config.pluginmanager.register(_Controller(session.config), "rewy-controller")


def _report_leftovers() -> None:
    """Say which cases an earlier crash left in the journal, and how to see them again."""
    for path in suite.leftovers():
        print(
            f"rewy: an earlier run died in the middle of {path}: python -m properties replay {path}"
            " (said until that file is deleted)"
        )
