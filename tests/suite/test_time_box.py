"""The time box of ``--minutes``: who gets how much of it, and what its end does not hide."""

from __future__ import annotations

import json
import time

import pytest

POLICIES = "test_policies.py::test_policies_are_bitwise_equal"


@pytest.mark.parametrize("workers", ["0", "1"])
def test_time_box_ends_the_search(suite, workers):
    report = suite.directory / "report.json"
    options = ("--hypothesis-profile", "nightly", "--minutes", "0.2", "-n", workers)
    started = time.monotonic()
    run = suite.pytest(POLICIES, *options, "--report", str(report), adapter="Right")
    assert run.returncode == 0, run.stdout
    outcome = json.loads(report.read_text())
    assert outcome["clock"]["cases"] < 4000  # of 4 x 2000
    assert {test["outcome"] for test in outcome["tests"]} == {"passed"}
    assert time.monotonic() - started < 120


SEARCHES = """
import time
import pytest
from hypothesis import given, settings, strategies as st

QUICK = set(map(int, {quick!r}))

@pytest.mark.parametrize("n", range({searches}))
@settings(max_examples=100_000, deadline=None, database=None)
@given(case=st.integers())
def test_search(n, case):
    if n in QUICK:
        pytest.skip("quick")
    time.sleep(0.02)

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
    tests = [
        test
        for test in json.loads(report.read_text())["tests"]
        if "test_search" in test["test"] and not any(f"[{n}]" in test["test"] for n in quick)
    ]
    assert {test["outcome"] for test in tests} == {"passed"}
    drawn = [test["drawn"] for test in tests]
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


def test_time_that_is_up_makes_no_search_flaky_that_draws_by_itself(suite):
    """A search that ended before its second draw would look like one that draws otherwise."""
    (suite.directory / "test_draws.py").write_text(
        "import time\n"
        "from hypothesis import given, settings, strategies as st\n"
        "@settings(max_examples=100_000, deadline=None)\n"
        "@given(n=st.integers(0, 1), data=st.data())\n"
        "def test_draws(n, data):\n"
        "    data.draw(st.integers())\n"
        "    time.sleep(0.01)\n"
    )
    options = ("-p", "properties.recorder", "-p", "no:xdist", "--minutes", "0.05")
    run = suite.python("-m", "pytest", "-p", "no:cacheprovider", *options, "test_draws.py")
    assert run.returncode == 0, run.stdout
    assert "1 passed" in run.stdout, run.stdout


def test_searches_that_are_no_laws_keep_to_the_time_box(suite):
    report = suite.directory / "report.json"
    options = ("--hypothesis-profile", "hunt", "--minutes", "0.15", "-p", "no:xdist")
    options = (*options, "--report", str(report), "-k", "centred or chunk_size")
    started = time.monotonic()
    run = suite.pytest("test_algebra.py", *options)
    assert run.returncode == 0, run.stdout
    tests = json.loads(report.read_text())["tests"]
    assert [test["outcome"] for test in tests] == ["passed"] * 2
    assert all(0 < test["drawn"] < 10_000 for test in tests), tests  # each had its share, no more
    assert "no implementation has run a case" in run.stdout
    assert time.monotonic() - started < 40


def test_time_box_ends_the_searches_after_a_failure(suite):
    options = ("--hypothesis-profile", "nightly", "--minutes", "0.05")
    report = suite.directory / "report.json"
    run = suite.pytest(POLICIES, *options, "--report", str(report), adapter="DiffersWithoutGates")
    assert run.returncode == 1
    outcome = json.loads(report.read_text())
    assert outcome["tests"][0]["outcome"] == "failed"
    assert {test["outcome"] for test in outcome["tests"][1:]} <= {"passed", "skipped"}
    assert max(test["drawn"] for test in outcome["tests"][1:]) < 2000
    assert not outcome["flaky"]
