"""Compile ahead for a GPU that need not be there, and look whether a launch would still compile:
``python -m tests.triton.compiled_ahead OPERATOR``.

A process of its own, because Triton is given another driver for all of it.
"""

from __future__ import annotations

import sys

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import _async_compile

from rewy.backends.triton import ahead, graph
from rewy.backends.triton.start import only_compiling
from tests.triton.compiling import problem


class Driver:
    """An H200 as far as compiling goes."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def main(operator: str) -> None:
    """Print how many kernels were compiled ahead, and by a launch after that."""
    triton.runtime.driver.set_active(Driver())
    missing: list[str] = []

    def asked(fn, **_: object) -> None:
        missing.append(fn.name)

    knobs.runtime.jit_cache_hook = asked
    given = problem(operator, torch.bfloat16, 128, 128, 64, l2norm=True, groups=2)
    ahead.compile_ahead(given)
    compiled = len(missing)
    ahead.compile_ahead(given)
    assert len(missing) == compiled, "the second of a kind is gone through, too"
    assert _async_compile.active_mode.get() is None
    missing.clear()
    with only_compiling():
        o, _, saved = graph.forward(given)
        graph.backward(given, saved, torch.zeros_like(o), None)
    print(f"{compiled} ahead, {len(missing)} left: {missing}")


if __name__ == "__main__":
    main(sys.argv[1])
