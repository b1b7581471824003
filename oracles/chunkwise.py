"""The chunkwise form, and the naive way back through it with seven local products.

A chunk of C tokens is one triangular system (I + L) U = R; the state enters it and leaves it once.
The rows of docs/method.md are the lines below; what the naive and the ReWY way do alike is in
`stages`.
"""

from __future__ import annotations

from . import stages
from .arithmetic import Exact
from .numbers import lower, transpose
from .recurrence import Gradients


class SevenProducts:
    """The classical WY form, U = A (w * V) - W S0 with W = A K_b, factor by factor."""

    @staticmethod
    def residuals(A, wv, K_b, S0, arithmetic):
        """U [..., C, V] of the residual system, through W [..., C, K]."""
        W = arithmetic.store(arithmetic.product(A, K_b))
        written = arithmetic.store(arithmetic.product(A, wv))
        return arithmetic.store(written - arithmetic.product(W, S0))

    @staticmethod
    def correction(chunk, dU, arithmetic):
        """The adjoints Y of w * V, dL of L and dK_b of K_b, numbered as in docs/method.md."""
        product, store = arithmetic.product, arithmetic.store
        A_t = transpose(chunk.A)
        dW = store(-product(dU, transpose(chunk.S0)))  # 1
        dA = product(dU, transpose(chunk.wv))  # 2
        dA = store(dA + product(dW, transpose(chunk.K_b)))  # 3
        Y = store(product(A_t, dU))  # 4
        dK_b = store(product(A_t, dW))  # 5
        right = store(product(dA, A_t))  # 6
        dL = lower(store(-product(A_t, right)), -1)  # 7
        return Y, dL, dK_b


def forward(q, k, v, gamma, b, w, S0, scale, chunk_size, arithmetic=None):
    """Outputs and final state, chunk by chunk.

    q, k: [..., T, K]; v: [..., T, V]; S0: [..., K, V]; gamma, b: [..., T, K or 1];
    w: [..., T, V or 1]; scale: an element; the last chunk is shorter when chunk_size does not
    divide T. With Monte-Carlo arithmetic axis 0 is the samples'.
    Returns o [..., T, V] and S_T [..., K, V]. Source: docs/method.md, one chunk forward.
    """
    inputs = stages.Inputs(q, k, v, gamma, b, w, S0, scale)
    return stages.Scan(inputs, chunk_size, arithmetic or Exact(), SevenProducts).outputs()


def backward(q, k, v, gamma, b, w, S0, scale, chunk_size, do, dS, arithmetic=None) -> Gradients:
    """Adjoints given do [..., T, V] and dS [..., K, V]; other arguments as in `forward`."""
    inputs = stages.Inputs(q, k, v, gamma, b, w, S0, scale)
    return stages.Scan(inputs, chunk_size, arithmetic or Exact(), SevenProducts).gradients(do, dS)
