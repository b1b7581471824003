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

from rewy.backends.eager.states import Decayed, System
from rewy.backends.eager.tiling import Tiling


class Corrected(NamedTuple):
    """Adjoints of the residual system.

    Y: of w * V, ``[M, HV, C, V]``; dL: ``[M, HV, C, C]``; dK_b: ``[M, HV, C, K]``;
    dS: of the state AFTER each chunk, ``[M, HV, K, V]``; dh0: of the initial states (sorted).
    """

    Y: Tensor
    dL: Tensor
    dK_b: Tensor
    dS: Tensor
    dh0: Tensor


def reverse_states(
    dU: Tensor, dO: Tensor, A: Tensor, x: Decayed, dht: Tensor, tiling: Tiling
) -> tuple[Tensor, Tensor, Tensor]:
    """Carry the state's adjoint back, correcting each chunk on the way.

    ``dU`` is the local part P^T dO; ``dht`` (sorted, overwritten) the adjoint of the final states.
    For each chunk, last first: ``Y = A^T (dU + K_t dS_1)``, ``dS_0 = exp(G_C) dS_1 + (scale Q * exp
    G)^T dO - K_b^T Y``. Returns Y, dS_1 for every chunk, and dS_0 of the first.
    """
    Y = torch.empty_like(dU)
    dS = dht.new_empty(dU.shape[0], *dht.shape[1:])
    for step in reversed(tiling.steps):
        dh = dht[: step.stop - step.start]
        dS[step] = dh
        incoming = dU[step] + x.k_t[step] @ dh
        with record_function("rewy.correction"):
            torch.matmul(A[step].mT, incoming, out=Y[step])  # 1
        if x.total is not None:
            dh *= x.total[step]
        dh += x.q[step].mT @ dO[step] - x.k_b[step].mT @ Y[step]
    return Y, dS, dht


def correct(
    dU: Tensor, dO: Tensor, system: System, x: Decayed, dht: Tensor, tiling: Tiling
) -> Corrected:
    """The adjoint of every chunk's residual system; arguments as in :func:`reverse_states`."""
    Y, dS, dh0 = reverse_states(dU, dO, system.A, x, dht, tiling)
    with record_function("rewy.correction"):
        dL = (Y @ system.U.mT).tril_(-1).neg_()  # 2
        dK_b = (Y @ system.S.mT).neg_()  # 3
    return Corrected(Y, dL, dK_b, dS, dh0)
