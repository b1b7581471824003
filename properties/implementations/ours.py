"""rewy's own backends: the eager graph, the naive backward and the kernels, under both policies."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import rewy
from oracles import Precision
from properties.case import Case
from properties.implementations.base import TorchOperators


class Ours(TorchOperators):
    """One backend and policy of rewy, or of a copy of it to plant faults in.

    ``by_step``: the eager graph takes each step as a slab of its own; on a CPU slabs are otherwise
    larger than most cases that are drawn.
    """

    checks_arguments = True

    def __init__(
        self,
        name: str,
        backend: str,
        policy: str,
        module: ModuleType = rewy,
        by_step: bool = False,
    ):
        super().__init__(name, module, backend=backend, disable_recompute=policy == "save")
        self.backend, self.policy, self.by_step = backend, policy, by_step

    def with_other_policy(self) -> Ours:
        return Ours(*self._other(), self.module, self.by_step)

    @contextmanager
    def within(self) -> Iterator[None]:
        slabs = sys.modules[f"{self.module.__name__}.backends.eager.slabs"]
        before = slabs.SLAB
        slabs.SLAB = 1 if self.by_step else before
        try:
            yield
        finally:
            slabs.SLAB = before

    def _other(self) -> tuple[str, str, str]:
        other = "recompute" if self.policy == "save" else "save"
        return f"{self.backend} ({other})", self.backend, other

    def shared_options(self) -> dict[str, Any]:
        return {"backend": self.backend}


class Kernels(Ours):
    """The Triton kernels: on NVIDIA GPUs, and interpreted (TRITON_INTERPRET=1) on the CPU."""

    def with_other_policy(self) -> Kernels:
        return Kernels(*self._other(), self.module)

    def refuses(self, case: Case, device: str) -> str | None:
        if case.dtype == "float64":
            return "no float64 kernels"
        if not device.startswith("cuda") and os.environ.get("TRITON_INTERPRET") != "1":
            return (
                "kernels need an NVIDIA GPU, or TRITON_INTERPRET=1 and what "
                "tests/triton/interpreter.py mends"
            )
        return None

    def precision(self, case: Case) -> Precision:
        """bfloat16 beside bfloat16; TF32 products beside float16, of operands that the kernels
        round; float32 beside float32, summed in float32 before it is added to a state. Chunks of
        64 rows also where 128 are asked for.
        """
        if case.dtype == "float32":
            return replace(Precision.float32(), rows=64)
        narrow = case.dtype == "bfloat16"
        products = Precision.bfloat16() if narrow else Precision.tensor_float32()
        return replace(products.on_tensor_cores(), rows=64)


def eager(module: ModuleType = rewy) -> list[Ours]:
    """The eager implementations; ``recompute`` first, the default policy."""
    return [
        Ours("eager", "eager", "recompute", module),
        Ours("eager-save", "eager", "save", module, by_step=True),
        Ours("naive", "naive", "recompute", module, by_step=True),
    ]


def kernels(module: ModuleType = rewy) -> list[Ours]:
    """The kernels, likewise."""
    return [
        Kernels("triton", "triton", "recompute", module),
        Kernels("triton-save", "triton", "save", module),
    ]
