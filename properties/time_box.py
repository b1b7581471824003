"""pytest plugin: the time box of ``--minutes``, shared by the searches that are still to come.

A search that it ends has passed, like one that has drawn all its cases, if it has drawn any.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest

from properties import session as suite

_BEGUN = pytest.StashKey[int]()  # searches, by this process
_IS_LAST = pytest.StashKey[bool]()  # of this process's tests, the one that runs


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    item.config.stash[_IS_LAST] = nextitem is None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    searches = _searches(item)
    suite.begin_test(_left(item) if searches else 1)
    if searches and suite.deadline() is not None:
        _keep_time(item.obj)
    if searches and suite.out_of_time():
        pytest.skip(f"{suite.TIME_IS_UP}: nothing is drawn")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item):
    try:
        return (yield)
    except pytest.skip.Exception as end:
        if not (str(end.msg).startswith(suite.TIME_IS_UP) and suite.cases_of_test()):
            raise
        return None


def _searches(item: pytest.Item) -> bool:
    """Whether a test draws cases for as long as it may."""
    test = getattr(item, "obj", None)
    return getattr(test, "is_hypothesis_test", False) or getattr(test, "is_search", False)


def _keep_time(test: Callable) -> None:
    """End a search of Hypothesis when its share of the time is spent, also one that is no law and
    does not ask: a skip ends it, where a return would draw on.
    """
    found = getattr(test, "hypothesis", None)
    if found is None or getattr(test, "is_law", False) or hasattr(found.inner_test, "keeps_time"):
        return
    inner = found.inner_test

    @functools.wraps(inner)
    def kept(*arguments: object, **options: object) -> object:
        with suite.seeing_failures():
            found = inner(*arguments, **options)
        suite.drew()
        # Behind whatever the test draws by itself: one that stops drawing earlier looks flaky.
        if suite.out_of_time():
            pytest.skip(suite.TIME_IS_UP)
        return found

    kept.keeps_time = True
    found.inner_test = kept


def _left(item: pytest.Item) -> int:
    """How many searches this process is still to run, this one among them.

    Estimated under xdist, whose workers know all tests but of those that come here only the next:
    neither fewer than an equal part, nor than what lies behind this one leaves to each worker.
    """
    config, items = item.config, item.session.items
    if config.stash[_IS_LAST]:
        return 1
    behind = sum(map(_searches, items[items.index(item) :]))
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers == 1 or getattr(config.option, "dist", "no") == "each":
        return behind
    begun = config.stash[_BEGUN] = config.stash.get(_BEGUN, 0) + 1
    mine = math.ceil(sum(map(_searches, items)) / workers)
    return max(mine - begun + 1, math.ceil(behind / workers), 2)
