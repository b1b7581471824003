"""``python -m tests.faults``: hunt every planted fault and write the table docs/faults.md."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

import rewy
from tests.faults.fault import Fault
from tests.faults.faults import FAULTS
from tests.faults.hunting import EXAMPLES, Catch, hunt_fault

OUTPUT = Path(rewy.__file__).parent.parent / "docs" / "faults.md"
HEADER = ("fault", "kind", "found by", "quantity", "operator", "cases")

TEXT = """\
# Planted faults

Each row is a slip planted in a private copy of rewy (`tests/faults/`) and hunted by the suite's own
laws, {examples} cases a law and operator, the same cases every time: the first law that finds it,
the quantity that was wrong ("call": it raised, or accepted what it must refuse), the operator, and
the cases of all laws until then. The budget law goes first, because it finds most. A catch counts
only where an unmutated copy holds.

- command: `python -m tests.faults`
- date: {date}
- versions: {versions}
- {found} of {total} faults found, {seconds:.0f} s

{table}

| found by | faults |
| --- | --- |
{laws}
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these faults; prints, and writes no file")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="cases a law and operator")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    return parser


def _row(fault: Fault, catch: Catch | None) -> str:
    found = ("**nothing**", "", "", "")
    if catch is not None:
        found = (f"`{catch.law}`", f"`{catch.quantity}`", f"`{catch.operator}`", str(catch.cases))
    return f"| {' | '.join((fault.name, fault.kind, *found))} |"


def _versions() -> str:
    packages = ("torch", "numpy", "hypothesis")
    found = [f"rewy {rewy.__version__}", *(f"{name} {version(name)}" for name in packages)]
    return ", ".join([*found, f"python {platform.python_version()}", f"CPU {platform.machine()}"])


def main(arguments: list[str] | None = None) -> int:
    """Print a row a fault and write the document; 1 where a fault survives, 2 for a wrong call."""
    options = _parser().parse_args(arguments)
    if unknown := set(options.names) - {fault.name for fault in FAULTS}:
        print(f"python -m tests.faults: no such fault: {', '.join(unknown)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    chosen = [fault for fault in FAULTS if not options.names or fault.name in options.names]
    started, catches = time.time(), []
    rows = [f"| {' | '.join(HEADER)} |", "| --- | --- | --- | --- | --- | ---: |"]
    print("\n".join(rows))
    for fault in chosen:
        catches.append(hunt_fault(fault, options.examples))
        rows.append(_row(fault, catches[-1]))
        print(rows[-1], flush=True)
    found = [catch for catch in catches if catch is not None]
    if not options.names:
        laws = Counter(catch.law for catch in found)
        text = TEXT.format(
            examples=options.examples,
            date=datetime.now(UTC).date().isoformat(),
            versions=_versions(),
            found=len(found),
            total=len(chosen),
            seconds=time.time() - started,
            table="\n".join(rows),
            laws="\n".join(f"| `{law}` | {n} |" for law, n in laws.most_common()),
        )
        options.output.parent.mkdir(exist_ok=True)
        options.output.write_text(text)
    return 0 if len(found) == len(chosen) else 1


if __name__ == "__main__":
    raise SystemExit(main())
