"""Calibration of kappa: the worst score a correct naive implementation reaches at kappa = 1.

The suite's one constant. A night judges millions of parts, and none of a right implementation may
fail, so kappa is the largest score among many draws, rounded up; the number of draws is said beside
it.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed

from properties import truth
from properties.case import OPERATORS, Case
from properties.implementations import find
from properties.strategies import cases
from properties.verdict import judge

PERCENTILES = (50, 90, 99, 99.9, 99.99)
ROUND = 250  # cases of one search; every search has its own seed and operator
KEPT = 8  # worst cases told


def calibrate(
    draws: int,
    implementations: Sequence[str] = ("naive",),
    *,
    processes: int = 1,
    first_seed: int = 0,
    minutes: float | None = None,
) -> dict:
    """Scores of every quantity at kappa = 1 over ``draws`` cases, shared out evenly between the
    operators.

    Returns percentiles and the largest, by implementation; the worst cases; and, with two
    implementations, percentiles of the ratio of their scores, quantity by quantity. Shows progress.
    """
    rounds = [
        (
            OPERATORS[n % len(OPERATORS)],
            first_seed + n,
            min(ROUND, draws - n * ROUND),
            tuple(implementations),
        )
        for n in range(-(-draws // ROUND))
    ]
    scores: dict[str, list[float]] = {name: [] for name in implementations}
    ratios: list[float] = []
    worst: list[tuple[float, str]] = []
    started, done = time.time(), 0
    for found, cases_of_round in _map(_search, rounds, processes):
        for name, values in found.items():
            scores[name] += values
        if len(implementations) == 2:
            ratios += [a / b for a, b in zip(*found.values(), strict=True) if a > 0 and b > 0]
        worst = sorted(worst + cases_of_round, reverse=True)[:KEPT]
        done += 1
        elapsed = time.time() - started
        print(
            f"{done} of {len(rounds)} rounds of {ROUND} in {elapsed:.0f} s; "
            f"largest {worst[0][0]:.3f}",
            flush=True,
        )
        if minutes is not None and elapsed > 60 * minutes:
            break
    outcome = {"draws": min(done * ROUND, draws), "first seed": first_seed}
    outcome |= {"seconds": round(time.time() - started), "torch": str(torch.__version__)}
    outcome["scores"] = {name: _table(values) for name, values in scores.items()}
    if ratios:
        outcome["ratio"] = {"of": list(implementations), **_table(ratios)}
    outcome["worst"] = [f"{score:.3f} {what}" for score, what in worst]
    return outcome


def _map(function, jobs: Sequence[tuple], processes: int) -> Iterator:
    if processes == 1:
        yield from map(function, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _one_thread) as pool:
        yield from pool.imap_unordered(function, jobs)


def _one_thread() -> None:
    torch.set_num_threads(1)


def _table(values: list[float]) -> dict[str, float]:
    points = np.percentile(values, PERCENTILES)
    table = {str(p): round(float(x), 3) for p, x in zip(PERCENTILES, points, strict=True)}
    return {**table, "largest": round(float(max(values)), 3), "count": len(values)}


def _search(job: tuple) -> tuple[dict[str, list[float]], list[tuple[float, str]]]:
    """One round: (scores by implementation, its worst cases)."""
    operator, seed, examples, implementations = job
    scores: dict[str, list[float]] = {name: [] for name in implementations}
    worst: list[tuple[float, str]] = []

    @hypothesis_seed(seed)
    @settings(
        settings.get_profile("default"),
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(operator))
    def search(case: Case) -> None:
        for name in implementations:
            implementation = find(name)
            results = implementation.run(case, truth.inputs_of(case), "cpu")
            expected = truth.budget(case, implementation.precision(case))
            found = judge(case, results, *expected, kappa=1.0).scores
            scores[name] += found.values()
            quantity = max(found, key=found.get)
            what = f"{name} {quantity} {json.dumps(case.to_dict(short=True))}"
            worst.append((found[quantity], what))

    search()
    return scores, sorted(worst, reverse=True)[:KEPT]
