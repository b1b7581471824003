"""The pass over the states, one chunk of every sequence a step, and what it is made of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from rewy.backends.eager.gates import GateSums


class Chunks(NamedTuple):
    """The inputs of the graph as chunks, in the compute type; padding rows are 0.

    q, k: ``[M, HV, C, K]``; v: ``[M, HV, C, V]``; g: ``[M, HV, C, 1 or K]`` or None;
    b: ``[M, HV, C, 1 or K]`` (erase); w: ``[M, HV, C, 1 or V]`` (write).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    b: Tensor
    w: Tensor


class Decayed(NamedTuple):
    """Queries and keys decayed to the chunk's ends.

    q: ``scale Q * exp(G)``; k_b: ``b * K * exp(G)`` (erase keys); k_t: ``K * exp(G_C - G)``; total:
    ``exp(G_C)`` as a factor of a state ``[M, HV, K, V]``, None without a gate.
    """

    q: Tensor
    k_b: Tensor
    k_t: Tensor
    total: Tensor | None


class System(NamedTuple):
    """The residual system ``(I + L) U = R - K_b S_0`` of every chunk, solved.

    A: ``(I + L)^-1``, ``[M, HV, C, C]``; w, v: of ``R = w * V``; U: its solution, ``[M, HV, C,
        V]``; S: the state before the chunk, ``[M, HV, K, V]``.
    """

    A: Tensor
    w: Tensor
    v: Tensor
    U: Tensor
    S: Tensor


def decayed(x: Chunks, sums: GateSums | None, scale: float) -> Decayed:
    """Queries and keys as the state meets them (K_b and K_t of docs/method.md)."""
    if sums is None:
        return Decayed(scale * x.q, x.b * x.k, x.k, None)
    return Decayed(
        q=x.q * (scale * sums.from_start),
        k_b=x.k * (x.b * sums.from_start),
        k_t=x.k * sums.to_end,
        total=sums.total,
    )


def states(
    A: Tensor,
    R: Tensor,
    x: Decayed,
    h: Tensor,
    steps: list[slice],
    U: Tensor,
    S: Tensor | None = None,
    O: Tensor | None = None,
) -> None:
    """Solve the residual system of some steps, chunk after chunk.

    ``U = A (R - K_b S_0)``, ``S_1 = exp(G_C) S_0 + K_t^T U``. ``h``, the states ``[N, HV, K, V]``
    (sorted), goes from those before the first step to those after the last. ``steps`` are slices of
    the chunks in the other arguments. Written are U and, where they are given, S, the states before
    each chunk, and O, what these give the outputs: ``scale (Q * exp G) S_0``.
    """
    with record_function("rewy.states"):
        for step in steps:
            before = h[: step.stop - step.start]
            if S is not None:
                S[step] = before
            if O is not None:
                torch.matmul(x.q[step], before, out=O[step])
            torch.matmul(A[step], R[step] - x.k_b[step] @ before, out=U[step])
            if x.total is not None:
                before *= x.total[step]
            # Product, then sum: baddbmm may add its terms to the state one by one, which loses what
            # many small writes add up to.
            before += x.k_t[step].mT @ U[step]


def output(from_states: Tensor, P: Tensor, U: Tensor) -> Tensor:
    """``O = scale (Q * exp G) S_0 + P U``, ``[M, HV, C, V]``, into the first."""
    return from_states.add_(P @ U)
