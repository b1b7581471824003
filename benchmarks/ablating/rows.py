"""A row: one comparison and shape; every candidate of both sides is checked, the best are timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from measuring.checks import complaint, errors
from measuring.shapes import Shape, make_inputs
from measuring.timing import Card

from ablating.comparison import Comparison, Side, Tensors, Tile, launch, moved_bytes
from ablating.contraction import CONTRACTION
from ablating.correction import CORRECTION
from ablating.reduction import REDUCTION

COMPARISONS = {c.name: c for c in (CORRECTION, CONTRACTION, REDUCTION)}
AT_ONCE = 64  # chunks and heads in float64: pair by pair one takes 4 MB
TRIES = 7  # timed calls of each candidate, from which the best is chosen


def measured(
    comparison: Comparison,
    shape: Shape,
    card: Card,
    repeats: int,
    refused: dict[tuple[str, Tile], str],
    trying: Callable[[Side, Tile | None], None],
) -> dict[str, Any]:
    """What is found for each side: its best candidate's times, errors and counts, and what became
    of the others, or why it is refused.

    ``refused``: candidates that are not to be tried, and why. ``trying`` is told each one before,
    and None before a side's are timed.
    """
    x = comparison.make(make_inputs(comparison.operator, shape, "initial"), torch.bfloat16)
    found = comparison.empty(x)
    truth = exact(comparison, x)
    sides: dict[str, dict[str, Any]] = {}
    best: dict[str, Callable[[], None]] = {}
    for side in comparison.sides:
        told, right = [], {}
        for tile in candidates(side, shape.size):
            one: dict[str, Any] = {"tile": tile._asdict()}
            told.append(one)
            if why := refused.get((side.name, tile)):
                one["refused"] = why
                continue
            trying(side, tile)
            one |= checked(comparison, side, tile, x, truth)
            if "refused" not in one:
                right[tile] = one
        sides[side.name] = {"tried": told}
        if not right:
            sides[side.name]["refused"] = "; ".join(sorted({one["refused"] for one in told}))
            continue
        trying(side, None)
        calls = {tile: partial(launch, comparison, side, tile, x, found) for tile in right}
        for tile, times in card.times(calls, TRIES).items():
            right[tile]["ms"] = times["median"]
        tile = min(right, key=lambda t: right[t]["ms"])
        best[side.name] = calls[tile]
        count = side.count(found[next(iter(found))].shape[1], shape.size)
        sides[side.name] |= {
            "tile": tile._asdict(), "errors": right[tile]["errors"],
            "bytes": moved_bytes(side, x, found),
            **count.times(shape.chunks * shape.HV)._asdict(),
        }  # fmt: skip
    for name, times in card.times(best, repeats).items():
        sides[name] |= times
    return {"comparison": comparison.name, "shape": shape.name, "sides": sides}


def exact(comparison: Comparison, x: Tensors) -> Tensors:
    """The truth of all chunks, some at a time."""
    M = len(x[next(iter(x))])
    parts = [
        comparison.truth({name: t[first : first + AT_ONCE] for name, t in x.items()})
        for first in range(0, M, AT_ONCE)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in comparison.results}


def candidates(side: Side, size: int) -> list[Tile]:
    """What fits heads of that size."""
    return [tile for tile in side.tiles if tile.BK <= size]


def checked(
    comparison: Comparison, side: Side, tile: Tile, x: Tensors, truth: Tensors
) -> dict[str, Any]:
    """A candidate's errors, each result written over NaN, and why it is refused, if it is."""
    found = comparison.empty(x)
    try:
        launch(comparison, side, tile, x, found)
        wrong = errors(found, truth)
    except Exception as error:  # too large for the card, or not to be compiled
        torch.cuda.synchronize()  # unless the card has faulted: then nothing more can be measured
        return {"refused": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
    told = complaint(wrong, "timed shape, against float64")
    # JSON has no NaN.
    kept = {name: e if math.isfinite(e) else str(e) for name, e in wrong.items()}
    return {"errors": kept, **({"refused": told} if told else {})}
