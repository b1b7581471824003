"""Try configurations of the Triton kernels on the GPU at hand: first right, then fast.

    python benchmarks/tune.py --operator kda --kernel channel_gradients [--shapes 1x8192 8x2048]

Every candidate is compiled and checked in a process of its own, against the eager graph in float64:
a configuration that Triton compiles wrongly may fault, and a fault ends its process. What is wrong
by chance alone, and seldom, its code tells (properties/hazards.py). The right ones are then timed,
fastest first. With ``--remember`` every later process on this machine uses the
fastest (see rewy/backends/triton/remembered.py); what is to ship goes into configs.py by hand.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

OPERATORS = ("delta_rule", "gated_delta_rule", "kda", "gdn2")
CHECKED_TOKENS = 200
# ||error|| / ||truth|| of a right kernel at bfloat16 is 2e-3 to 8e-3, of a wrong one 1e-1 or more.
LARGEST_ERROR = 2e-2

# Tile sizes that are tried; 0 where a kernel has no such tile.
TILES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "channel_scores": ((32, 64, 128), (0,)),
    "channel_gradients": ((16, 32, 64), (32, 64, 128)),
    "channel_reduction": ((16, 32, 64), (0,)),
    "scores": ((32, 64, 128), (0,)),
    "solve": ((0,), (0,)),
    "local": ((64, 128), (64, 128)),
    "local_adjoint": ((64, 128), (64, 128)),
    "local_both": ((64, 128), (64, 128)),
    "passes": ((0,), (16, 32, 64)),
    "output": ((64, 128), (64, 128)),
    "correction": ((0,), (32, 64, 128)),
    "gradients": ((16, 32, 64), (64, 128)),
}
STAGES = (2, 3)  # with one, state passes on four warps were wrong on Hopper (Triton 3.6)


class Job(NamedTuple):
    """One candidate: BK, BV, warps, stages of a kernel in an operator's graph."""

    operator: str
    kernel: str
    config: tuple[int, int, int, int]


class Outcome(NamedTuple):
    """Whether a candidate is right, and what it takes or why not."""

    job: Job
    right: bool
    told: str


def launched(operator: str, kernel: str) -> bool:
    """Whether an operator's graph has the kernel."""
    per_channel = operator in ("kda", "gdn2")
    if kernel.startswith("channel") or kernel == "correction":
        return per_channel
    return kernel not in ("scores", "gradients") or not per_channel


def candidates(kernel: str, axes: list[list[int]] | None) -> list[tuple[int, int, int, int]]:
    """Every configuration that is tried for a kernel, or those of the axes given."""
    few = kernel.startswith("channel") or kernel == "solve"
    warps = (1, 2, 4) if few else (4, 8)
    return list(itertools.product(*(axes or (*TILES[kernel], warps, STAGES))))


def make_problem(operator: str, B: int, T: int, H: int, size: int, policy: str):
    """A training step's problem in bfloat16, unit keys and gates of a trained layer's size, and the
    adjoint of its outputs.
    """
    from rewy.problem import Problem, Spec, Tensors

    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, device="cuda", generator=generator)

    channels = {"gated_delta_rule": 1, "kda": size, "gdn2": size}.get(operator)
    spec = Spec(
        B, T, H, H, size, size, tuple(range(0, B * T + 1, T)), size**-0.5, 64, policy,
        output_final_state=False, state_v_first=False, l2norm=False, gate_activation=False,
        lower_bound=None, beta_activation=False, neg_eigval=False, compute_dtype=torch.float32,
    )  # fmt: skip
    q, k = (normalize(normal(B, T, H, size), dim=-1).bfloat16() for _ in range(2))
    tensors = Tensors(
        q=q,
        k=k,
        v=normal(B, T, H, size).bfloat16(),
        g=None if channels is None else logsigmoid(normal(B, T, H, channels)) / 8,
        b=uniform(B, T, H, size if operator == "gdn2" else 1).bfloat16(),
        w=uniform(B, T, H, size).bfloat16() if operator == "gdn2" else None,
        h0=None,
        A_log=None,
        dt_bias=None,
    )
    return Problem(spec, tensors), normal(B, T, H, size).bfloat16()


def choose(job: Job) -> None:
    """Have the graph use the candidate as it is from here on."""
    from rewy.backends.triton import configs, run

    def config(kernel: str, *problem: object) -> configs.Config:
        if kernel == job.kernel:
            return configs.Config(*job.config)
        return configs.config(kernel, *problem)

    run.config = config
    run.recall = lambda *_: None


def error_of(operator: str, H: int, size: int) -> float:
    """The largest relative error of any result, both policies, and inf where they differ."""
    from rewy.backends.eager import eager
    from rewy.backends.triton import triton
    from rewy.problem import Problem, Tensors

    problem, do = make_problem(operator, 1, CHECKED_TOKENS, H, size, "save")
    o, _, saved = triton.forward(problem)
    found = [o, *triton.backward(problem, saved, do, None)]
    other = Problem(replace(problem.spec, policy="recompute"), problem.tensors)
    again = [o, *triton.backward(other, saved._replace(G=None, U=None, S=None), do, None)]
    if not all(torch.equal(x, y) for x, y in zip(found, again, strict=True) if x is not None):
        return float("inf")
    wide = (None if x is None else x.double() for x in problem.tensors)
    exact = Problem(replace(problem.spec, compute_dtype=torch.float64), Tensors(*wide))
    o, _, saved = eager.forward(exact)
    truth = [o, *eager.backward(exact, saved, do.double(), None)]
    errors = [
        float((x.double() - y).norm() / y.norm())
        for x, y in zip(found, truth, strict=True)
        if y is not None
    ]
    return max(errors) if all(e == e for e in errors) else float("inf")


def overwritten() -> list[str]:
    """What the kernels that this process has launched overwrite while a product reads it."""
    from properties.hazards import hazards
    from rewy.backends.triton.start import compiled

    return [f"{kernel.name}: {x}" for kernel in compiled() for x in hazards(kernel.asm["ttgir"])]


def in_a_process(step: str, jobs: list[Job], options: argparse.Namespace) -> tuple[int, list]:
    """(exit status, the JSON lines printed) of a step in a process of its own."""
    command = [sys.executable, __file__, "--step", step, "--jobs", json.dumps(jobs)]
    for name in ("heads", "size"):
        command += [f"--{name}", str(getattr(options, name))]
    command += ["--shapes", *options.shapes]
    run = subprocess.run(command, capture_output=True, text=True)
    return run.returncode, [json.loads(line) for line in run.stdout.splitlines()]


def check(job: Job, options: argparse.Namespace) -> Outcome:
    """Compile and check one candidate; a fault is an outcome, too."""
    status, lines = in_a_process("check", [job], options)
    if status or not lines:
        return Outcome(job, False, f"its process ended with {status}")
    ((error, found),) = lines
    told = ", ".join([f"error {error:.1e}", *found[:1]])
    return Outcome(job, error <= LARGEST_ERROR and not found, told)


def time_candidates(jobs: list[Job], options: argparse.Namespace) -> list[tuple[dict, Job]]:
    """Milliseconds of each launch of the kernel, medians, by shape and policy; fastest first."""
    from triton.testing import do_bench

    from rewy.backends.triton import graph, run, triton

    start, launches = run.start, []

    def record(kernel, programs, config, arguments, constants, known):
        start(kernel, programs, config, arguments, constants, known)
        name = kernel.__name__.removeprefix("_")
        if name == "local":  # one kernel, three uses with a configuration each
            name = graph.LOCAL[constants["FORWARD"], constants["REVERSE"]]
        launches.append((name, (kernel, programs, config, arguments, constants, known)))

    run.start = record
    times = []
    for job in jobs:
        choose(job)
        found = {}
        for shape, policy in itertools.product(options.shapes, ("recompute", "save")):
            B, T = map(int, shape.split("x"))
            problem, do = make_problem(job.operator, B, T, options.heads, options.size, policy)
            launches.clear()
            _, _, saved = triton.forward(problem)
            triton.backward(problem, saved, do, None)
            mine = [launch for name, launch in launches if name == job.kernel]
            each = (do_bench(lambda x=x: start(*x), return_mode="median") for x in mine)
            found[f"{shape} {policy}"] = [round(milliseconds, 4) for milliseconds in each]
        times.append((found, job))
    return sorted(times, key=lambda pair: sum(map(sum, pair[0].values())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operator", choices=OPERATORS, nargs="+", default=["gated_delta_rule"])
    parser.add_argument("--kernel", choices=sorted(TILES), nargs="+", default=sorted(TILES))
    parser.add_argument("--shapes", nargs="+", default=["1x8192"], help="sequences x tokens")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--size", type=int, default=128, help="K = V")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--axes", type=json.loads, help="[[BK...], [BV...], ...] instead of all")
    parser.add_argument("--remember", action="store_true", help="use the fastest from now on")
    parser.add_argument("--step", choices=("check", "time"), help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.remember and options.size not in (64, 128, 256):
        parser.error(f"--remember wants a --size of 64, 128 or 256, got {options.size}")
    if not torch.cuda.is_available():
        raise SystemExit("tune.py needs an NVIDIA GPU: torch.cuda.is_available() is False")
    if options.step:
        work(options.step, [Job(*job) for job in options.jobs], options)
        return
    pairs = [
        pair for pair in itertools.product(options.operator, options.kernel) if launched(*pair)
    ]
    jobs = [Job(*pair, config) for pair in pairs for config in candidates(pair[1], options.axes)]
    right: dict[tuple[str, str], list[Job]] = {pair: [] for pair in pairs}
    with ThreadPoolExecutor(options.processes) as pool:
        outcomes = pool.map(lambda job: check(job, options), jobs)
        for done, (job, is_right, told) in enumerate(outcomes, 1):
            if is_right:
                right[job.operator, job.kernel].append(job)
            word = "right" if is_right else "WRONG"
            print(f"{done} of {len(jobs)}: {word} {job} {told}", file=sys.stderr)
    for pair in pairs:
        status, lines = in_a_process("time", right[pair], options)
        if status:
            print(f"timing {pair}: the process ended with {status}", file=sys.stderr)
        for line in lines:
            print(json.dumps(line))
        if options.remember and lines:
            keep(lines[0])


def keep(fastest: dict[str, Any]) -> None:
    """Remember a line's configuration."""
    from rewy.backends.triton.configs import Config
    from rewy.backends.triton.remembered import NEVER, name_of, remember

    operator, kernel, size = (fastest[what] for what in ("operator", "kernel", "size"))
    if kernel in NEVER:
        print(f"{kernel}: not remembered, it has a rule and no table", file=sys.stderr)
        return
    gate = {"delta_rule": 0, "gated_delta_rule": 1, "kda": 2, "gdn2": 2}[operator]
    name = name_of(kernel, gate, operator == "gdn2", size, size)
    file = remember(torch.cuda.get_device_name(), {name: Config(*fastest["config"])})
    print(f"{name}: {fastest['config']} is remembered in {file}", file=sys.stderr)


def work(step: str, jobs: list[Job], options: argparse.Namespace) -> None:
    """One step, in this process: JSON lines to standard output."""
    if step == "check":
        choose(jobs[0])
        error = error_of(jobs[0].operator, options.heads, options.size)
        print(json.dumps((error, overwritten())))
        return
    for milliseconds, job in time_candidates(jobs, options):
        print(json.dumps({**job._asdict(), "size": options.size, "milliseconds": milliseconds}))


if __name__ == "__main__":
    main()
