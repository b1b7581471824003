"""Correction: the adjoint of ``(I + L) U = R``, ``R = w * V - K_b S_0``.

The system is differentiated as a whole, so the adjoint of A never appears. Three local products a
chunk:

    1  Y    = A^T dU                 and the adjoint of w * V is Y itself
    2  dL   = -tril_-1(Y U^T)
    3  dK_b = -Y S_0^T
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from rewy.backends.eager.states import Decayed, System, advance, places


class Corrected(NamedTuple):
    """Adjoints of the residual system.

    Y: of w * V, ``[M, HV, C, V]``; dL: ``[M, HV, C, C]``; dK_b: ``[M, HV, C, K]``;
    dS: of the state AFTER each chunk, ``[M, HV, K, V]``.
    """

    Y: Tensor
    dL: Tensor
    dK_b: Tensor
    dS: Tensor


def reverse_states(
    dU: Tensor, dO: Tensor, A: Tensor, x: Decayed, dh: Tensor, steps: list[slice]
) -> tuple[Tensor, Tensor]:
    """Carry the states' adjoint back over some steps, correcting each chunk on the way.

    ``dU`` is the local part P^T dO; ``dh``, sorted, goes from the adjoint of the states after the
    last step to that of those before the first. For each chunk, last first: ``Y = A^T (dU + K_t
    dS_1)``, ``dS_0 = exp(G_C) dS_1 + (scale Q * exp G)^T dO - K_b^T Y``. Returns Y and dS_1 of
    every chunk.
    """
    Y = torch.empty_like(dU)
    dS = dh.new_empty(dU.shape[0], *dh.shape[1:])
    for step, after, before in places(dh, steps[::-1], dS):
        incoming = x.k_t.at(step).read(after).add_(dU[step])
        with record_function("rewy.correction"):
            torch.matmul(A[step].mT, incoming, out=Y[step])  # 1
        change = x.q.at(step).write(dO[step]).sub_(x.k_b.at(step).write(Y[step]))
        advance(after, x.total, step, change, before)
    return Y, dS


def correct(
    dU: Tensor, dO: Tensor, system: System, x: Decayed, dh: Tensor, steps: list[slice]
) -> Corrected:
    """The adjoint of the residual systems of some steps; arguments as in :func:`reverse_states`."""
    Y, dS = reverse_states(dU, dO, system.A, x, dh, steps)
    with record_function("rewy.correction"):
        dL = (Y @ system.U.mT).tril_(-1).neg_()  # 2
        dK_b = (Y @ system.S.mT).neg_()  # 3
    return Corrected(Y, dL, dK_b, dS)
