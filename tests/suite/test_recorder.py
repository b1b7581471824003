"""The recorder: a run of the suite on deliberately wrong adapters, with and without xdist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from properties.corpus import entries, save

ROOT = Path(__file__).parents[2]
BUDGET = "test_budget.py::test_results_are_within_budget"
POLICIES = "test_policies.py::test_policies_are_bitwise_equal"
GATE = ("--hypothesis-profile", "gate")

# Adapters as a user would write them, wrong in one way each.
ADAPTERS = """
import os

from properties.implementations.ours import Ours


class Right(Ours):
    def __init__(self):
        super().__init__(type(self).__name__.lower(), "eager", "recompute")


class TwoQuantities(Right):
    def run(self, case, inputs, device, **options):
        results = super().run(case, inputs, device, **options)
        wrong = "o" if case.head_size == 1 else "ht"
        results[wrong] = 2 * results[wrong] + 1
        return results


class OneQuantity(Right):
    def run(self, case, inputs, device, **options):
        results = super().run(case, inputs, device, **options)
        results["ht"] = results["ht"] + 1
        return results


class Flaky(Right):
    calls = 0

    def run(self, case, inputs, device, **options):
        results = super().run(case, inputs, device, **options)
        Flaky.calls += 1
        if Flaky.calls == 3:
            results["ht"] = results["ht"] + 1
        return results


class Raises(Right):
    def run(self, case, inputs, device, **options):
        raise KeyError("a table without this size")


class Refuses(Right):
    def refuses(self, case, device):
        return "no packed sequences" if case.packed else None


class RefusesAll(Right):
    def refuses(self, case, device):
        return "nothing of the kind"


class Dies(Right):
    def run(self, case, inputs, device, **options):
        os._exit(3)


class DiffersWithoutGates(Right):
    def run(self, case, inputs, device, **options):
        results = super().run(case, inputs, device, **options)
        if case.operator == "delta_rule":
            results["ht"] = results["ht"] + 1
        return results
"""


class Suite:
    """Runs the suite in an empty directory, with a corpus and an example database of its own."""

    def __init__(self, directory: Path):
        self.directory, self.corpus = directory, directory / "corpus"
        (directory / "adapters.py").write_text(ADAPTERS)
        inherited = {n: x for n, x in os.environ.items() if not n.startswith(("PYTEST_", "CI"))}
        self.environment = {
            **inherited,
            "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "storage"),
            "OMP_NUM_THREADS": "1",
        }

    def python(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )

    def pytest(self, test: str, *options: str, adapter: str | None = None):
        chosen = ("--implementation", f"adapters:{adapter}") if adapter else ()
        where = (str(ROOT / "properties" / test), "--corpus", str(self.corpus))
        return self.python("-m", "pytest", "-p", "no:cacheprovider", *where, *chosen, *options)


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_each_wrong_quantity_is_one_file(suite, workers):
    operators = ("--operator", "delta_rule", "--operator", "kda")
    options = (*GATE, *operators, "-n", workers)
    run = suite.pytest(BUDGET, *options, adapter="TwoQuantities")
    assert run.returncode == 1, run.stdout
    recorded = entries(suite.corpus)
    found = [(entry.case.operator, entry.quantity) for entry in recorded]
    assert sorted(found) == [(op, x) for op in ("delta_rule", "kda") for x in ("ht", "o")]
    for entry in recorded:
        assert entry.property == "results_are_within_budget"
        assert entry.status == "open"
        assert entry.found.implementation.split(":")[-1].lower() == "twoquantities"
        assert entry.found.score > 1
        assert "torch" in entry.found.versions
        shrunk = entry.case.to_dict(short=True).keys() - {"operator", "head_size"}
        assert not shrunk, "the case that is recorded is the one that shrinking ended with"
        assert f"recorded {suite.corpus / entry.relative_path}" in run.stdout


def test_replay_by_command_and_by_file(suite):
    run = suite.pytest(BUDGET, *GATE, "--operator", "kda", adapter="OneQuantity")
    command = re.search(r"replay: (python -m properties replay .*)", run.stdout).group(1)
    replay = suite.python(*shlex.split(command)[1:])
    assert replay.returncode == 1, replay.stderr
    assert "adapters:OneQuantity: FAILS" in replay.stdout
    assert "ht: score" in replay.stdout

    (file,) = suite.corpus.glob("*/*.json")
    text = file.read_text()
    again = suite.pytest(BUDGET, *GATE, "--operator", "kda", adapter="OneQuantity")
    assert f"recorded already {file}" in again.stdout
    assert file.read_text() == text
    own = suite.python("-m", "properties", "replay", str(file))
    assert own.returncode == 1, "a file is replayed on the adapter that it names"
    assert "adapters:OneQuantity: FAILS" in own.stdout
    right = suite.python("-m", "properties", "replay", str(file), "--implementation", "eager")
    assert right.returncode == 0, right.stderr
    assert right.stdout.count("holds") == 1
    assert not list((suite.directory / ".journal").iterdir()), "a case is left in flight"


@pytest.mark.parametrize(
    ("law", "implementation", "told"),
    [
        ("results_are_within_budget", "adapters:RefusesAll", "makes no claim for this case"),
        ("copies_in_one_call_get_equal_bits", "eager", "says nothing of this case"),
    ],
)
def test_a_replay_that_checks_nothing_is_no_success(suite, law, implementation, told):
    case = json.dumps({"operator": "kda", "gates": "constant", "lengths": [3]})
    given = ("--property", law, "--implementation", implementation, "--case", case)
    replay = suite.python("-m", "properties", "replay", *given)
    assert replay.returncode == 2
    assert told in replay.stdout
    assert "nothing was checked" in replay.stderr


def test_laws_without_a_claimed_case_are_counted(suite):
    run = suite.pytest(BUDGET, *GATE, "--operator", "kda", adapter="RefusesAll")
    assert run.returncode == 0, run.stdout
    assert re.search(r"rewy: (\d+) of \1 tests met no case that is claimed", run.stdout), run.stdout


def test_open_entry_is_expected_to_fail_and_a_fixed_one_to_hold(suite):
    example = next(x for x in entries(ROOT / "corpus") if x.property == "results_are_within_budget")
    file = save(replace(example, status="open"), suite.corpus)
    replay = ("../tests/test_corpus.py", "-n", "0")
    still = suite.pytest(*replay, adapter="OneQuantity")
    assert still.returncode == 0, still.stdout
    assert "1 xfailed" in still.stdout
    assert "recorded" not in still.stdout.replace("test_recorded", "")
    mended = suite.pytest(*replay, adapter="Right")
    assert mended.returncode == 1
    assert "XPASS(strict)" in mended.stdout
    file.write_text(file.read_text().replace('"open"', '"fixed"'))
    back = suite.pytest(*replay, adapter="OneQuantity")
    assert back.returncode == 1
    assert "ht: score" in back.stdout


def test_malformed_and_empty_corpora_fail(suite):
    replay = ("../tests/test_corpus.py", "-n", "0")
    suite.corpus.mkdir()
    empty = suite.pytest(*replay)
    assert empty.returncode == 1
    assert "no recorded failures" in empty.stdout
    file = next((ROOT / "corpus").glob("kda/*.json"))
    (suite.corpus / "kda").mkdir()
    copy = suite.corpus / "kda" / file.name
    copy.write_text(file.read_text().replace('"seed"', '"sead"'))
    malformed = suite.pytest(*replay)
    assert malformed.returncode == 1
    assert f"ValueError: {copy}: case.sead: not a field of a case" in malformed.stdout


def test_flaky_failure_is_not_recorded(suite):
    report = suite.directory / "report.json"
    options = (*GATE, "--operator", "kda", "--report", str(report))
    run = suite.pytest(BUDGET, *options, adapter="Flaky")
    assert run.returncode == 1
    assert "flaky, not recorded: results_are_within_budget" in run.stdout
    assert not suite.corpus.exists()
    (flaky,) = json.loads(report.read_text())["flaky"]
    assert flaky["quantity"] == "ht"


def test_exception_of_an_implementation_is_recorded_as_a_call(suite):
    suite.pytest(BUDGET, *GATE, "--operator", "delta_rule", adapter="Raises")
    (entry,) = entries(suite.corpus)
    assert (entry.quantity, entry.found.score) == ("call", float("inf"))


@pytest.mark.parametrize("workers", ["0", "1"])
def test_case_in_flight_survives_a_crash_of_the_process(suite, workers):
    options = (*GATE, "--operator", "gdn2", "-n", workers)
    run = suite.pytest(BUDGET, *options, adapter="Dies")
    assert run.returncode != 0
    (left,) = (suite.directory / ".journal").iterdir()
    flight = json.loads(left.read_text())
    assert flight["property"] == "results_are_within_budget"
    assert flight["implementation"] == "adapters:Dies"
    assert flight["case"]["operator"] == "gdn2"
    if workers != "0":
        return
    later = suite.pytest(POLICIES, "--collect-only", "-q")
    assert f"python -m properties replay {left.relative_to(suite.directory)}" in later.stdout
    replay = suite.python("-m", "properties", "replay", str(left), "--implementation", "eager")
    assert (replay.returncode, replay.stdout.count("eager: holds")) == (0, 1)


def test_case_in_flight_elsewhere_is_no_leftover(suite):
    """A run that starts beside another one sees its journal; only a dead one's is reported."""
    script = """if True:
        import os, subprocess, sys
        from properties import session
        from properties.case import Case
        session.configure(("eager",), "cpu", None)
        case = Case(operator="kda")
        with session.journal("policies_are_bitwise_equal", case, session.implementations(case)[0]):
            assert len(list(session.JOURNAL.iterdir())) == 1
            assert session.leftovers() == []
            subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", *sys.argv[1:]])
            os._exit(3)
    """
    test = str(ROOT / "properties" / POLICIES)
    run = suite.python("-c", script, test)
    assert run.returncode == 3, run.stderr
    assert "policies_are_bitwise_equal[kda]" in run.stdout
    assert "an earlier run died" not in run.stdout
    (left,) = (suite.directory / ".journal").iterdir()
    later = suite.pytest(POLICIES, "--collect-only", "-q")
    assert f"an earlier run died in the middle of .journal/{left.name}" in later.stdout


@pytest.mark.parametrize("workers", ["0", "1"])
def test_time_box_ends_the_search(suite, workers):
    report = suite.directory / "report.json"
    options = ("--hypothesis-profile", "nightly", "--minutes", "0.2", "-n", workers)
    started = time.monotonic()
    run = suite.pytest(POLICIES, *options, "--report", str(report), adapter="Right")
    assert run.returncode == 0, run.stdout
    outcome = json.loads(report.read_text())
    assert outcome["clock"]["cases"] < 4000  # of 4 x 2000
    assert {test["outcome"] for test in outcome["tests"]} <= {"passed", "skipped"}
    assert time.monotonic() - started < 120


SEARCHES = """
import time
import pytest
from hypothesis import given, settings, strategies as st
from properties import session

def search(case):
    if session.out_of_time():
        pytest.skip("time is up")
    session._current.cases_of_test += 1
    time.sleep(0.02)

QUICK = set(map(int, {quick!r}))

@pytest.mark.parametrize("n", range({searches}))
@settings(max_examples=100_000, deadline=None, database=None)
@given(case=st.integers())
def test_search(n, case):
    if n in QUICK:
        pytest.skip("quick")
    search(case)

@pytest.mark.parametrize("n", range({others}))
def test_of_something_else(n):
    pass
"""


@pytest.mark.parametrize(
    ("searches", "quick", "others", "options"),
    [
        (4, "", 0, ("-p", "no:xdist")),
        (2, "", 9, ("-p", "no:xdist")),  # what is no search gets no share
        (4, "", 0, ("-n", "2")),
        (8, "0145", 0, ("-n", "2")),  # one worker is through with more than its part
        (4, "", 0, ("-n", "2", "--dist", "loadfile")),  # all on one worker, which cannot know it
    ],
)
def test_searches_share_the_time_box(suite, searches, quick, others, options):
    """Each could go on for longer than all may."""
    text = SEARCHES.format(searches=searches, quick=quick, others=others)
    (suite.directory / "test_share.py").write_text(text)
    report = suite.directory / "report.json"
    options = ("-p", "properties.recorder", "--minutes", "0.25", "--report", str(report), *options)
    started = time.monotonic()
    run = suite.python("-m", "pytest", "-p", "no:cacheprovider", *options, "test_share.py")
    assert run.returncode == 0, run.stdout
    assert time.monotonic() - started < 60
    drawn = [
        test["drawn"]
        for test in json.loads(report.read_text())["tests"]
        if "test_search" in test["test"] and not any(f"[{n}]" in test["test"] for n in quick)
    ]
    assert len(drawn) == searches - len(quick)
    assert min(drawn) >= 10, drawn
    if "loadfile" not in options:
        assert min(drawn) >= max(drawn) / 5, drawn
    if "no:xdist" in options:
        assert sum(drawn) >= 300, drawn  # of 750 that would fit


def test_time_that_is_up_hides_no_failure_of_a_search_that_is_no_law(suite):
    """Shrinking goes on past the box."""
    (suite.directory / "test_fails.py").write_text(
        "import time\n"
        "from hypothesis import given, strategies as st\n"
        "@given(n=st.integers())\n"
        "def test_fails(n):\n"
        "    time.sleep(0.2)\n"
        "    assert n == 0\n"
    )
    options = ("-p", "properties.recorder", "-p", "no:xdist", "--minutes", "0.02")
    run = suite.python("-m", "pytest", "-p", "no:cacheprovider", *options, "test_fails.py")
    assert run.returncode == 1, run.stdout
    assert "1 failed" in run.stdout


def test_searches_that_are_no_laws_keep_to_the_time_box(suite):
    options = ("--hypothesis-profile", "nightly", "--minutes", "0.15", "-p", "no:xdist", "-rs")
    started = time.monotonic()
    run = suite.pytest("test_algebra.py", *options, "-k", "centred or chunk_size")
    assert run.returncode == 0, run.stdout
    assert len(re.findall("time is up", run.stdout)) >= 1, run.stdout
    assert "nothing is drawn" not in run.stdout  # each had its share
    assert "no implementation has run a case" in run.stdout
    assert time.monotonic() - started < 40


def test_time_box_ends_the_searches_after_a_failure(suite):
    options = ("--hypothesis-profile", "nightly", "--minutes", "0.05")
    report = suite.directory / "report.json"
    run = suite.pytest(POLICIES, *options, "--report", str(report), adapter="DiffersWithoutGates")
    assert run.returncode == 1
    outcome = json.loads(report.read_text())
    assert outcome["tests"][0]["outcome"] == "failed"
    assert [test["outcome"] for test in outcome["tests"][1:]] == ["skipped"] * 3
    assert not outcome["flaky"]


def test_report_counts_the_run(suite):
    report = suite.directory / "report.json"
    options = (*GATE, "--operator", "kda", "-n", "1", "--report", str(report))
    run = suite.pytest(POLICIES, *options, adapter="Right")
    assert run.returncode == 0, run.stdout
    outcome = json.loads(report.read_text())
    (test,) = outcome["tests"]
    assert test["test"].endswith("test_policies_are_bitwise_equal[kda]")
    assert test["outcome"] == "passed"
    assert test["drawn"] == outcome["clock"]["cases"]  # of one implementation
    assert outcome["profile"] == "gate"
    assert 1 <= outcome["clock"]["cases"] <= 12
    assert outcome["clock"]["implementation"] > 0
    assert all(name.startswith("kda ") for name in outcome["regimes"])
    drawn = sum(n for name, n in outcome["regimes"].items() if "through:" in name)
    assert drawn == outcome["clock"]["cases"]
    assert outcome["recorded"] == outcome["flaky"] == []
    assert outcome["implementations"] == {"adapters:Right": outcome["clock"]["cases"]}
    assert "rewy: adapters:Right on cpu" in run.stdout


@pytest.mark.parametrize("workers", ["0", "1"])
def test_report_leaves_out_what_nobody_ran(suite, workers):
    report = suite.directory / "report.json"
    options = (*GATE, "--operator", "kda", "-n", workers, "--report", str(report))
    run = suite.pytest(
        POLICIES, *options, "--implementation", "adapters:RefusesAll", adapter="Refuses"
    )
    assert run.returncode == 0, run.stdout
    outcome = json.loads(report.read_text())
    ran = outcome["clock"]["cases"]
    assert 1 <= ran < 12
    assert outcome["implementations"] == {"adapters:Refuses": ran, "adapters:RefusesAll": 0}
    assert sum(n for name, n in outcome["regimes"].items() if "through:" in name) == ran
    assert not any("packed" in name for name in outcome["regimes"])


def test_failure_says_the_case_once_and_in_short(suite):
    run = suite.pytest(BUDGET, *GATE, "--operator", "kda", adapter="OneQuantity")
    assert run.returncode == 1
    shown = [line for line in run.stdout.splitlines() if "replay: " in line]
    case = r"""--case '{"operator": "kda"}'"""
    assert shown
    assert all(
        line.endswith(
            "replay: python -m properties replay --property results_are_within_budget "
            f"--implementation adapters:OneQuantity {case}"
        )
        for line in shown
    )
    assert "Case(operator='kda')" in run.stdout  # the draw, as Hypothesis tells it
    assert "value_size" not in run.stdout, "a field that has its default"


def test_broken_budget_is_no_failure_of_the_implementation(suite):
    """It stops the test, with a command to see it again, and leaves no file."""
    (suite.directory / "conftest.py").write_text(
        "import numpy as np\n"
        "from properties import truth\n"
        "whole = truth.budget\n"
        "def broken(case, precision):\n"
        "    expected, deviations = whole(case, precision)\n"
        "    return expected, {name: x * np.nan for name, x in deviations.items()}\n"
        "truth.budget = broken\n"
    )
    options = (*GATE, "--operator", "kda", "-p", "conftest")
    run = suite.pytest(BUDGET, *options, adapter="Right")
    assert run.returncode == 1
    assert "BrokenBudget: o in row 0, tokens 0..0, head 0: the budget is not finite" in run.stdout
    assert "replay: python -m properties replay --property results_are_within" in run.stdout
    assert "fails on" not in run.stdout
    assert not suite.corpus.exists()


def test_operator_option_leaves_the_others_out(suite):
    both = ("--operator", "kda", "--operator", "gdn2")
    run = suite.pytest(POLICIES, "--collect-only", "-q", *both)
    items = [line for line in run.stdout.splitlines() if "::" in line]
    assert [re.search(r"\[(.*)\]", item).group(1) for item in items] == ["kda", "gdn2"]
    assert "2 deselected" in run.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--implementation", "quantum"), "implementation: got 'quantum', wanted one of eager"),
        (("--implementation", "nowhere:Mine"), "cannot load 'nowhere:Mine': No module named"),
        (("--device", "abacus"), "device: got 'abacus'"),
        (("--minutes", "0"), "--minutes: got 0.0, wanted a number above 0"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_wrong_option_is_a_usage_error(suite, options, message):
    run = suite.pytest(POLICIES, *options)
    assert run.returncode == 4
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_profiles_are_their_own_in_ci(suite):
    """Hypothesis loads a profile of its own under CI=true, from which others would inherit."""
    script = """if True:
        import json
        from hypothesis import settings
        import properties.recorder
        profiles = {}
        for name in ("dev", "gate", "nightly", "hunt"):
            x = settings.get_profile(name)
            kept = x.database is not None
            profiles[name] = [x.max_examples, x.derandomize, kept, x.deadline]
        print(json.dumps([settings.get_current_profile_name(), profiles]))
    """
    run = suite.python("-c", script, CI="true")
    current, profiles = json.loads(run.stdout)
    assert current == "dev"
    assert profiles == {
        "dev": [30, False, True, None],
        "gate": [12, True, False, None],
        "nightly": [2000, False, True, None],
        "hunt": [10_000, False, True, None],
    }


def test_a_plugin_that_rests_under_xdist_ends_no_run(suite):
    """pytest-benchmark before 5.3 says so by a warning, and warnings are errors here."""
    (suite.directory / "resting.py").write_text(
        "import warnings\n"
        "def pytest_configure(config):\n"
        "    warnings.warn('Benchmarks are automatically disabled because xdist is active.')\n"
    )
    run = suite.pytest(POLICIES, "--collect-only", "-q", "-p", "resting")
    assert run.returncode == 0, run.stdout + run.stderr
