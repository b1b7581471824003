"""Forward and backward on the CPU: rewy beside fla-core's PyTorch references under autograd.

    python benchmarks/cpu.py [--tokens 512] [--output cpu.json]

Every measurement runs in a process of its own, so that its peak memory is its own; both sides get
the same inputs and are checked against each other before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

import rewy

OPERATORS = ("gated_delta_rule", "kda", "gdn2")
SIDES = ("fla", "recompute", "save")
NAMES = {"fla": "fla naive", "recompute": "rewy", "save": "rewy, save"}
ARGUMENTS = {
    "gated_delta_rule": ("q", "k", "v", "g", "beta"),
    "kda": ("q", "k", "v", "g", "beta"),
    "gdn2": ("q", "k", "v", "g", "b", "w"),
}
CHECKED_TOKENS = 256
# Two float32 computations of one formula differ by 1e-6 or so here, two formulas by 1e-1: this only
# has to tell one from the other. The table shows the difference that was found.
LARGEST_DIFFERENCE = 1e-4


def make_inputs(operator: str, tokens: int, heads: int, size: int) -> dict[str, Tensor]:
    """Leaves in float32 and the adjoint ``do``: unit keys, gates of a trained layer's size."""
    torch.manual_seed(0)
    q, k = (normalize(torch.randn(1, tokens, heads, size), dim=-1) for _ in range(2))
    v, do = torch.randn(2, 1, tokens, heads, size)
    channels = () if operator == "gated_delta_rule" else (size,)
    x = {"q": q, "k": k, "v": v, "g": logsigmoid(torch.randn(1, tokens, heads, *channels)) / 8}
    for name in ARGUMENTS[operator][4:]:
        x[name] = torch.rand(1, tokens, heads, *(() if name == "beta" else (size,)))
    return {**{name: value.requires_grad_() for name, value in x.items()}, "do": do}


def find(operator: str, side: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function to measure; both sides use chunks of 64."""
    if side != "fla":
        function = getattr(rewy, f"chunk_{operator}")
        return lambda **x: function(**x, disable_recompute=side == "save")
    try:
        with warnings.catch_warnings(action="ignore"):  # that Triton has no device here
            module = importlib.import_module(f"fla.ops.{operator}.naive")
    except ImportError as error:
        raise SystemExit(
            f"fla-core cannot be imported ({error}): pip install -e .[benchmark]"
        ) from error
    return getattr(module, f"naive_chunk_{operator}")


def step(function: Callable, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """One forward and backward: o and the gradients."""
    arguments = {name: value for name, value in x.items() if name != "do"}
    o, _ = function(**arguments)
    gradients = torch.autograd.grad(o, list(arguments.values()), x["do"])
    names = (f"d{name}" for name in arguments)
    return {"o": o.detach(), **dict(zip(names, gradients, strict=True))}


def reset_peak() -> None:
    """Make :func:`peak` count from what is in use now, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """The most memory that this process ever had, in MiB.

    Not ``ru_maxrss`` on Linux: it starts at the size of the process that started this one.
    """
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 2**10
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage / 2**20 if sys.platform == "darwin" else usage / 2**10


def measure(operator: str, side: str, options: argparse.Namespace) -> dict[str, object]:
    """Seconds of each call, the first one apart, and peak memory beyond the inputs'. Results go to
    a file.
    """
    function = find(operator, side)
    step(function, make_inputs(operator, 64, 1, 16))  # loads what torch loads on first use
    x = make_inputs(operator, options.tokens, options.heads, options.size)
    reset_peak()
    before = peak()
    seconds = []
    for _ in range(1 + options.repeats):
        started = time.perf_counter()
        results = step(function, x)
        seconds.append(time.perf_counter() - started)
    memory = peak() - before
    torch.save(results, options.results)
    return {"first_seconds": seconds[0], "seconds": seconds[1:], "peak_mib": memory}


def in_a_process(
    operator: str, side: str, options: argparse.Namespace, results: Path, **changes: int
) -> dict:
    """:func:`measure` in a fresh process, with options changed."""
    values = {name: getattr(options, name) for name in ("tokens", "heads", "size", "repeats")}
    values |= changes
    command = [sys.executable, __file__, "--measure", operator, side, "--results", str(results)]
    command += [word for name, value in values.items() for word in (f"--{name}", str(value))]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        raise SystemExit(f"{operator}, {side}: the process ended with {run.returncode}")
    return json.loads(run.stdout)


def difference(results: Path, reference: Path) -> dict[str, float]:
    """``|x - y| / |y|`` of every quantity, ended with an error where one is too large or not
    finite.
    """
    x, y = (torch.load(path, weights_only=True) for path in (results, reference))
    found = {name: float((x[name] - y[name]).norm() / y[name].norm()) for name in y}
    if wrong := {name: value for name, value in found.items() if not value <= LARGEST_DIFFERENCE}:
        raise SystemExit(f"{results.stem} and {reference.stem} disagree: {wrong}")
    return found


def compare(operator: str, options: argparse.Namespace, folder: Path) -> dict[str, dict]:
    """All sides of an operator: checked, measured, checked again."""
    files = {side: folder / f"{operator}-{side}.pt" for side in SIDES}

    def check() -> dict[str, float]:
        worst = [difference(files[side], files["fla"]) for side in SIDES[1:]]
        return {name: max(found[name] for found in worst) for name in worst[0]}

    tokens = min(CHECKED_TOKENS, options.tokens)
    say(f"{operator}: checking {tokens} tokens")
    for side in SIDES:
        in_a_process(operator, side, options, files[side], tokens=tokens, repeats=0)
    say(f"{operator}: largest relative difference {max(check().values()):.1e}")
    row = {}
    for side in SIDES:
        row[side] = in_a_process(operator, side, options, files[side])
        row[side]["median_seconds"] = statistics.median(row[side]["seconds"])
        say(f"{operator}, {side}: {row[side]['median_seconds']:.2f} s")
    row["differences"] = check()
    return row


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def versions() -> dict[str, str]:
    """Of what was measured and where."""
    found = {"rewy": rewy.__version__, "torch": torch.__version__}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["fla-core"] = importlib.metadata.version("fla-core")
    found["python"] = platform.python_version()
    found["machine"] = (
        f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads"
    )
    return found


def table(rows: dict[str, dict]) -> str:
    """A row for each operator and side, in Markdown; ratios are fla's seconds over the side's."""
    lines = [
        "| operator | side | first call s | ratio | median s | ratio | peak MiB | differs by |",
        "| --- | --- |" + " ---: |" * 6,
    ]
    for operator, row in rows.items():
        name, worst = max(row["differences"].items(), key=lambda item: item[1])
        for side in SIDES:
            cells = [operator, NAMES[side]]
            for figure in ("first_seconds", "median_seconds"):
                seconds = row[side][figure]
                cells += [f"{seconds:.2f}", f"{row['fla'][figure] / seconds:.1f}"]
            differs = "" if side == "fla" else f"{name} {worst:.1e}"
            lines.append(
                "| " + " | ".join([*cells, f"{row[side]['peak_mib']:.0f}", differs]) + " |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=4096, help="a multiple of 64")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--size", type=int, default=128, help="K = V")
    parser.add_argument("--repeats", type=int, default=3, help="after the first call, of each side")
    parser.add_argument("--operators", nargs="+", choices=OPERATORS, default=OPERATORS)
    parser.add_argument("--output", type=Path, help="write everything as JSON, too")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tokens < 64 or options.tokens % 64:
        parser.error(f"--tokens must be a multiple of 64, got {options.tokens}")
    if options.measure:
        print(json.dumps(measure(*options.measure, options)))
        return
    find(OPERATORS[0], "fla")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        rows = {name: compare(name, options, Path(folder)) for name in options.operators}
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", os.path.relpath(__file__), *sys.argv[1:]]),
        "shape": f"B 1, T {options.tokens}, H {options.heads}, K = V = {options.size}, float32",
        "load": round(load, 2),  # other people's, when it began: should be near 0
        "versions": versions(),
    }
    print(f"{about['shape']}; forward + backward, {about['date']}, `{about['command']}`")
    print(", ".join(f"{name} {version}" for name, version in about["versions"].items()))
    print(f"Load of the machine when it began: {about['load']}.")
    print("Median of the calls after the first. Memory: peak beyond the inputs.\n")
    print(table(rows))
    if options.output:
        options.output.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
