"""The ReWY compute graph as Triton kernels, for NVIDIA GPUs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from rewy.backends.tracing import never_traced
from rewy.backends.triton import graph
from rewy.problem import Problem, Tensors

# What the state passes take at most, by tests/triton/test_compiles.py: an A100 has the first, an
# H100 and later the second.
SHARED, SHARED_WIDE = 166_912, 232_448


def _where(problem: Problem) -> AbstractContextManager:
    """Kernels start on the current device; make that the tensors'."""
    device = problem.tensors.q.device
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Triton:
    """The Triton backend; on the CPU only where Triton interprets (``TRITON_INTERPRET=1``)."""

    name = "triton"

    def unsupported(self, problem: Problem) -> str | None:
        """Types and devices the kernels do not have."""
        from triton import knobs

        q = problem.tensors.q
        if q.dtype == torch.float64:
            return "it has no float64 kernels"
        if knobs.runtime.interpret:
            return None
        if q.device.type != "cuda" or torch.version.hip is not None:
            return f"it needs an NVIDIA GPU, got {q.device}"
        has = torch.cuda.get_device_properties(q.device).shared_memory_per_block_optin
        needs = SHARED_WIDE if problem.spec.K > 128 else SHARED
        if has < needs:
            return f"K = {problem.spec.K} needs {needs} bytes of shared memory a block, got {has}"
        return None

    @never_traced
    def forward(self, problem: Problem) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, ...]]:
        """See :func:`rewy.backends.triton.graph.forward`."""
        with _where(problem):
            return graph.forward(problem)

    @never_traced
    def decode(self, problem: Problem) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, ...]]:
        """See :func:`rewy.backends.triton.graph.decode`; nothing is kept but the inputs."""
        with _where(problem):
            return *graph.decode(problem), graph.Saved()

    @never_traced
    def backward(
        self,
        problem: Problem,
        saved: tuple[Tensor | None, ...],
        do: Tensor | None,
        dht: Tensor | None,
    ) -> Tensors:
        """See :func:`rewy.backends.triton.graph.backward`."""
        with _where(problem):
            return graph.backward(problem, graph.Saved(*saved), do, dht)


triton = Triton()
