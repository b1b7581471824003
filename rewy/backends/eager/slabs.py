"""Slabs: the chunks that go through the stages together."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.profiler import record_function

from rewy.backends.eager.arguments import Active, activate
from rewy.backends.eager.gates import GateSums, gate_sums, per_head
from rewy.backends.eager.states import Chunks, Decayed, decayed
from rewy.backends.eager.tiling import Tiling
from rewy.problem import Problem

# Chunks go through the stages in slabs of about so many elements of the largest operand: on a CPU
# temporaries then stay in a shared cache, are memory used before and add little to the peak.
# Smaller ones cost more calls than that is worth.
SLAB = 1 << 19


class Slabs:
    """One problem on its way through the stages.

    Attributes:
        problem, spec: as given. active: activated inputs. tiling: where chunks lie.
        all: of each slab, which chunks it has and the slice among them of each step of the state
            passes. One slab on accelerators, where fewer and larger calls win.
    """

    def __init__(self, problem: Problem):
        self.problem, self.spec = problem, problem.spec
        self.tiling = _tiling(problem)
        self.active = activate(problem)
        self.all = self._slabs()
        self._whole: tuple[Chunks, GateSums | None, Decayed] | None = None
        self._sums: GateSums | None = None

    def _slabs(self) -> list[tuple[slice, list[slice]]]:
        size = self._slab_size()
        found: list[tuple[slice, list[slice]]] = []
        for step in self.tiling.steps:
            rows, steps = found[-1] if found else (slice(0, 0), [])
            if not found or step.stop - rows.start > size:
                rows, steps = slice(step.start, step.start), []
                found.append((rows, steps))
            steps.append(slice(step.start - rows.start, step.stop - rows.start))
            found[-1] = slice(rows.start, step.stop), steps
        return found

    def _slab_size(self) -> int:
        """In chunks."""
        spec = self.spec
        if self.problem.tensors.q.device.type != "cpu":
            return max(self.tiling.M, 1)
        return max(SLAB // max(spec.HV * self.tiling.C * max(spec.K, spec.V), 1), 1)

    def parts(self, rows: slice) -> list[slice]:
        """Chunks of a slab in pieces, where a step alone is larger than a slab should be."""
        count, size = rows.stop - rows.start, self._slab_size()
        return [slice(first, min(first + size, count)) for first in range(0, count, size)]

    def stages(self, rows: slice, queries: bool = True) -> tuple[Chunks, GateSums | None, Decayed]:
        """What forward and backward both form first, of a slab; kept where it is the only one.

        Without ``queries`` there need not be any.
        """
        if self._whole is not None:
            return self._whole
        whole = len(self.all) == 1
        x = tile(self.problem, self.active, self.tiling, rows, queries or whole)
        with record_function("rewy.gate_sums"):
            sums = some_of(rows, self._head_sums()) if per_head(x.g) else gate_sums(x.g)
        found = x, sums, decayed(x, sums, self.spec.scale)
        if whole:
            self._whole = found
        return found

    def _head_sums(self) -> GateSums:
        """A head gate's, of all chunks at once: many calls, each on little. As large as A."""
        if self._sums is None:
            everywhere = slice(0, self.tiling.M)
            g = self.tiling.chunks(self.active.g, self.spec.compute_dtype, everywhere)
            self._sums = gate_sums(g)
        return self._sums

    def by_chunk(self, *sizes: int) -> Tensor:
        """An uninitialised ``[M, HV, *sizes]`` in the compute type."""
        return self._new(self.tiling.M, *sizes)

    def by_slab(self, *sizes: int) -> list[Tensor]:
        """The same for each slab by itself: pieces that an allocator has at hand."""
        return [self._new(rows.stop - rows.start, *sizes) for rows, _ in self.all]

    def _new(self, count: int, *sizes: int) -> Tensor:
        q, spec = self.problem.tensors.q, self.spec
        return q.new_empty(count, spec.HV, *sizes, dtype=spec.compute_dtype)

    def by_token(self, size: int) -> Tensor:
        """An uninitialised ``[B, T, HV, size]`` in the compute type."""
        q, spec = self.problem.tensors.q, self.spec
        return q.new_empty(spec.B, spec.T, spec.HV, size, dtype=spec.compute_dtype)


def _tiling(problem: Problem) -> Tiling:
    return Tiling(problem.spec, problem.tensors.q.device)


def some_of(rows: slice, stage: NamedTuple | Tensor | None) -> Any:
    """A stage's tensors for some of the chunks."""
    if stage is None or isinstance(stage, Tensor):
        return None if stage is None else stage[rows]
    return type(stage)(*(some_of(rows, x) for x in stage))


def tile(
    problem: Problem, active: Active, tiling: Tiling, rows: slice, queries: bool = True
) -> Chunks:
    """Some of the chunks, with or without q."""

    def chunks(x: Tensor) -> Tensor:
        return tiling.chunks(x, problem.spec.compute_dtype, rows)

    g = None if active.g is None else chunks(active.g)
    b = chunks(active.b)
    w = b if active.w is active.b else chunks(active.w)
    q = chunks(active.q) if queries else None
    return Chunks(q, chunks(active.k), chunks(active.v), g, b, w)
