"""Compiling what a problem will launch before any of it is launched, side by side.

A kernel is compiled when it is first launched, and a first call would compile its ten or so one
after the other. Compilers leave Python's lock for most of their time, so threads do it in that of
the slowest: on a first call of its kind the graph is gone through once more before, forward and
backward, with nothing launched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context

import torch
import triton
from triton import knobs

from rewy.backends.triton import graph
from rewy.backends.triton.configs import fills_the_gpu
from rewy.backends.triton.start import only_compiling
from rewy.backends.triton.tiles import padded
from rewy.problem import Problem

_seen: set[tuple] = set()


def compile_ahead(problem: Problem) -> None:
    """Compile what the forward and the backward of the first problem of a kind launch.

    A kind is what the compiled forms depend on, as far as it can be told at once: what is compiled
    without being used, or left to its launch, is right all the same.
    """
    kind = _kind(problem)
    if kind in _seen:
        return
    _seen.add(kind)
    if knobs.runtime.interpret or _capturing():
        return
    with suppress(Exception):  # whatever is wrong, the launch itself will say, and where
        # In a context of its own: Triton leaves its mode on where it is interrupted.
        copy_context().run(_go_through, problem)


def _go_through(problem: Problem) -> None:
    """Compile all kernels of a problem's forward and backward."""
    with _compiling():
        o, _, saved = graph.forward(problem)
        graph.backward(problem, saved, torch.empty_like(o), None)


def _capturing() -> bool:
    """Whether launches go into a CUDA graph: what is only gone through would be in it."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _kind(problem: Problem) -> tuple:
    spec, x = problem
    tensors = (None if t is None else (t.dtype, t.shape[-1]) for t in x)
    return (
        x.q.device, *tensors, spec.policy, min(spec.chunk_size, spec.T), spec.H < spec.HV,
        spec.l2norm, spec.gate_activation, spec.lower_bound is None, spec.beta_activation,
        fills_the_gpu(spec.N * spec.HV, padded(spec.V)),
    )  # fmt: skip


@contextmanager
def _compiling() -> Iterator[None]:
    """Kernels that are started in here are compiled, by threads, and not launched."""
    workers = min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
    with (
        ThreadPoolExecutor(workers) as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),
        only_compiling(),
    ):
        yield
