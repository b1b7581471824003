"""Whether a case's arithmetic rounds nowhere: the naive and the ReWY oracle run with every
operation watched.

On such a case the order of summation does not matter, and a right implementation has one answer, to
the bit.
"""

from __future__ import annotations

import numpy as np

import oracles
from oracles import Exact, Precision
from properties import truth
from properties.case import Case
from properties.materialize import Inputs

SPARE = 2  # bits kept free for partial products that are an implementation's own (blocks, halves)


class Rounds(Exception):
    """Somewhere a correct implementation would have to round."""


def significand(precision: Precision) -> int:
    """Significant bits that every operand, stored value and sum of an implementation has."""
    return round(-np.log2(max(precision.operand, precision.store, precision.accumulate)))


def quantum(x: np.ndarray) -> float:
    """The largest power of two that divides every element (1 for all zeros)."""
    x = np.asarray(x, np.float64)
    values = np.abs(x[x != 0])
    if not values.size:
        return 1.0
    mantissa, exponent = np.frexp(values)
    whole = (mantissa * 2.0**53).astype(np.int64)
    trailing = np.log2(whole & -whole).astype(np.int64)
    return float(np.ldexp(1.0, int((exponent - 53 + trailing).min())))


class Watched(Exact):
    """Exact arithmetic that raises `Rounds` where ``bits`` significant bits would not hold a value
    or a sum.
    """

    def __init__(self, bits: int):
        self._limit = 2.0 ** (bits - SPARE)

    def _hold(self, magnitude: np.ndarray, unit: float) -> None:
        if magnitude.size and not magnitude.max() / unit < self._limit:
            raise Rounds

    def store(self, x: np.ndarray) -> np.ndarray:
        self._hold(np.abs(x), quantum(x))
        return x

    accumulate = output = store

    def decay(self, x: np.ndarray, span: object = None) -> np.ndarray:
        return self.store(x)

    def sum(self, x: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
        self._hold(np.abs(x).sum(axis=axis), quantum(x))
        return super().sum(x, axis)

    def solve(self, L: np.ndarray, A: np.ndarray) -> np.ndarray:
        self._hold(np.abs(L) @ np.abs(A), quantum(L) * quantum(A))
        return A

    def matmul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        self._hold(np.abs(x) @ np.abs(y), quantum(x) * quantum(y))
        return x @ y


def exact_results(
    case: Case, inputs: Inputs, gamma: np.ndarray | None, bits: int
) -> dict[str, np.ndarray] | None:
    """Every quantity, unrounded, or None where an implementation with ``bits`` significant bits
    must round.

    ``gamma`` are the decay factors, exact, in the gates' place.
    """
    arguments = truth.oracle_arguments(case, inputs, g=None, gamma=gamma)
    try:
        runs = [
            oracles.evaluate(arguments, inputs.do, inputs.dht, algorithm, Watched(bits))
            for algorithm in ("naive", "rewy")
        ]
    except Rounds:
        return None
    truths = oracles.evaluate(arguments, inputs.do, inputs.dht)
    for results in runs:  # watched and therefore exact: they are equal, or an oracle is wrong
        for name, x in truths.items():
            assert np.array_equal(results[name], x), f"the oracles disagree about {name}"
    return truths
