"""The naive correction: seven local products through the adjoint of the inverse.

It stands beside :mod:`rewy.backends.eager.correction` to be measured and tested against it, with
all else equal. The classical WY form keeps U = A (w * V) - W S_0 with W = A K_b, passes dW and dA,
and differentiates A = (I + L)^-1 on its own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from rewy.backends.eager.correction import Corrected
from rewy.backends.eager.states import Decayed, System, advance, places


def correct_naively(
    dU: Tensor, dO: Tensor, system: System, x: Decayed, dh: Tensor, steps: list[slice]
) -> Corrected:
    """As :func:`rewy.backends.eager.correction.correct`, by seven products.

    The reverse pass carries dU, ``dS_0 = exp(G_C) dS_1 + (scale Q * exp G)^T dO - W^T dU``.
    """
    A, w, v, _, S = system
    K_b, R = x.k_b.formed(), w * v
    W = A @ K_b
    dU, dS = dU.clone(), dh.new_empty(dU.shape[0], *dh.shape[1:])
    for step, after, before in places(dh, steps[::-1], dS):
        dU[step] += x.k_t.at(step).read(after)
        change = x.q.at(step).write(dO[step]) - W[step].mT @ dU[step]
        advance(after, x.total, step, change, before)
    with record_function("rewy.correction"):
        dW = -(dU @ S.mT)  # 1
        dA = dU @ R.mT  # 2
        dA += dW @ K_b.mT  # 3
        dR = A.mT @ dU  # 4
        dK_b = A.mT @ dW  # 5
        right = dA @ A.mT  # 6
        dL = -torch.tril(A.mT @ right, -1)  # 7
    return Corrected(dR, dL, dK_b, dS)
