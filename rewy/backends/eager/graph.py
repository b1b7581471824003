"""The ReWY compute graph: the forward and the backward of all four operators, stage by stage.

Stage names are those of docs/method.md: gate sums, local scores (L, P), solve (A), states, output;
then correction with the reverse states (Y, dL, dK_b), contraction, gate reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from rewy.backends.eager.arguments import Active, activate, to_arguments
from rewy.backends.eager.contraction import contraction, local_scores, role
from rewy.backends.eager.correction import Corrected
from rewy.backends.eager.gates import GateSums, gate_reduction, gate_sums
from rewy.backends.eager.solve import solve
from rewy.backends.eager.states import Chunks, Decayed, System, decayed, output, states
from rewy.backends.eager.tiling import Tiling
from rewy.problem import Problem, Tensors

Correct = Callable[..., Corrected]


class Saved(NamedTuple):
    """What a forward keeps for its backward beside the inputs.

    A under both policies, None after decoding; P, U and S (the states before each chunk) under
    'save', else None.
    """

    A: Tensor | None
    P: Tensor | None
    U: Tensor | None
    S: Tensor | None


def _tile(problem: Problem, active: Active, tiling: Tiling, rows: slice) -> Chunks:
    """Some of the chunks."""

    def chunks(x: Tensor) -> Tensor:
        return tiling.chunks(x, problem.spec.compute_dtype, rows)

    g = None if active.g is None else chunks(active.g)
    b = chunks(active.b)
    w = b if active.w is active.b else chunks(active.w)
    return Chunks(chunks(active.q), chunks(active.k), chunks(active.v), g, b, w)


def _scores(x: Chunks, scale: float, want_L: bool) -> tuple[Tensor, Tensor | None]:
    """P with its diagonal, and L where it is wanted."""
    rows = [x.q] + ([x.b * x.k] if want_L else [])
    P, *L = local_scores(rows, x.k, x.g)
    P.diagonal(dim1=-2, dim2=-1).copy_((x.q * x.k).sum(-1))
    return P.mul_(scale), L[0] if want_L else None


def _start(problem: Problem, state: Tensor | None, tiling: Tiling) -> Tensor:
    """The states to start from, sorted, ``[N, HV, K, V]``; zeros for None."""
    spec = problem.spec
    if state is None:
        v = problem.tensors.v
        return v.new_zeros(spec.N, spec.HV, spec.K, spec.V, dtype=spec.compute_dtype)
    state = state.mT if spec.state_v_first else state
    return tiling.sort(state.to(spec.compute_dtype)).contiguous()


def _finish(problem: Problem, state: Tensor, tiling: Tiling) -> Tensor:
    """Sorted states to the caller's order and layout."""
    state = tiling.unsort(state)
    return state.mT.contiguous() if problem.spec.state_v_first else state


# Chunks go through the stages in slabs of about so many elements of the largest operand: on a CPU
# temporaries then stay in the cache, are memory used before and add little to the peak.
SLAB = 1 << 19


class Graph:
    """One problem on its way through the stages.

    Attributes:
        problem, spec: as given. active: activated inputs. tiling: where chunks lie.
        slabs: chunks that go through the stages together: which, and the slice among them of each
            step of the state passes. One slab on accelerators, where fewer and larger calls win.
    """

    def __init__(self, problem: Problem):
        self.problem, self.spec = problem, problem.spec
        self.tiling = _tiling(problem)
        self.active = activate(problem)
        self.slabs = self._slabs()
        self._whole: tuple[Chunks, GateSums | None, Decayed] | None = None

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

    def stages(self, rows: slice) -> tuple[Chunks, GateSums | None, Decayed]:
        """What forward and backward both form first, of some chunks; kept where these are all."""
        if self._whole is not None:
            return self._whole
        x = _tile(self.problem, self.active, self.tiling, rows)
        with record_function("rewy.gate_sums"):
            sums = gate_sums(x.g)
        found = x, sums, decayed(x, sums, self.spec.scale)
        if len(self.slabs) == 1:
            self._whole = found
        return found

    def by_chunk(self, *sizes: int) -> Tensor:
        """An uninitialised ``[M, HV, *sizes]`` in the compute type."""
        q, spec = self.problem.tensors.q, self.spec
        return q.new_empty(self.tiling.M, spec.HV, *sizes, dtype=spec.compute_dtype)

    def by_token(self, size: int) -> Tensor:
        """An uninitialised ``[B, T, HV, size]`` in the compute type."""
        q, spec = self.problem.tensors.q, self.spec
        return q.new_empty(spec.B, spec.T, spec.HV, size, dtype=spec.compute_dtype)


def _tiling(problem: Problem) -> Tiling:
    return Tiling(problem.spec, problem.tensors.q.device)


def _of(rows: slice, stage: NamedTuple | Tensor | None) -> Any:
    """A stage's tensors for some of the chunks."""
    if stage is None or isinstance(stage, Tensor):
        return None if stage is None else stage[rows]
    return type(stage)(*(None if x is None else x[rows] for x in stage))


def _local(x: Chunks, scale: float, parts: list[slice], P: Tensor, A: Tensor | None) -> None:
    """Local scores P and, where wanted, the solve's A, into these."""
    for rows in parts:
        with record_function("rewy.local_scores"):
            P[rows], L = _scores(_of(rows, x), scale, A is not None)
        if A is not None:
            with record_function("rewy.solve"):
                A[rows] = solve(L)


def forward(problem: Problem) -> tuple[Tensor, Tensor | None, Saved]:
    """Outputs ``[B, T, HV, V]`` in q's type, final states in the state's type or None, and what is
    kept.
    """
    graph = Graph(problem)
    spec, tiling = graph.spec, graph.tiling
    C, saves = tiling.C, spec.policy == "save"
    A, o = graph.by_chunk(C, C), graph.by_token(spec.V)
    P = U = S = None
    if saves:
        P, U, S = graph.by_chunk(C, C), graph.by_chunk(C, spec.V), graph.by_chunk(spec.K, spec.V)
    h = _start(problem, problem.tensors.h0, tiling)
    for rows, steps in graph.slabs:
        x, _, ends = graph.stages(rows)
        scores = P[rows] if saves else torch.empty_like(A[rows])
        residuals = U[rows] if saves else torch.empty_like(x.v)
        from_states = torch.empty_like(x.v)
        _local(x, spec.scale, graph.parts(rows), scores, A[rows])
        states(A[rows], x.w * x.v, ends, h, steps, residuals, _of(rows, S), from_states)
        with record_function("rewy.output"):
            tiling.put(output(from_states, scores, residuals), rows, o)
    o = o.to(problem.tensors.q.dtype)
    ht = _finish(problem, h, tiling) if spec.output_final_state else None
    return o, ht, Saved(A, P, U, S)


def decode(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """The recurrence token by token: a chunk of one row needs no scores and no solve.

    ``U_t = w_t * v_t - (b_t * k_t)^T exp(g_t) S``, ``S <- exp(g_t) S + k_t U_t^T``, ``o_t = scale
    S^T q_t``. Results as :func:`forward`'s.
    """
    spec = replace(problem.spec, chunk_size=1)
    tiling = Tiling(spec, problem.tensors.q.device)
    x = _tile(problem, activate(problem), tiling, slice(0, tiling.M))
    q, erase, R = spec.scale * x.q, x.b * x.k, x.w * x.v
    decay = None if x.g is None else x.g.exp().mT
    h = _start(problem, problem.tensors.h0, tiling)
    o = torch.empty_like(R)
    for step in tiling.steps:
        S = h[: step.stop - step.start]
        if decay is not None:
            S *= decay[step]
        S += x.k[step].mT @ (R[step] - erase[step] @ S)
        o[step] = q[step] @ S
    out = x.v.new_empty(spec.B, spec.T, spec.HV, spec.V)
    tiling.put(o, slice(0, tiling.M), out)
    out = out.to(problem.tensors.q.dtype)
    return out, _finish(problem, h, tiling) if spec.output_final_state else None


def backward(
    problem: Problem, saved: Saved, do: Tensor | None, dht: Tensor | None, correct: Correct
) -> Tensors:
    """Gradients of every tensor of the problem, each in its tensor's shape and type, None where it
    is.

    ``do`` and ``dht`` are the adjoints of outputs and final states, None for zero. ``correct`` is
    :func:`rewy.backends.eager.correction.correct` or another way to the same adjoints.
    """
    graph = Graph(problem)
    spec, tiling = graph.spec, graph.tiling
    A, P, U, S = saved
    if U is None:
        C, solves = tiling.C, A is None  # where the forward decoded
        A = graph.by_chunk(C, C) if solves else A
        P, U, S = graph.by_chunk(C, C), graph.by_chunk(C, spec.V), graph.by_chunk(spec.K, spec.V)
        h = _start(problem, problem.tensors.h0, tiling)
        for rows, steps in graph.slabs:
            x, _, ends = graph.stages(rows)
            _local(x, spec.scale, graph.parts(rows), P[rows], A[rows] if solves else None)
            states(A[rows], x.w * x.v, ends, h, steps, U[rows], S[rows])
    do = None if do is None else do.contiguous()
    dh = _start(problem, dht, tiling)
    d = _adjoints(graph)  # by token
    for rows, steps in reversed(graph.slabs):
        x, sums, ends = graph.stages(rows)
        if do is None:
            dO = torch.zeros_like(x.v)
        else:
            dO = tiling.chunks(do, spec.compute_dtype, rows)
        system = System(A[rows], x.w, x.v, U[rows], S[rows])
        with record_function("rewy.reverse_states"):
            corrected = correct(P[rows].mT @ dO, dO, system, ends, dh, steps)
        adjoints = Chunks(*(None if y is None else torch.empty_like(y) for y in x))
        whole = x, sums, system, dO, corrected, adjoints
        for part in graph.parts(rows):
            _chunk_gradients(spec.scale, *(_of(part, stage) for stage in whole))
        for adjoint, out in zip(adjoints, d, strict=True):
            if adjoint is not None:
                tiling.put(adjoint, rows, out)
    dh0 = problem.tensors.h0
    if dh0 is not None:
        dh0 = _finish(problem, dh, tiling).to(dh0.dtype)
    return to_arguments(problem, graph.active, d, dh0)


def _adjoints(graph: Graph) -> Chunks:
    """Room for those of the recurrence's inputs, ``[B, T, HV, D]`` each."""
    spec, active, new = graph.spec, graph.active, graph.by_token
    g = None if active.g is None else new(active.g.shape[-1])
    b, w = new(active.b.shape[-1]), new(active.w.shape[-1])
    return Chunks(new(spec.K), new(spec.K), new(spec.V), g, b, w)


def _chunk_gradients(
    scale: float,
    x: Chunks,
    sums: GateSums | None,
    system: System,
    dO: Tensor,
    corrected: Corrected,
    out: Chunks,
) -> None:
    """The adjoints of the recurrence's inputs, as chunks, into ``out``.

    Those of b and w are summed over the channels that share one number.
    """
    Y, dL, dK_b, dS = corrected
    erase = x.b * x.k
    Dbk = torch.empty_like(erase)
    with record_function("rewy.contraction"):
        dP = (dO @ system.U.mT).mul_(scale)
        on_diagonal = dP.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        levels = contraction([dP, dL], [x.q, erase], x.k, x.g, [out.q, Dbk], out.k)
        Dq_state, Dk_state = dO @ system.S.mT, system.U @ dS.mT
        if sums is None:
            Dq_state *= scale
        else:
            Dq_state *= scale * sums.from_start
            dK_b *= sums.from_start
            Dk_state *= sums.to_end
    Dbk += dK_b
    out.q.add_(Dq_state).addcmul_(on_diagonal, x.k)
    out.k.add_(Dk_state).addcmul_(on_diagonal, x.q).addcmul_(x.b, Dbk)
    torch.mul(x.w, Y, out=out.v)
    # From here on adjoints are wanted as factors alone, and become what their roles are owed.
    if sums is not None:
        with record_function("rewy.gate_reduction"):
            # Role times adjoint, products already at hand; the total decay counts to the last row.
            d_from_start = role(x.q, Dq_state, x.g) + role(erase, dK_b, x.g)
            kept = (sums.total * role(system.S, dS, sums.total)).mT
            if x.g.shape[-1] == 1:
                kept = kept.sum(-1, keepdim=True)
            d_from_start[..., -1:, :] += kept
            out.g.copy_(gate_reduction(levels, d_from_start, role(x.k, Dk_state, x.g)))
    out.b.copy_(role(x.k, Dbk, x.b))
    out.w.copy_(role(x.v, Y, x.w))
