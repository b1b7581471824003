"""Backends: who computes, on the device where the tensors lie; nothing ever moves."""

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


# 'naive' is for ablation and testing.
_NAMES = ("eager", "naive", "triton")
# Where a device has kernels of its own.
_KERNELS = {"cuda": "triton"}


def _backend(name: str) -> Backend:
    """The backend of that name; Triton is imported when somebody first needs it."""
    if name == "triton":
        return importlib.import_module("rewy.backends.triton").triton
    return {"eager": eager, "naive": naive}[name]


@cache
def _say_once(text: str) -> None:
    warnings.warn(text, stacklevel=6)  # where rewy was called


def _kernels(problem: Problem) -> Backend | None:
    """The kernels of the device where the problem lies, or None where it has none, or, which is
    said once, none for this problem.
    """
    device = problem.tensors.q.device.type
    name = _KERNELS.get(device)
    if name is None:
        return None
    try:
        backend = _backend(name)
    except ImportError as error:
        reason = f"it cannot be loaded: {error}"
    else:
        reason = backend.unsupported(problem)
    if reason is None:
        return backend
    _say_once(
        f"rewy computes on {device} by its eager graph where backend {name!r} cannot: {reason}"
    )
    return None


def select(problem: Problem, name: str | None = None) -> Backend:
    """The backend for a problem: the one named, else the kernels of the device where it lies, else
    the eager graph, which takes every problem on every device.

    Raises:
        ValueError: no backend has that name, or the one named cannot be loaded or cannot take the
            problem.
    """
    if name is None:
        return _kernels(problem) or eager
    if not isinstance(name, str) or name not in _NAMES:
        raise ValueError(f"backend must be one of {list(_NAMES)} or None, got {name!r}")
    try:
        backend = _backend(name)
    except ImportError as error:
        raise ValueError(f"backend {name!r} cannot be loaded: {error}") from error
    if (reason := backend.unsupported(problem)) is not None:
        raise ValueError(f"backend {name!r} cannot take this problem: {reason}")
    return backend
