"""The recorder: a run of the suite on deliberately wrong adapters, with and without xdist."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from properties.corpus import entries, save

ROOT = Path(__file__).parents[2]
BUDGET = "test_budget.py::test_results_are_within_budget"
POLICIES = "test_policies.py::test_policies_are_bitwise_equal"
GATE = ("--hypothesis-profile", "gate")


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
    sent = suite.directory / "sent.json"  # where nothing says which operator
    sent.write_text(text)
    assert "adapters:OneQuantity: FAILS" in suite.python("-m", "properties", "replay", sent).stdout
    sent.write_text("{}")
    told = suite.python("-m", "properties", "replay", sent)
    assert (told.returncode, "neither of the corpus nor of .journal/" in told.stderr) == (2, True)
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
