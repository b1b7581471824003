"""Backends: who computes. Chosen by the device the tensors lie on, overridden by name; nothing ever
moves.
"""

from __future__ import annotations

import importlib
import warnings
from functools import cache
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


# What a device type prefers to the eager graph. 'naive' is for ablation and testing: by name only.
_PREFERRED = {"cuda": "triton"}
_NAMES = ("eager", "naive", "triton")


@cache
def _backend(name: str) -> Backend:
    """The backend of that name; Triton is imported when somebody first needs it."""
    if name == "triton":
        return importlib.import_module("rewy.backends.triton").triton
    return {"eager": eager, "naive": naive}[name]


@cache
def _say_once(message: str) -> None:
    warnings.warn(message, stacklevel=5)


def select(problem: Problem, name: str | None = None) -> Backend:
    """The backend for a problem: the one named, or its device's own where that takes it.

    Where a device's own cannot take a problem, the eager graph does, on the same device; a warning
    says so once.

    Raises:
        ValueError: no backend has that name, or the one named cannot take the problem.
    """
    if name is None:
        return _by_device(problem)
    if not isinstance(name, str) or name not in _NAMES:
        raise ValueError(f"backend must be one of {list(_NAMES)} or None, got {name!r}")
    try:
        backend = _backend(name)
    except ImportError as error:
        raise ValueError(f"backend {name!r} cannot be loaded: {error}") from error
    if (reason := backend.unsupported(problem)) is not None:
        raise ValueError(f"backend {name!r} cannot take this problem: {reason}")
    return backend


def _by_device(problem: Problem) -> Backend:
    name = _PREFERRED.get(problem.tensors.q.device.type)
    if name is None:
        return eager
    try:
        backend = _backend(name)
    except ImportError as error:
        _say_once(f"rewy: backend {name!r} cannot be loaded ({error}); the eager graph stands in")
        return eager
    if (reason := backend.unsupported(problem)) is not None:
        _say_once(f"rewy: backend {name!r}: {reason}; the eager graph stands in")
        return eager
    return backend
