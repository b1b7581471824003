"""``python -m properties``: replay a failure, calibrate kappa, look for races in compiled code."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from properties import session
from properties.calibrate import calibrate
from properties.case import Case
from properties.corpus import load
from properties.hazards import files, has_products, hazards
from properties.implementations import default, find
from properties.law import load_laws
from properties.verdict import KAPPA, Mismatch


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m properties", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    replay = commands.add_parser("replay", help="check one case again")
    replay.add_argument("file", nargs="?", type=Path, help="a corpus file, or one of .journal/")
    replay.add_argument("--property", help="the law, where no file is given")
    replay.add_argument("--case", help="the case as JSON, where no file is given")
    replay.add_argument("--implementation", action="append", metavar="NAME", help="repeatable")
    replay.add_argument("--device", default="cpu")

    look = commands.add_parser(
        "hazards", help="what compiled Triton kernels overwrite while a product reads it"
    )
    look.add_argument("paths", nargs="+", type=Path, help="*.ttgir, or folders such as the cache")

    weigh = commands.add_parser("calibrate", help="scores at kappa = 1, from which kappa is chosen")
    weigh.add_argument("--draws", type=int, default=1000)
    weigh.add_argument("--implementation", action="append", metavar="NAME", help="default: naive")
    weigh.add_argument("--processes", type=int, default=1)
    weigh.add_argument("--minutes", type=float, help="stop after so many")
    weigh.add_argument("--first-seed", type=int, default=0, help="draws of other seeds are others")
    weigh.add_argument("--output", type=Path, help="also write the outcome here, as JSON")
    return parser


def _foreign(name: str) -> list[str] | None:
    """Somebody's own adapter, as a corpus file names it, is replayed by default."""
    return [name] if ":" in name and " " not in name else None


def _replay(options: argparse.Namespace) -> int:
    names = options.implementation
    if options.file is not None:
        flight = json.loads(options.file.read_text())
        if not isinstance(flight, dict) or not {"property", "case"} <= flight.keys():
            raise ValueError(f"{options.file}: neither of the corpus nor of .journal/")
        if "schema" in flight:
            entry = load(options.file, anywhere=True)
            law, case = entry.property, entry.case
            names = names or _foreign(entry.found.implementation)
        else:
            law, case = flight["property"], Case.from_dict(flight["case"])
            names = names or [flight.get("implementation", default(options.device)[0])]
    elif options.property and options.case:
        law, case = options.property, Case.from_json(options.case)
    else:
        raise ValueError("replay: give a file, or --property and --case")
    laws = load_laws()
    if law not in laws:
        raise ValueError(f"property: got {law!r}, wanted one of {', '.join(sorted(laws))}")
    names = names or default(options.device)
    session.configure(tuple(names), options.device, None, journalling=False)
    failures = checked = 0
    for name in names:
        implementation = find(name)
        if (reason := session.refusal(case, implementation)) is not None:
            print(f"{name}: makes no claim for this case: {reason}")
            continue
        before = session.checks().total()
        try:
            score = laws[law].examine(case, implementation)
        except Mismatch as failure:
            failures += 1
            print(f"{name}: FAILS\n{failure}")
        else:
            if session.checks().total() == before:
                print(f"{name}: the law says nothing of this case here")
                continue
            print(f"{name}: holds" + ("" if score is None else f", score {score:.3g}"))
        checked += 1
    if not checked:
        raise ValueError("replay: nothing was checked")
    return 1 if failures else 0


def _hazards(options: argparse.Namespace) -> int:
    looked = wrong = strange = others = 0
    for path in files(options.paths):
        try:
            text = path.read_text()
            if "tt.func " in text and not has_products(text):
                others += 1
                continue
            found = hazards(text)
        except (ValueError, OSError) as error:
            print(f"{path}: {error}")
            strange += 1
            continue
        looked += 1
        wrong += bool(found)
        for line in found:
            print(f"{path}: {line}")
    print(f"{wrong} of {looked} kernels with Hopper's products overwrite what these read")
    if others or strange:
        print(f"{others} others have no such products, {strange} are not understood")
    return 1 if wrong or strange else 0


def _calibrate(options: argparse.Namespace) -> int:
    if options.draws < 1 or options.processes < 1:
        raise ValueError("calibrate: --draws and --processes must be at least 1")
    outcome = calibrate(
        options.draws,
        tuple(options.implementation or ("naive",)),
        processes=options.processes,
        first_seed=options.first_seed,
        minutes=options.minutes,
    )
    text = json.dumps({"kappa in use": KAPPA, **outcome}, indent=2)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 when all is well, 1 when a law is broken, 2 for a wrong call."""
    options = _parser().parse_args(arguments)
    try:
        commands = {"replay": _replay, "calibrate": _calibrate, "hazards": _hazards}
        return commands[options.command](options)
    except (ValueError, OSError) as error:
        print(f"python -m properties: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
