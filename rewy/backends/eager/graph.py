"""The ReWY compute graph: the forward and the backward of all four operators, stage by stage.

Stage names are those of docs/method.md: gate sums, local scores (L, P), solve (A), states, output;
then correction with the reverse states (Y, dL, dK_b), contraction, gate reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from rewy.backends.eager.arguments import activate, to_arguments
from rewy.backends.eager.contraction import contraction, local_scores, role
from rewy.backends.eager.correction import Corrected
from rewy.backends.eager.gates import (
    GateSums,
    gate_reduction,
    head_gate_reduction,
    per_head,
)
from rewy.backends.eager.slabs import Slabs, some_of, tile
from rewy.backends.eager.solve import pack, solve, unpack
from rewy.backends.eager.states import Chunks, System, output, scaled, states
from rewy.backends.eager.tiling import Tiling
from rewy.problem import Problem, Tensors

Correct = Callable[..., Corrected]


class Saved(NamedTuple):
    """What a forward keeps for its backward beside the inputs.

    A under both policies, None after decoding, with a head gate packed with L, whose product with
    its adjoint the gate is owed; P, U and S (the states before each chunk) under 'save', else None.
    """

    A: Tensor | None
    P: Tensor | None
    U: Tensor | None
    S: Tensor | None


def _start(problem: Problem, state: Tensor | None, tiling: Tiling) -> Tensor:
    """The states to start from, sorted, ``[N, HV, K, V]``; zeros for None."""
    spec = problem.spec
    if state is None:
        v = problem.tensors.v
        return v.new_zeros(spec.N, spec.HV, spec.K, spec.V, dtype=spec.compute_dtype)
    state = state.mT if spec.state_v_first else state
    return tiling.sort(state.to(spec.compute_dtype))


def _finish(problem: Problem, state: Tensor, tiling: Tiling) -> Tensor:
    """Sorted states to the caller's order and layout."""
    state = tiling.unsort(state)
    return state.mT.contiguous() if problem.spec.state_v_first else state


def _local(
    x: Chunks,
    sums: GateSums | None,
    scale: float,
    parts: list[slice],
    P: Tensor | None,
    packed: Tensor | None,
) -> Tensor | None:
    """Local scores P, and the solve's A, packed with L for a head gate, into what is not None.

    Returns A, unpacked; None where it is not asked for.
    """
    A = torch.empty_like(packed) if packed is not None and per_head(x.g) else packed
    for rows in parts:
        part = some_of(rows, x)
        q = None if P is None else part.q
        erase = None if A is None else scaled(part.k, part.b)
        with record_function("rewy.local_scores"):
            scores, L = local_scores(q, erase, part.k, part.g, some_of(rows, sums))
            if P is not None:
                torch.mul(scores, scale, out=P[rows])
        if A is not None:
            with record_function("rewy.solve"):
                A[rows] = solve(L)
                if A is not packed:
                    packed[rows] = pack(A[rows], L)
    return A


def _inverse(x: Chunks, packed: Tensor) -> tuple[Tensor, Tensor | None]:
    """A, and for a head gate L as :func:`unpack` gives it."""
    return unpack(packed) if per_head(x.g) else (packed, None)


def forward(problem: Problem) -> tuple[Tensor, Tensor | None, Saved]:
    """Outputs ``[B, T, HV, V]`` in q's type, final states in the state's type or None, and what is
    kept.
    """
    slabs = Slabs(problem)
    spec, tiling = slabs.spec, slabs.tiling
    C, saves = tiling.C, spec.policy == "save"
    A, o = slabs.by_chunk(C, C), slabs.by_token(spec.V)
    P = U = S = None
    if saves:
        P, U, S = slabs.by_chunk(C, C), slabs.by_chunk(C, spec.V), slabs.by_chunk(spec.K, spec.V)
    h = _start(problem, problem.tensors.h0, tiling)
    for rows, steps in slabs.all:
        x, sums, ends = slabs.stages(rows)
        scores = P[rows] if saves else torch.empty_like(A[rows])
        residuals = U[rows] if saves else torch.empty_like(x.v)
        from_states = torch.empty_like(x.v)
        inverse = _local(x, sums, spec.scale, slabs.parts(rows), scores, A[rows])
        states(inverse, x.w, x.v, ends, h, steps, residuals, some_of(rows, S), from_states)
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
    x = tile(problem, activate(problem), tiling, slice(0, tiling.M))
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
    slabs = Slabs(problem)
    spec, tiling = slabs.spec, slabs.tiling
    A, P, U, S = saved
    if U is not None:
        U, S = ([y[rows] for rows, _ in slabs.all] for y in (U, S))
    else:
        C, solves = tiling.C, A is None  # where the forward decoded
        A = slabs.by_chunk(C, C) if solves else A
        U, S = slabs.by_slab(C, spec.V), slabs.by_slab(spec.K, spec.V)
        h = _start(problem, problem.tensors.h0, tiling)
        for n, (rows, steps) in enumerate(slabs.all):
            x, sums, ends = slabs.stages(rows, queries=False)
            if solves:
                inverse = _local(x, sums, spec.scale, slabs.parts(rows), None, A[rows])
            else:
                inverse, _ = _inverse(x, A[rows])
            states(inverse, x.w, x.v, ends, h, steps, U[n], S[n])
    do = None if do is None else do.contiguous()
    dh = _start(problem, dht, tiling)
    d = _adjoints(slabs)  # by token
    for n, (rows, steps) in reversed(list(enumerate(slabs.all))):
        x, sums, ends = slabs.stages(rows)
        if do is None:
            dO = torch.zeros_like(x.v)
        else:
            dO = tiling.chunks(do, spec.compute_dtype, rows)
        if P is None:
            scores = torch.empty_like(A[rows])
            _local(x, sums, spec.scale, slabs.parts(rows), scores, None)
        else:
            scores = P[rows]
        inverse, L = _inverse(x, A[rows])
        system = System(inverse, x.w, x.v, U[n], S[n])
        with record_function("rewy.reverse_states"):
            corrected = correct(scores.mT @ dO, dO, system, ends, dh, steps)
        adjoints = Chunks(*(None if y is None else torch.empty_like(y) for y in x))
        whole = x, sums, scores, L, system, dO, corrected, adjoints
        for part in slabs.parts(rows):
            _chunk_gradients(spec.scale, *(some_of(part, stage) for stage in whole))
        for adjoint, out in zip(adjoints, d, strict=True):
            if adjoint is not None:
                tiling.put(adjoint, rows, out)
    dh0 = problem.tensors.h0
    if dh0 is not None:
        dh0 = _finish(problem, dh, tiling).to(dh0.dtype)
    return to_arguments(problem, slabs.active, d, dh0)


def _adjoints(slabs: Slabs) -> Chunks:
    """Room for those of the recurrence's inputs, ``[B, T, HV, D]`` each."""
    spec, active, new = slabs.spec, slabs.active, slabs.by_token
    g = None if active.g is None else new(active.g.shape[-1])
    b, w = new(active.b.shape[-1]), new(active.w.shape[-1])
    return Chunks(new(spec.K), new(spec.K), new(spec.V), g, b, w)


def _chunk_gradients(
    scale: float,
    x: Chunks,
    sums: GateSums | None,
    P: Tensor,
    L: Tensor | None,
    system: System,
    dO: Tensor,
    corrected: Corrected,
    out: Chunks,
) -> None:
    """The adjoints of the recurrence's inputs, as chunks, into ``out``.

    Those of b and w are summed over the channels that share one number.
    """
    Y, dL, dK_b, dS = corrected
    erase, Dbk = scaled(x.k, x.b), torch.empty_like(x.k)
    with record_function("rewy.contraction"):
        dP = (dO @ system.U.mT).tril_()
        crossed = None if L is None else (dP * P).addcmul_(dL, L)
        dP *= scale
        on_diagonal = dP.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        levels = contraction(dP, dL, x.q, erase, x.k, x.g, sums, dq=out.q, d_erase=Dbk, dk=out.k)
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
            erased = role(erase.x, dK_b, x.g)
            if erase.by is not None:
                erased *= erase.by
            d_from_start = role(x.q, Dq_state, x.g) + erased
            kept = (sums.total * role(system.S, dS, sums.total)).mT
            if per_head(x.g):
                kept = kept.sum(-1, keepdim=True)
            d_from_start[..., -1:, :] += kept
            d_to_end = role(x.k, Dk_state, x.g)
            if crossed is None:
                out.g.copy_(gate_reduction(levels, d_from_start, d_to_end))
            else:
                out.g.copy_(head_gate_reduction(crossed, d_from_start, d_to_end))
    out.b.copy_(role(x.k, Dbk, x.b))
    out.w.copy_(role(x.v, Y, x.w))
