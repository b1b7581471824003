"""Fill Triton's cache with most forms of the kernels, on all processors and GPUs at hand.

    python -m tests.triton.warming [--processes N]

Compiling is most of what a first run of the suite on a GPU does, and its workers, which all start
with the same forms, would each do it for themselves. Left out are the forms of single options:
types of their own for gates, the sigmoid of strengths. What is compiled is checked on the way, as
tests/triton/test_on_device.py does.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import torch

import rewy
from properties.case import OPERATORS
from tests.triton.on_device import LAYOUTS, LIMITS, Layout, arguments, wrong

# By chunk size; the first has groups.
CHUNKED = {64: LAYOUTS[:2], 32: LAYOUTS[2:3], 16: LAYOUTS[3:]}


ONE_TOKEN = Layout(1, 1, 1, None, 64, 1.0)


class Job(NamedTuple):
    """One operator, type and pair of head sizes in chunks of C."""

    operator: str
    dtype: str
    K: int
    V: int
    C: int


def jobs() -> list[Job]:
    """First what compiles most; forms that two jobs share come one after the other.

    Sizes are compiled in for chunks of 64 in bfloat16, where they fill their padding. Elsewhere a
    form knows the padded K at most, and only those of the state passes and of decoding do.
    """
    sizes = (64, 128, 256)
    exact = [
        Job(operator, "bfloat16", K, V, 64)
        for K, V, operator in itertools.product(sizes, sizes, OPERATORS)
    ]
    others = [
        [Job(*pair, K, 24, C) for C, pair in itertools.product(CHUNKED, pairs)]
        for K in (24, 100, 200)
        for pairs in [list(itertools.product(OPERATORS, LIMITS))]
    ]
    return [*others[0], *exact, *others[1], *others[2]]


def run(job: Job) -> list[str]:
    """What is wrong, a line each."""
    _decode(job)
    return wrong(job.operator, job.dtype, job.K, job.V, layouts=CHUNKED[job.C])


def _decode(job: Job) -> None:
    """A step of decoding, unchecked: it has one form for all C, and no products."""
    x = arguments(job.operator, getattr(torch, job.dtype), job.K, job.V, ONE_TOKEN)
    function = getattr(rewy, f"fused_recurrent_{job.operator}")
    function(**{name: y.cuda() for name, y in x.items()}, output_final_state=True, backend="triton")


def _choose_gpu(counter) -> None:
    """Processes take the GPUs in turn."""
    with counter.get_lock():
        mine, counter.value = counter.value, counter.value + 1
    torch.cuda.set_device(mine % torch.cuda.device_count())
    torch.set_num_threads(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.processes < 1:
        parser.error(f"--processes must be at least 1, got {options.processes}")
    spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    started, failures = time.perf_counter(), 0
    with ProcessPoolExecutor(options.processes, spawn, _choose_gpu, (spawn.Value("i", 0),)) as pool:
        futures = {pool.submit(run, job): job for job in jobs()}
        for done, future in enumerate(as_completed(futures), 1):
            job = futures[future]
            try:
                told = future.result()
            except BrokenProcessPool:
                print(f"a process died, in {job} or beside it", file=sys.stderr)
                return 1
            except Exception as error:  # a fault ends this process's use of its GPU, not the run
                told = [f"{type(error).__name__}: {error}"]
            failures += bool(told)
            seconds = time.perf_counter() - started
            for line in told or ["right"]:
                print(f"{done} of {len(futures)}, {seconds:.0f} s: {tuple(job)} {line}", flush=True)
    return min(failures, 100)


if __name__ == "__main__":
    sys.exit(main())
