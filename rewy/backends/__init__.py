"""Backends: who computes. Chosen by the device the tensors lie on, overridden by name; nothing ever
moves.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from rewy.backends.eager import eager, naive
from rewy.problem import Problem, Tensors

Kept = tuple[Tensor | None, ...]


class Backend(Protocol):
    """What a backend provides. Problems are checked before they reach it."""

    name: str

    def unsupported(self, problem: Problem) -> str | None:
        """Why this backend cannot take the problem (device, type, size), or None where it can."""

    def forward(self, problem: Problem) -> tuple[Tensor, Tensor | None, Kept]:
        """Outputs, final states (None unless asked for), what backward wants besides inputs."""

    def decode(self, problem: Problem) -> tuple[Tensor, Tensor | None, Kept]:
        """The same, token by token."""

    def backward(
        self, problem: Problem, saved: Kept, do: Tensor | None, dht: Tensor | None
    ) -> Tensors:
        """Gradients of the problem's tensors, in their shapes and types."""


# In order of preference. 'naive' is for ablation and testing: by name only.
_CHOICES: tuple[Backend, ...] = (eager,)
_BY_NAME: dict[str, Backend] = {backend.name: backend for backend in (*_CHOICES, naive)}


def select(problem: Problem, name: str | None = None) -> Backend:
    """The backend for a problem: the one named, or the first that takes it.

    Raises:
        ValueError: no backend has that name, or the one named cannot take the problem.
    """
    if name is None:
        return next(b for b in _CHOICES if b.unsupported(problem) is None)
    if not isinstance(name, str) or name not in _BY_NAME:
        raise ValueError(f"backend must be one of {sorted(_BY_NAME)} or None, got {name!r}")
    backend = _BY_NAME[name]
    if (reason := backend.unsupported(problem)) is not None:
        raise ValueError(f"backend {name!r} cannot take this problem: {reason}")
    return backend
