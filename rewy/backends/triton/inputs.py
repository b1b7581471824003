"""A problem's tensors as the kernels take them, and their gradients back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rewy.backends.triton.activation import Gate, strengths, strengths_adjoint
from rewy.backends.triton.common import CHANNEL, HEAD, NONE
from rewy.backends.triton.norm import l2norm, rows_adjoint
from rewy.problem import Problem, Tensors


class Active(NamedTuple):
    """Contiguous, activated.

    q, k, v in the problem's type; g (log decay), b, w in any float type. ``q_rstd`` and ``k_rstd``
    are what q and k were multiplied by, None where nothing is normalised.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    b: Tensor
    w: Tensor | None
    q_rstd: Tensor | None
    k_rstd: Tensor | None


def gate_kind(problem: Problem) -> int:
    """NONE, HEAD or CHANNEL; a channel gate over one channel is a head's."""
    g = problem.tensors.g
    if g is None:
        return NONE
    return HEAD if g.shape[-1] == 1 else CHANNEL


def channel_erase(problem: Problem) -> bool:
    """Whether the erase gate has a number for each key channel."""
    return problem.tensors.b.shape[-1] > 1


def channel_write(problem: Problem) -> bool:
    """Whether there is a write gate of its own."""
    return problem.tensors.w is not None


def wide(problem: Problem) -> bool:
    """Whether products are float32, and gates evaluated in float64 for it."""
    return problem.tensors.q.dtype == torch.float32


def _gate(problem: Problem) -> Gate:
    x = problem.tensors
    bound = problem.spec.lower_bound
    return Gate(x.g.contiguous(), x.A_log, x.dt_bias, bound, wide(problem))


def activate(problem: Problem) -> Active:
    """Apply l2norm, the gate's activation and the sigmoids where the problem asks for them."""
    spec, x = problem
    q, k, g, b, w = x.q, x.k, x.g, x.b, x.w
    q_rstd = k_rstd = None
    if spec.l2norm:
        (q, q_rstd), (k, k_rstd) = (l2norm(y.contiguous()) for y in (q, k))
    if spec.gate_activation:
        g = _gate(problem).forward()
    if spec.beta_activation:
        b = strengths(b.contiguous(), spec.neg_eigval, wide(problem))
        w = None if w is None else strengths(w.contiguous(), False, wide(problem))
    if not channel_erase(problem):  # small, and one type compiles once
        b = b.float()
    q, k, v, g, b, w = (None if y is None else y.contiguous() for y in (q, k, x.v, g, b, w))
    return Active(q, k, v, g, b, w, q_rstd, k_rstd)


def gradient_types(problem: Problem) -> dict[str, torch.dtype]:
    """What the kernels write gradients in: the argument's type unless something follows, float32
    for gates always.
    """
    spec, x = problem
    follows = {
        "q": spec.l2norm or spec.HV > spec.H,
        "k": spec.l2norm or spec.HV > spec.H,
        "g": True,
        "b": spec.beta_activation or not channel_erase(problem),
        "w": spec.beta_activation,
    }
    return {
        name: torch.float32 if more else getattr(x, name).dtype
        for name, more in follows.items()
        if getattr(x, name) is not None
    }


def finish(problem: Problem, active: Active, d: Tensors) -> Tensors:
    """Sum over groups, undo the activations, restore the types."""
    spec, x = problem
    dq, dk, dg, db, dw = d.q, d.k, d.g, d.b, d.w
    if spec.l2norm or spec.HV > spec.H:
        dq = rows_adjoint(dq, x.q.contiguous(), active.q_rstd)
        dk = rows_adjoint(dk, x.k.contiguous(), active.k_rstd)
    if spec.beta_activation:
        db = strengths_adjoint(db, x.b.contiguous(), spec.neg_eigval, wide(problem))
        if dw is not None:
            dw = strengths_adjoint(dw, x.w.contiguous(), False, wide(problem))
    dA_log = ddt_bias = None
    if spec.gate_activation:
        dg, dA_log, ddt_bias = _gate(problem).adjoint(dg)
    return Tensors(
        q=dq,
        k=dk,
        v=d.v,
        g=None if dg is None else dg.to(x.g.dtype),
        b=db.to(x.b.dtype),
        w=None if dw is None else dw.to(x.w.dtype),
        h0=d.h0,
        A_log=dA_log,
        dt_bias=ddt_bias,
    )
