"""Forward and backward on an NVIDIA GPU: rewy beside fla-core's kernels and FlashQLA's.

    python benchmarks/gpu.py --warm                         # compile everything, in parallel
    python benchmarks/gpu.py --json gpu.json --minutes 8    # check, then time
    python benchmarks/gpu.py --from gpu.json --plot gpu.svg # table and plot, anywhere
    python benchmarks/gpu.py --first-call                   # in fresh processes, nothing compiled

Low-level functions under matched policies, on equal inputs. Every side is checked before it is
timed, against the eager graph in float64 on few tokens and in float32 at the timed shape; what is
wrong, and what a side refuses, is told instead of a time. See benchmarks/measuring/ for what is
called, how it is timed, and what the floors count.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from measuring.plot import plot
from measuring.report import report
from measuring.shapes import DTYPES, OPERATORS, POLICIES, SHAPES

ROOT = Path(__file__).resolve().parents[1]
GATES = ("initial", "strong")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def in_a_process(
    step: str, options: argparse.Namespace, environment: dict[str, str], **values: Any
) -> int:
    """Exit status of a step in a process of its own, told what it is to do by JSON."""
    names = ("operators", "shapes", "policies", "gates", "dtype", "ours_only", "repeats",
             "tune_each", "lift_refusal")  # fmt: skip
    task = {name: getattr(options, name) for name in names} | values
    command = [sys.executable, __file__, "--step", step, "--task", json.dumps(task)]
    return subprocess.run(command, env={**os.environ, **environment}).returncode


def warm(options: argparse.Namespace) -> None:
    """Fill Triton's cache of compiled kernels, as many processes at a time as there are cores."""
    from measuring.warming import jobs

    def run(job: Any) -> None:
        started = time.perf_counter()
        status = in_a_process("warm", options, {"OMP_NUM_THREADS": "1"}, job=job)
        who = job.whose + f" {job.shard + 1}/{job.shards}" * (job.shards > 1)
        told = f"{time.perf_counter() - started:.0f} s" + f", ended with {status}" * bool(status)
        say(f"warm: {job.operator}, {who}, {' '.join(job.shapes)}: {told}")

    started = time.perf_counter()
    shapes = [SHAPES[name] for name in options.shapes]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, jobs(options.operators, shapes, options.ours_only)))
    say(f"warm: all in {time.perf_counter() - started:.0f} s")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Rows of each operator from a process of its own, which may fault without harm to others."""
    from measuring.timing import Card, ceilings

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which keeps what was measured
    found = {
        "about": {**about(options.commit), "dtype": options.dtype, "repeats": options.repeats,
                  "ceilings": ceilings(Card())._asdict()},
        "rows": [],
    }  # fmt: skip
    end = time.time() + 60 * options.minutes
    for i, operator in enumerate(options.operators):
        now = time.time()
        deadline = now + (end - now) / (len(options.operators) - i)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "rows")
            status: int | str = "stopped"
            try:
                status = in_a_process("measure", options, {}, operators=[operator],
                                      rows=str(path), deadline=deadline)  # fmt: skip
            finally:  # also where this process is told to stop
                rows = rows_in(path)
                found["rows"] += rows
                if status:
                    found["about"].setdefault("faults", {})[operator] = status
                if options.json:
                    options.json.write_text(json.dumps(found, indent=1) + "\n")
        say(f"{operator}: {len(rows)} rows in {time.time() - now:.0f} s"
            + f", its process ended with {status}" * bool(status))  # fmt: skip
    return found


def rows_in(path: Path) -> list[dict[str, Any]]:
    """What a process wrote so far."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):  # the last may be cut off
            rows.append(json.loads(line))
    return rows


def first_calls(options: argparse.Namespace) -> dict[str, Any]:
    """The first call of each side in a process of its own, one after another."""
    from measuring.sides import sides_of

    found: dict[str, Any] = {"about": {**about(options.commit), "dtype": options.dtype},
                             "first_calls": []}  # fmt: skip
    for operator in options.operators:
        for side in sides_of(operator, options.ours_only):
            for policy in options.policies:
                if side.refuses(operator, SHAPES["b1-t8192"], policy):
                    continue
                call = {"operator": operator, "policy": policy, "side": side.name}
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder, "seconds")
                    empty = {"TRITON_CACHE_DIR": folder, "TILELANG_CACHE_DIR": folder}
                    status = in_a_process("first", options, empty, call=call, rows=str(path))
                    if status:
                        say(f"first call of {call}: its process ended with {status}")
                        continue
                    found["first_calls"].append({**call, "seconds": float(path.read_text())})
                say(f"first call: {found['first_calls'][-1]}")
                if options.json:
                    options.json.write_text(json.dumps(found, indent=1) + "\n")
    return found


def work(step: str, task: dict[str, Any]) -> None:
    """One step, in this process."""
    from measuring import rows, warming
    from measuring.fla import lift_refusal
    from measuring.sides import missing

    options = argparse.Namespace(**task)
    if options.lift_refusal and not missing("fla"):
        lift_refusal()
    if step == "warm":
        for told in warming.work(warming.Job(*options.job), options.policies, options.dtype):
            say(f"warm: {told}")
    elif step == "first":
        Path(options.rows).write_text(str(rows.first_call(**options.call, dtype=options.dtype)))
    else:
        rows.tune_briefly()
        shapes = [SHAPES[name] for name in options.shapes]
        (operator,) = options.operators
        with open(options.rows, "w") as file:
            for row in rows.measured(operator, shapes, options.gates, options.policies, options):
                print(json.dumps(row), file=file, flush=True)


def described() -> str:
    """This checkout as git names it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):  # there may be no git
        run = subprocess.run(command, capture_output=True, text=True)
        return run.stdout.strip() or "unknown commit"
    return "unknown commit"


def about(commit: str | None) -> dict[str, Any]:
    """What was measured, where, when and how."""
    import torch

    import rewy

    versions = {"rewy": f"{rewy.__version__} ({commit or described()})"}
    versions["torch"] = torch.__version__
    for name in ("triton", "fla-core", "flash-qla", "tilelang"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    versions["python"] = platform.python_version()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", os.path.relpath(__file__), *sys.argv[1:]]),
        "gpu": torch.cuda.get_device_name(),
        "versions": versions,
    }


def read(paths: list[Path]) -> dict[str, Any]:
    """Several runs of one type on the same card with the same versions as one; the first says
    about what.
    """
    runs = [json.loads(path.read_text()) for path in paths]
    for run in runs:
        run["about"].setdefault("dtype", DTYPES[0])  # not told when there was no other
    first = runs[0]
    for path, run in zip(paths[1:], runs[1:], strict=True):
        for what in ("gpu", "versions", "dtype"):
            if run["about"][what] != first["about"][what]:
                raise SystemExit(f"{path} was not measured with {paths[0]}'s {what}")
        first["about"] = {**run["about"], **first["about"]}
        if faults := {**run["about"].get("faults", {}), **first["about"].get("faults", {})}:
            first["about"]["faults"] = faults
        for what in ("rows", "first_calls"):
            first[what] = first.get(what, []) + run.get(what, [])
    return first


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument("--warm", action="store_true", help="only compile, in parallel")
    steps.add_argument("--first-call", action="store_true", help="only time first calls")
    steps.add_argument("--from", dest="files", nargs="+", type=Path, metavar="JSON",
                       help="only report what was measured")  # fmt: skip
    parser.add_argument("--operators", nargs="+", choices=OPERATORS, default=list(OPERATORS))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--gates", nargs="+", choices=GATES, default=list(GATES))
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of all but gates")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--repeats", type=int, default=30, help="of each call that is timed")
    parser.add_argument("--minutes", type=float, default=60, help="then it ends with what it has")
    parser.add_argument("--tune-each", action="store_true",
                        help="tune fla for each shape, not as it does for the first")  # fmt: skip
    parser.add_argument("--lift-refusal", action="store_true",
                        help="run fla's gated backward where fla says Triton is wrong")  # fmt: skip
    parser.add_argument("--commit", help="rewy's, where git cannot tell")
    parser.add_argument("--json", type=Path, help="write everything")
    parser.add_argument("--plot", type=Path, help="write the backward's ratios as SVG")
    parser.add_argument("--step", choices=("warm", "measure", "first"), help=argparse.SUPPRESS)
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error(f"--repeats must be at least 2, got {options.repeats}")
    return options


def main() -> None:
    options = parse()
    if options.files:
        found = read(options.files)
    else:
        # Tuning beside other processes must not be kept; see measuring/warming.py.
        os.environ |= {"FLA_CACHE_RESULTS": "0", "TRITON_CACHE_AUTOTUNING": "0"}
        if options.step:
            work(options.step, options.task)
            return
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("gpu.py needs an NVIDIA GPU: torch.cuda.is_available() is False")
        tell_missing(options)
        if options.warm:
            warm(options)
            return
        found = first_calls(options) if options.first_call else measure(options)
    print(report(found))
    if options.plot:
        options.plot.write_text(plot(found, "backward"))
    if "faults" in found["about"]:
        raise SystemExit(1)


def tell_missing(options: argparse.Namespace) -> None:
    """What cannot be compared with because it is not installed."""
    from measuring.sides import missing

    if options.ours_only:
        return
    if missing("fla"):
        say("fla-core is not installed: skipped")
    if "gated_delta_rule" in options.operators and missing("flash_qla"):
        say("flash-qla is not installed: skipped")


if __name__ == "__main__":
    main()
