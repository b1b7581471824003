"""The method's three steps on an NVIDIA GPU, each beside what it replaces, all else equal.

    python benchmarks/ablation.py --shapes b1-t8192 b8-t2048 --json ablation.json

- correction: the adjoint of the residual system by seven products or by three;
- contraction: decays per channel pair by pair, or centred and halved as factors of products;
- reduction: a head's gate gradient from a Gram matrix, or from products already at hand.

Two kernels each, from the same bfloat16 tensors to the same tensors. Every candidate of tile size,
warps and stages is checked against float64 before it is timed; each side is told with its best. See
benchmarks/ablating/ for the kernels, benchmarks/measuring/timing.py for how they are timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu import about, say
from measuring.shapes import SHAPES

NAMES = ("correction", "contraction", "reduction")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Rows of each comparison from processes of its own."""
    from measuring.timing import Card, ceilings

    command = " ".join(["python", os.path.relpath(__file__), *sys.argv[1:]])
    found: dict[str, Any] = {
        "about": {**about(options.commit), "command": command, "repeats": options.repeats,
                  "ceilings": ceilings(Card())._asdict()},
        "rows": [],
    }  # fmt: skip
    for name in options.comparisons:
        started = time.perf_counter()
        rows, status = rows_of(name, options)
        found["rows"] += rows
        if status:
            found["about"].setdefault("faults", {})[name] = status
        say(f"{name}: {len(rows)} rows in {time.perf_counter() - started:.0f} s")
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    return found


def rows_of(name: str, options: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """Rows of a comparison, and how its last process ended.

    A candidate that Triton compiles wrongly may fault, and a fault ends its process: another goes
    on without that candidate.
    """
    rows: list[dict[str, Any]] = []
    refused: list[list[Any]] = []  # side, tile, why
    while True:
        left = [shape for shape in options.shapes if shape not in {row["shape"] for row in rows}]
        task = {"comparison": name, "shapes": left, "repeats": options.repeats, "refused": refused}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "lines")
            path.touch()
            task["lines"] = str(path)
            command = [sys.executable, __file__, "--task", json.dumps(task)]
            status = subprocess.run(command).returncode
            lines = [json.loads(line) for line in path.read_text().splitlines()]
        rows += [line for line in lines if "comparison" in line]
        if not status or not lines or "trying" not in lines[-1]:
            return rows, status
        say(f"{name}: its process ended with {status} at {lines[-1]['trying']}")
        refused.append([*lines[-1]["trying"], f"its process ended with {status}"])


def work(task: dict[str, Any]) -> None:
    """A comparison's rows, in this process: lines of what is tried and of what was found."""
    from ablating.comparison import Side, Tile
    from ablating.rows import COMPARISONS, measured
    from ablating.table import ratio, tile_of
    from measuring.timing import Card

    card, comparison = Card(), COMPARISONS[task["comparison"]]
    refused = {(side, Tile(*tile)): why for side, tile, why in task["refused"]}
    with open(task["lines"], "w") as file:

        def line(what: dict[str, Any]) -> None:
            print(json.dumps(what), file=file, flush=True)

        def trying(side: Side, tile: Tile | None) -> None:
            line({"trying": [side.name, tile]} if tile else {"timing": side.name})
            say(f"{comparison.name}, {side.name}: {tile_of(tile._asdict()) if tile else 'timing'}")

        for shape in task["shapes"]:
            row = measured(comparison, SHAPES[shape], card, task["repeats"], refused, trying)
            line(row)
            for name, side in row["sides"].items():
                told = f"refused: {side.get('refused')}"
                if "median" in side:
                    told = f"{side['median']:.4f} ms, {tile_of(side['tile'])}"
                say(f"{comparison.name}, {shape}, {name}: {told}")
            say(f"{comparison.name}, {shape}: naive / ours {ratio(row) or float('nan'):.2f}")


def shapes() -> list[str]:
    """What inputs may be cut into whole chunks of, a key head for each value head."""
    return [
        name
        for name, shape in SHAPES.items()
        if not shape.packed and shape.H == shape.HV and not any(n % 64 for n in shape.lengths)
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--comparisons", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--shapes", nargs="+", choices=shapes(), default=["b1-t8192", "b8-t2048"])
    parser.add_argument("--repeats", type=int, default=30, help="of each call that is timed")
    parser.add_argument("--commit", help="rewy's, where git cannot tell")
    parser.add_argument("--json", type=Path, help="write everything")
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error(f"--repeats must be at least 2, got {options.repeats}")
    return options


def main() -> None:
    options = parse()
    if options.task:
        work(options.task)
        return
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("ablation.py needs an NVIDIA GPU: torch.cuda.is_available() is False")
    from ablating.table import table

    found = measure(options)
    print(table(found))
    if "faults" in found["about"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
