"""How far the results of a correct implementation may be from the truth, on this very input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .arguments import Arguments
from .arithmetic import MonteCarlo, Precision
from .numbers import EXTENDED, FLOAT64
from .operators import evaluate

# A deviation is linear in the roundoffs until they meet an ill-conditioned solve. Runs for a
# float64 implementation are drawn this much coarser and scaled back: float64's own rounding is then
# 2^-13 of the noise, and the runs need no extended precision, which has no fast products.
COARSER = 2.0**13


def spread(
    arguments: Arguments,
    do,
    dht,
    precision: Precision,
    samples: int = 8,
    seed: int = 0,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The truth of every quantity, and how far Monte-Carlo runs of the naive algorithm deviate.

    do, dht: adjoints as in `operators.evaluate`. Returns (truth, deviations), two dicts from
    quantity to array; a deviation has a leading axis of `samples`, half with a xi for each element,
    half with one for each array. The truth is the token-by-token recurrence, in extended precision
    when the implementation under test computes in float64, which float64 cannot judge. A sample
    that is not finite leaves NaN or inf.
    """
    double = precision.accumulate <= Precision.float64().accumulate
    if double:
        precision = precision.scaled(COARSER)
    rows = min(arguments.chunk_size, precision.rows or arguments.chunk_size)
    arguments = replace(arguments, chunk_size=rows)
    arithmetic = MonteCarlo(precision, np.random.default_rng(seed), samples)
    truth = evaluate(arguments, do, dht, "recurrence", system=EXTENDED if double else FLOAT64)
    runs = evaluate(arguments, do, dht, "naive", arithmetic)
    with np.errstate(all="ignore"):
        deviations = {name: np.asarray(runs[name] - truth[name], np.float64) for name in truth}
        if double:
            deviations = {name: deviation / COARSER for name, deviation in deviations.items()}
    return truth, deviations
