"""The ReWY compute graph as kernels: forward, backward and decoding of all four operators.

Stage names are those of docs/method.md. Matrix units are fed bfloat16 where the inputs are
bfloat16, TF32 where they are float16 (as many digits, and float32's range for what lies between the
stages), and float32 where they are float32. L, the solve, gate sums and the states' accumulators
are float32 or better throughout.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rewy.backends.triton.channel import rows_a_program
from rewy.backends.triton.channel_gradients import _channel_gradients, _channel_reduction
from rewy.backends.triton.channel_scores import _channel_scores
from rewy.backends.triton.common import CHANNEL
from rewy.backends.triton.configs import Config, go_apart
from rewy.backends.triton.correction import _correction
from rewy.backends.triton.decode import _decode
from rewy.backends.triton.gradients import _gradients
from rewy.backends.triton.inputs import finish, gradient_types
from rewy.backends.triton.local import _local
from rewy.backends.triton.output import _output
from rewy.backends.triton.run import Run
from rewy.backends.triton.scores import _scores
from rewy.backends.triton.solve import _solve
from rewy.backends.triton.states import _passes
from rewy.problem import Problem, Tensors


class Saved(NamedTuple):
    """Kept beside the inputs: A and, with a channel gate, P under both policies, the rest under
    'save' alone.

    A, P: ``[M, HV, C, C]``; G, gate sums: ``[M, HV, C, 1 or KP]``; U: ``[M, HV, C, VP]``; S, the
    states before each chunk: ``[M, HV, KP, VP]``.
    """

    A: Tensor | None = None
    P: Tensor | None = None
    G: Tensor | None = None
    U: Tensor | None = None
    S: Tensor | None = None


class Local(NamedTuple):
    """The halves of the residual system, ``U = U_hat - W_hat S_0``, by chunk.

    K_t, keys decayed to the chunk's end, is there beside a channel gate, and where sizes are not
    compiled in, since keys are read one by one then and K_t sixteen bytes at a time.
    """

    W_hat: Tensor
    U_hat: Tensor
    K_t: Tensor | None


class Adjoint(NamedTuple):
    """The halves of the residual system's adjoint, ``Y = Y_hat + K_hat dS_1``, by chunk.

    Q_g, scaled, and K_b are the decayed queries and erase keys. Where a row's keys have one factor
    and their size is compiled in, b_g, ``[M, HV, C]`` float32, takes the place of ``K_b = b_g K``.
    """

    Y_hat: Tensor
    K_hat: Tensor
    Q_g: Tensor
    K_b: Tensor | None
    b_g: Tensor | None


class States(NamedTuple):
    """What a state pass leaves: residuals U and the states before each chunk, or in reverse Y and
    the adjoints of the states after each; and the state it ends with, None if nobody asked.
    """

    rows: Tensor
    states: Tensor
    last: Tensor | None


def forward(problem: Problem) -> tuple[Tensor, Tensor | None, Saved]:
    """Outputs ``[B, T, HV, V]`` in q's type, final states or None, and what is kept."""
    run = Run(problem)
    A, P = _solve_stage(run)
    local, _ = _local_stage(run, A, P, True, None)
    U, S, ht = found = _new_states(run, local.U_hat, problem.spec.output_final_state)
    _state_passes(run, forward=(local, found))
    del local  # its memory is wanted
    o = _output_stage(run, P, U, S)
    P = P if run.gate == CHANNEL else None
    saved = Saved(A, P, run.G, U, S)
    if problem.spec.policy == "recompute":
        saved = saved._replace(G=None, U=None, S=None)
    return o, ht, saved


def backward(problem: Problem, saved: Saved, do: Tensor | None, dht: Tensor | None) -> Tensors:
    """Gradients of every tensor of the problem, each in its tensor's shape and type, None where it
    is.
    """
    A, P, G, U, S = saved
    run = Run(problem, G=G)
    do = torch.zeros_like(run.active.v) if do is None else do.contiguous()
    recompute = U is None
    if A is None:  # the forward decoded
        A, P = _solve_stage(run)
    local, adjoint = _local_stage(run, A, P, recompute, do)
    again = None
    if recompute:
        again = local, _new_states(run, local.U_hat, False)
        U, S, _ = again[1]
    del local
    if recompute and go_apart(run.operand, run.spec.N * run.spec.HV, run.tiles.KP, run.tiles.VP):
        _state_passes(run, again)
        again = None  # the memory of what it has read is wanted
    Y, dS, dh0 = found = _new_states(run, adjoint.Y_hat, problem.tensors.h0 is not None)
    _state_passes(run, again, (adjoint, found), do, dht)
    del adjoint, again, P  # as above
    gradients = _gradient_stage(run, do, U, S, Y, dS, dh0)
    del U, S, Y, dS, found
    return finish(problem, run.active, gradients)


def _solve_stage(run: Run) -> tuple[Tensor, Tensor]:
    """A and P."""
    x, t, spec, chunks = run.active, run.tiles, run.spec, run.tiles.M * run.spec.HV
    A, P = run.by_chunk(t.C, t.C), run.by_chunk(t.C, t.C)
    L = run.by_chunk(t.C, t.C, dtype=torch.float32)
    name, kernel, blocks = "scores", _scores, 1
    if run.gate == CHANNEL:
        name, kernel, blocks = "channel_scores", _channel_scores, t.C // rows_a_program(t.C)
    run.launch(
        kernel, chunks * blocks, run.config(name),
        x.q, x.k, x.b, run.G, P, L, t.table, spec.scale, spec.T, t.NT,
    )  # fmt: skip
    run.launch(_solve, chunks, run.config("solve"), L, A)
    return A, P


# By whether they form the system's halves, and its adjoint's.
LOCAL = {(True, False): "local", (False, True): "local_adjoint", (True, True): "local_both"}


def _local_stage(
    run: Run, A: Tensor, P: Tensor | None, forward: bool, do: Tensor | None
) -> tuple[Local, Adjoint]:
    """The halves of the residual system where ``forward``, and where there is a do those of its
    adjoint; both are of Nones else. P is wanted for the adjoint beside a channel gate.
    """
    x, t, spec = run.active, run.tiles, run.spec
    local, adjoint = Local(None, None, None), Adjoint(*(5 * [None]))
    if forward:
        K_t = run.by_chunk(t.C, t.KP) if run.gate == CHANNEL or not run.known else None
        local = Local(run.by_chunk(t.C, t.KP), run.by_chunk(t.C, t.VP), K_t)
    if do is not None:
        halves = run.by_chunk(t.C, t.VP), run.by_chunk(t.C, t.KP), run.by_chunk(t.C, t.KP)
        if run.gate == CHANNEL or run.b_channel or not run.known:
            adjoint = Adjoint(*halves, run.by_chunk(t.C, t.KP), None)
        else:
            adjoint = Adjoint(*halves, None, run.by_chunk(t.C, dtype=torch.float32))
    use = forward, do is not None
    run.launch(
        _local, t.M * spec.HV, run.config(LOCAL[use]),
        x.q, x.k, x.v, x.b, x.w, do, run.G, A, P, *local, *adjoint, t.table, spec.scale, spec.T,
        t.NT, FORWARD=use[0], REVERSE=use[1], DECAYED=local.K_t is not None,
        FACTOR=adjoint.b_g is not None,
    )  # fmt: skip
    return local, adjoint


def _new_states(run: Run, rows: Tensor, want_last: bool) -> States:
    """Room for what a state pass leaves: ``rows`` are U_hat or Y_hat, which U or Y takes the place
    of, each tile read by the program that then writes it.
    """
    t = run.tiles
    last = run.state() if want_last else None
    return States(rows, run.by_chunk(t.KP, t.VP), last)


def _state_passes(
    run: Run,
    forward: tuple[Local, States] | None = None,
    reverse: tuple[Adjoint, States] | None = None,
    do: Tensor | None = None,
    dht: Tensor | None = None,
) -> None:
    """The passes asked for, side by side where there are two: inputs and where results go."""
    x, t, spec, c = run.active, run.tiles, run.spec, run.config("passes")
    h0 = run.problem.tensors.h0
    h0, dht = (None if s is None else s.contiguous() for s in (h0, dht))
    W_hat, U_hat, K_t = forward[0] if forward else Local(*(3 * [None]))
    U, S, ht = forward[1] if forward else (None, None, None)
    Y_hat, K_hat, Q_g, K_b, b_g = reverse[0] if reverse else Adjoint(*(5 * [None]))
    Y, dS, dh0 = reverse[1] if reverse else (None, None, None)
    passes = (forward is not None) + (reverse is not None)
    run.launch(
        _passes, passes * spec.N * spec.HV * (t.VP // c.BV), c,
        x.k, do, run.G, W_hat, U_hat, K_t, h0, S, U, ht, Y_hat, K_hat, Q_g, K_b, b_g, dht, dS, Y,
        dh0, t.starts, t.firsts, spec.T, t.NT,
        FORWARD=forward is not None, REVERSE=reverse is not None, HAS_STATE=int(h0 is not None),
        FINAL=int(ht is not None), HAS_DHT=int(dht is not None), DECAYED=K_t is not None,
        FACTOR=b_g is not None,
    )  # fmt: skip


def _output_stage(run: Run, P: Tensor, U: Tensor, S: Tensor) -> Tensor:
    """o by token, ``[B, T, HV, V]`` in v's type."""
    x, t, spec, c = run.active, run.tiles, run.spec, run.config("output")
    o = torch.empty_like(x.v)
    run.launch(
        _output, t.M * spec.HV * (t.VP // c.BV), c,
        x.q, run.G, P, S, U, o, t.table, spec.scale, spec.T, t.NT,
    )  # fmt: skip
    return o


def _gradient_stage(
    run: Run, do: Tensor, U: Tensor, S: Tensor, Y: Tensor, dS: Tensor, dh0: Tensor | None
) -> Tensors:
    """Correction, contraction and gate reduction; dh0 is passed on."""
    x, t, spec, HV = run.active, run.tiles, run.spec, run.spec.HV
    types = gradient_types(run.problem)
    dq, dk = run.by_token(types["q"], spec.K), run.by_token(types["k"], spec.K)
    dv = torch.empty_like(x.v)
    dg = run.by_token(types["g"], x.g.shape[-1]) if run.gate else None
    db = run.by_token(types["b"], x.b.shape[-1])
    dw = run.by_token(types["w"], spec.V) if run.w_channel else None
    found = Tensors(dq, dk, dv, dg, db, dw, dh0, None, None)
    if run.gate != CHANNEL:
        run.launch(
            _gradients, t.M * HV, run.config("gradients"),
            x.q, x.k, x.v, x.b, x.w, do, run.G, U, Y, S, dS, *found[:6], t.table, spec.scale,
            spec.T, t.NT,
        )  # fmt: skip
        return found

    _channel_stage(run, do, U, S, Y, dS, found)
    return found


def _channel_stage(
    run: Run, do: Tensor, U: Tensor, S: Tensor, Y: Tensor, dS: Tensor, d: Tensors
) -> None:
    """The same beside a channel gate, into ``d``: a kernel for the correction, one for most of the
    contraction and one for what is summed over a chunk.
    """
    x, t, spec, HV = run.active, run.tiles, run.spec, run.spec.HV
    dP, dL = run.by_chunk(t.C, t.C), run.by_chunk(t.C, t.C)
    on_diagonal = run.by_chunk(t.C, dtype=torch.float32)
    db_write = None if run.w_channel else run.by_chunk(t.C, dtype=torch.float32)
    run.launch(
        _correction, t.M * HV, run.config("correction"),
        x.v, x.b, x.w, do, U, Y, dP, dL, on_diagonal, d.v, d.w, db_write, t.table, spec.scale,
        spec.T, t.NT,
    )  # fmt: skip
    c, N = run.config("channel_gradients"), t.C // rows_a_program(t.C)
    parts, rows = t.KP // c.BK, t.M * HV * t.C
    dG, ends = (run.by_chunk(t.C, t.KP, dtype=torch.float32) for _ in range(2))
    through = run.by_chunk(t.KP, dtype=torch.float32)
    db_erase = None if run.b_channel else dG.new_empty(parts, rows)
    run.launch(
        _channel_gradients, t.M * HV * N * parts, c,
        x.q, x.k, x.b, do, run.G, U, Y, S, dS, dP, dL, on_diagonal, d.q, d.k, d.b, dG, ends,
        through, db_erase, t.table, spec.scale, spec.T, t.NT, rows,
    )  # fmt: skip
    c = run.config("channel_reduction")
    run.launch(
        _channel_reduction, t.M * HV * (t.KP // c.BK), c,
        run.G, dG, ends, through, db_erase, db_write, d.g, d.b, t.table, spec.T, t.NT, parts, rows,
    )  # fmt: skip


def decode(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """The recurrence token by token; results as :func:`forward`'s."""
    run = Run(problem, sums=False)
    run.known = ()  # one token or many: the same form
    spec, t, x = run.spec, run.tiles, run.active
    o = torch.empty_like(x.v)
    ht = run.state() if spec.output_final_state else None
    h0 = problem.tensors.h0
    c = Config(0, min(t.VP, max(16, 4096 // t.KP)), 4, 2)
    run.launch(
        _decode, spec.N * spec.HV * (t.VP // c.BV), c,
        x.q, x.k, x.v, x.g, x.b, x.w, None if h0 is None else h0.contiguous(), o, ht, t.starts,
        spec.scale, spec.T, HAS_STATE=int(h0 is not None), FINAL=int(ht is not None),
    )  # fmt: skip
    return o, ht
