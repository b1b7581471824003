"""A problem's tensors as the recurrence takes them, and their gradients back."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from torch import Tensor

from rewy.backends.eager import activations
from rewy.backends.eager.states import Chunks
from rewy.problem import Problem, Spec, Tensors


class Active(NamedTuple):
    """The recurrence's inputs, activated, contiguous and, but for v, in the compute type; and what
    their adjoints need.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    b: Tensor
    w: Tensor
    q_rstd: Tensor | None
    k_rstd: Tensor | None


def activate(problem: Problem) -> Active:
    """Apply l2norm, the gate's activation and the sigmoids where the problem asks for them."""
    spec, x = problem
    wide = partial(_wide, spec)
    q, k, q_rstd, k_rstd = wide(x.q), wide(x.k), None, None
    if spec.l2norm:
        (q, q_rstd), (k, k_rstd) = activations.l2norm(q), activations.l2norm(k)
    g = None if x.g is None else wide(x.g)
    if spec.gate_activation:
        g = activations.gate(g, *_gate_parameters(problem), spec.lower_bound)
    b = wide(x.b)
    w = b if x.w is None else wide(x.w)
    if spec.beta_activation:
        shared = w is b
        b = activations.beta_sigmoid(b, spec.neg_eigval)
        w = b if shared else activations.beta_sigmoid(w, False)
    return Active(q, k, x.v.contiguous(), g, b, w, q_rstd, k_rstd)


def _wide(spec: Spec, x: Tensor) -> Tensor:
    """In the compute type, contiguous: strided loops round transcendental functions differently."""
    return x.to(spec.compute_dtype).contiguous()


def _gate_parameters(problem: Problem) -> tuple[Tensor | None, Tensor | None]:
    """A_log as ``[HV, 1]`` and dt_bias as ``[HV, 1 or K]``, in the compute type."""
    spec, x = problem
    A_log = None if x.A_log is None else x.A_log.to(spec.compute_dtype).view(-1, 1)
    dt_bias = None if x.dt_bias is None else x.dt_bias.to(spec.compute_dtype).reshape(spec.HV, -1)
    return A_log, dt_bias


def to_arguments(problem: Problem, active: Active, d: Chunks, dh0: Tensor | None) -> Tensors:
    """Sum over what shares an argument, undo the activations, restore the types.

    ``d`` holds adjoints of the recurrence's inputs, ``[B, T, HV, D]`` each; dh0 is passed on.
    """
    spec, x = problem

    def ungroup(d: Tensor) -> Tensor:
        if spec.HV == spec.H:
            return d
        return d.unflatten(2, (spec.H, -1)).sum(3)

    dq, dk = ungroup(d.q), ungroup(d.k)
    if spec.l2norm:
        dq = activations.l2norm_adjoint(dq, active.q, active.q_rstd)
        dk = activations.l2norm_adjoint(dk, active.k, active.k_rstd)

    db, dw = d.b, d.w
    if x.w is None:
        db, dw = db + dw, None
    if spec.beta_activation:
        b = _wide(spec, x.b)
        db = activations.beta_sigmoid_adjoint(db, b, spec.neg_eigval)
        if dw is not None:
            dw = activations.beta_sigmoid_adjoint(dw, _wide(spec, x.w), False)

    dA_log = ddt_bias = None
    dg = d.g
    if spec.gate_activation:
        g, parameters = _wide(spec, x.g), _gate_parameters(problem)
        dg, dA = activations.gate_adjoint(dg, g, *parameters, spec.lower_bound)
        if x.A_log is not None:
            dA_log = dA.sum((0, 1, 3)).to(x.A_log.dtype)
        if x.dt_bias is not None:
            ddt_bias = dg.sum((0, 1)).reshape(x.dt_bias.shape).to(x.dt_bias.dtype)

    return Tensors(
        q=dq.to(x.q.dtype),
        k=dk.to(x.k.dtype),
        v=d.v.to(x.v.dtype),
        g=None if dg is None else dg.to(x.g.dtype),
        b=db.to(x.b.dtype),
        w=None if dw is None else dw.to(x.w.dtype),
        h0=dh0,
        A_log=dA_log,
        dt_bias=ddt_bias,
    )
