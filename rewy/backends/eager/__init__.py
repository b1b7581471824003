"""The ReWY compute graph in PyTorch: any device, any float type, the code one reads to understand
the method.
"""

from __future__ import annotations

from torch import Tensor

from rewy.backends.eager import graph
from rewy.backends.eager.correction import correct
from rewy.backends.eager.naive import correct_naively
from rewy.backends.tracing import never_traced
from rewy.problem import Problem, Tensors


class Eager:
    """The eager backend; ``correct`` is the way the correction is differentiated."""

    def __init__(self, name: str = "eager", correct: graph.Correct = correct):
        self.name = name
        self._correct = correct

    def unsupported(self, problem: Problem) -> str | None:
        """None: whatever passes the door runs here."""
        return None

    @never_traced
    def forward(self, problem: Problem) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, ...]]:
        """See :func:`rewy.backends.eager.graph.forward`."""
        return graph.forward(problem)

    @never_traced
    def decode(self, problem: Problem) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, ...]]:
        """See :func:`rewy.backends.eager.graph.decode`; nothing is kept but the inputs."""
        return *graph.decode(problem), graph.Saved(None, None, None, None)

    @never_traced
    def backward(
        self,
        problem: Problem,
        saved: tuple[Tensor | None, ...],
        do: Tensor | None,
        dht: Tensor | None,
    ) -> Tensors:
        """See :func:`rewy.backends.eager.graph.backward`."""
        return graph.backward(problem, graph.Saved(*saved), do, dht, self._correct)


eager = Eager()
naive = Eager("naive", correct_naively)
