"""The ablation's kernels without a card, in Triton's interpreter:
``python -m tests.benchmarks.ablated``.

A process of its own, because the interpreter replaces Triton for all of it. Every kernel is
compared with float64 on two chunks, and the comparison is shown to depend on every input; then rows
are made as on a card, with the clock of the host, and with a truth that no side agrees with.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

from tests.benchmarks.interpreted import HostCard  # before anything imports triton

# isort: split
import ablation
import torch
from ablating import rows
from ablating.comparison import Comparison, Side, Tile, launch
from ablating.rows import COMPARISONS
from ablating.table import table
from measuring import timing
from measuring.checks import errors
from measuring.floors import Ceilings
from measuring.shapes import Shape, make_inputs

TWO = Shape("b1-t8192", (128,), H=1, HV=1, size=64)  # a name that the table knows
TILE = Tile(32, 4, 2, UNROLL=2)
ROUNDED = 2e-6  # of a float32 result; what is wrong is off by 1e-2 and more


def check(comparison: Comparison, side: Side) -> None:
    """Right in float32, each result of it, and wrong once any input is another."""
    x = comparison.make(make_inputs(comparison.operator, TWO, "initial", "cpu"), torch.float32)
    found = comparison.empty(x)
    launch(comparison, side, TILE, x, found)
    wrong = errors(found, comparison.truth(x))
    assert all(e <= ROUNDED for e in wrong.values()), (side.name, wrong)
    for name in x.keys() - {"U"}:  # U follows from the others, and truth does not read it
        other = {**x, name: x[name] * torch.linspace(0.9, 1.1, x[name].shape[1])[:, None]}
        wrong = errors(found, comparison.truth(other))
        assert max(wrong.values()) > 1e-3, (side.name, name, wrong)
    print(f"{comparison.name}, {side.name}: right")


def check_u() -> None:
    """Three products read U, and not what it follows from."""
    comparison = COMPARISONS["correction"]
    x = comparison.make(make_inputs(comparison.operator, TWO, "initial", "cpu"), torch.float32)
    truth, found = comparison.truth(x), comparison.empty(x)
    x["U"] = 2 * x["U"]
    launch(comparison, comparison.ours, TILE, x, found)
    wrong = errors(found, truth)
    assert abs(wrong["dL"] - 1) <= ROUNDED, wrong
    assert max(wrong["dR"], wrong["dK_b"]) <= ROUNDED, wrong


def short(comparison: Comparison, tiles: tuple[Tile, ...]) -> Comparison:
    """With few candidates."""
    sides = {name: getattr(comparison, name)._replace(tiles=tiles) for name in ("naive", "ours")}
    return comparison._replace(**sides)


def work(folder: str) -> list[dict]:
    """What a process of the command's says of two candidates a side, one of which has faulted."""
    why = "its process ended with -6"
    task = {"comparison": "reduction", "shapes": [TWO.name], "repeats": 3, "lines": folder + "/x",
            "refused": [["Gram", TILE, why]]}  # fmt: skip
    ablation.work(json.loads(json.dumps(task)))
    return [json.loads(line) for line in Path(task["lines"]).read_text().splitlines()]


def check_row() -> None:
    """Every candidate is told, one that faulted is left out, and what is wrong has no time."""
    other = TILE._replace(warps=8)
    comparison = short(COMPARISONS["reduction"], (TILE, other))
    COMPARISONS["reduction"] = comparison
    with tempfile.TemporaryDirectory() as folder:
        *tried, row = work(folder)
        gram, reuse = row["sides"]["Gram"], row["sides"]["reuse"]
        assert tried == [
            {"trying": ["Gram", list(other)]}, {"timing": "Gram"},
            {"trying": ["reuse", list(TILE)]}, {"trying": ["reuse", list(other)]},
            {"timing": "reuse"},
        ]  # fmt: skip
        assert gram["tried"][0]["refused"] == "its process ended with -6"
        assert gram["tile"]["warps"] == 8
        assert all("ms" in one for one in reuse["tried"])
        assert gram["products"] == reuse["products"] * 6 // 4 == 2 * 2 * 6 * 64 * 64 * 64
        assert gram["bytes"] == 2 * (5 * 64 * 64 + 2 * 64 * 64 + 64) * 2 + 2 * 2 * 64 * 4

        def doubled(x):
            return {name: 2 * y for name, y in comparison.truth(x).items()}

        COMPARISONS["reduction"] = comparison._replace(truth=doubled)
        wrong = work(folder)[-1]
    for side in wrong["sides"].values():
        assert "wrong at the timed shape, against float64: Dq 5.0e-01" in side["refused"], side
        assert "median" not in side
    about = {"gpu": "none", "date": "", "command": "", "versions": {}, "repeats": 3}
    about["ceilings"] = Ceilings(1e12, 1e14)._asdict()
    print(table({"about": about, "rows": [row, wrong]}))


def main() -> None:
    for comparison in COMPARISONS.values():
        for side in comparison.sides:
            check(comparison, side)
    check_u()
    rows.make_inputs = partial(make_inputs, device="cpu")
    timing.Card = HostCard
    ablation.SHAPES[TWO.name] = TWO
    check_row()
    print("all right")


if __name__ == "__main__":
    main()
