"""ReWY: the residual system differentiated as a whole, three local products instead of seven.

(I + L) U = R gives (I + L) dU = dR - dL U for differentials, hence for adjoints Y = A^T dU, dL =
-tril_{-1}(Y U^T) and dK_b = -Y S0^T: no adjoint of the inverse, no W, and Y is the adjoint of w * V
itself.
"""

from __future__ import annotations

from . import stages
from .arithmetic import Exact
from .numbers import lower, transpose
from .recurrence import Gradients


class ThreeProducts:
    """The residual system, solved and differentiated without W."""

    @staticmethod
    def residuals(A, wv, K_b, S0, arithmetic):
        """U [..., C, V] from R = w * V - K_b S0."""
        R = arithmetic.store(wv - arithmetic.product(K_b, S0))
        return arithmetic.store(arithmetic.product(A, R))

    @staticmethod
    def correction(chunk, dU, arithmetic):
        """The adjoints Y of w * V, dL of L and dK_b of K_b, numbered as in docs/method.md."""
        product, store = arithmetic.product, arithmetic.store
        Y = store(product(transpose(chunk.A), dU))  # 1
        dL = lower(store(-product(Y, transpose(chunk.U))), -1)  # 2
        dK_b = store(-product(Y, transpose(chunk.S0)))  # 3
        return Y, dL, dK_b


def forward(q, k, v, gamma, b, w, S0, scale, chunk_size, arithmetic=None):
    """Outputs o [..., T, V] and final state [..., K, V]; arguments as in `chunkwise.forward`."""
    inputs = stages.Inputs(q, k, v, gamma, b, w, S0, scale)
    return stages.Scan(inputs, chunk_size, arithmetic or Exact(), ThreeProducts).outputs()


def backward(q, k, v, gamma, b, w, S0, scale, chunk_size, do, dS, arithmetic=None) -> Gradients:
    """Adjoints given do [..., T, V] and dS [..., K, V]; arguments as in `chunkwise.backward`."""
    inputs = stages.Inputs(q, k, v, gamma, b, w, S0, scale)
    return stages.Scan(inputs, chunk_size, arithmetic or Exact(), ThreeProducts).gradients(do, dS)
