"""The pass over the states, one chunk of every sequence a step, and what it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from rewy.backends.eager.gates import GateSums


class Chunks(NamedTuple):
    """The inputs of the graph as chunks, in the compute type; padding rows are 0.

    q, k: ``[M, HV, C, K]``, q None where neither outputs nor scores are formed; v: ``[M, HV, C,
    V]``; g: ``[M, HV, C, 1 or K]`` or None; b: ``[M, HV, C, 1 or K]`` (erase); w: ``[M, HV, C, 1 or
    V]`` (write).
    """

    q: Tensor | None
    k: Tensor
    v: Tensor
    g: Tensor | None
    b: Tensor
    w: Tensor


class Scaled(NamedTuple):
    """Rows of queries or keys, ``by * x``: ``[M, HV, C, K]`` and one factor a row, ``[M, HV, C,
    1]``, or None for 1. The factor goes to a product's result or other operand: x is not copied.
    A factor of 0 is one of nothing as long as the product without it is finite.
    """

    x: Tensor
    by: Tensor | None

    def at(self, chunks: slice) -> Scaled:
        return Scaled(self.x[chunks], None if self.by is None else self.by[chunks])

    def formed(self) -> Tensor:
        """``by * x``."""
        return self.x if self.by is None else self.by * self.x

    def read(self, S: Tensor, out: Tensor | None = None) -> Tensor:
        """``(by * x) S``, ``[M, HV, C, V]``."""
        found = torch.matmul(self.x, S, out=out)
        return found if self.by is None else found.mul_(self.by)

    def write(self, U: Tensor) -> Tensor:
        """``(by * x)^T U``, ``[M, HV, K, V]``."""
        return self.x.mT @ (U if self.by is None else self.by * U)


class Decayed(NamedTuple):
    """Queries and keys decayed to the chunk's ends; q is None where no outputs are formed.

    q: ``scale Q * exp(G)``; k_b: ``b * K * exp(G)`` (erase keys); k_t: ``K * exp(G_C - G)``; total:
    ``exp(G_C)`` as a factor of a state ``[M, HV, K, V]``, None without a gate.
    """

    q: Scaled | None
    k_b: Scaled
    k_t: Scaled
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
        whole = torch.full_like(x.b[..., :1], scale)
        return Decayed(_rows(x.q, whole), scaled(x.k, x.b), Scaled(x.k, None), None)
    return Decayed(
        q=_rows(x.q, scale * sums.from_start),
        k_b=scaled(x.k, x.b * sums.from_start),
        k_t=scaled(x.k, sums.to_end),
        total=sums.total,
    )


def _rows(q: Tensor | None, by: Tensor) -> Scaled | None:
    return None if q is None else scaled(q, by)


def scaled(x: Tensor, by: Tensor) -> Scaled:
    """``by * x``, multiplied out where each channel has a factor of its own."""
    return Scaled(x, by) if by.shape[-1] == 1 else Scaled(by * x, None)


def states(
    A: Tensor,
    w: Tensor,
    v: Tensor,
    x: Decayed,
    h: Tensor,
    steps: list[slice],
    U: Tensor,
    S: Tensor | None = None,
    O: Tensor | None = None,
) -> None:
    """Solve the residual system of some steps, chunk after chunk.

    ``U = A (w * V - K_b S_0)``, ``S_1 = exp(G_C) S_0 + K_t^T U``. ``h``, the states ``[N, HV, K,
    V]`` (sorted), goes from those before the first step to those after the last. ``steps`` are
    slices of the chunks in the other arguments. Written are U and, where they are given, S, the
    states before each chunk, and O, what these give the outputs: ``scale (Q * exp G) S_0``.
    """
    with record_function("rewy.states"):
        for step, before, after in places(h, steps, S):
            if O is not None:
                x.q.at(step).read(before, O[step])
            residual = torch.mul(w[step], v[step]).sub_(x.k_b.at(step).read(before))
            torch.matmul(A[step], residual, out=U[step])
            # Product, then sum: baddbmm may add its terms to the state one by one, which loses what
            # many small writes add up to.
            advance(before, x.total, step, x.k_t.at(step).write(U[step]), after)


def places(
    h: Tensor, steps: list[slice], kept: Tensor | None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Each step with the states that it reads, ``[n, HV, K, V]``, and the place of its result.

    What a step reads stays in ``kept[step]``, if that is given, and where the next step has the
    same sequences its place there is the place of the result: no state is copied. ``h`` has the
    states to begin with and, afterwards, those after the last step of each sequence.
    """
    ready = False
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        before = after = h[: step.stop - step.start]
        if kept is not None:
            if not ready:
                kept[step] = before
            before = kept[step]
            ready = following is not None and kept[following].shape == before.shape
            after = kept[following] if ready else after
        yield step, before, after


def advance(
    before: Tensor, total: Tensor | None, step: slice, change: Tensor, after: Tensor
) -> None:
    """``after = total * before + change``."""
    if total is None:
        torch.add(before, change, out=after)
    else:
        torch.addcmul(change, before, total[step], out=after)


def output(from_states: Tensor, P: Tensor, U: Tensor) -> Tensor:
    """``O = scale (Q * exp G) S_0 + P U``, ``[M, HV, C, V]``, into the first."""
    return from_states.add_(P @ U)
