"""The decays of one chunk as products of gate factors: no division, so a factor may be 0.

From the chunk's start exp(G_i), to its end exp(G_C - G_i), and between the rows of a pair i >= j
E_ij = gamma_{j+1} ... gamma_i with E_ii = 1, per channel or one for all channels.
"""

from __future__ import annotations

import numpy as np

from .arithmetic import Exact
from .numbers import transpose, zero


def from_start(gamma, arithmetic=None):
    """exp(G_i), the factors up to and with row i; gamma and result [..., C, 1 or K]."""
    arithmetic = arithmetic or Exact()
    return arithmetic.decay(np.cumprod(gamma, axis=-2), arithmetic.span(gamma))


def to_end(gamma, arithmetic=None):
    """exp(G_C - G_i), the product of the factors after row i; gamma and result [..., C, 1 or K]."""
    arithmetic = arithmetic or Exact()
    one = np.full_like(gamma[..., :1, :], zero(gamma) + 1)
    products = np.cumprod(np.flip(gamma[..., 1:, :], axis=-2), axis=-2)
    span = arithmetic.span(gamma)
    products = np.concatenate([np.flip(products, axis=-2), one], axis=-2)
    return arithmetic.decay(products, span[..., -1:, :])


def between(gamma, arithmetic=None) -> HeadDecays | ChannelDecays:
    """The pairwise decays of a chunk with factors gamma [..., C, 1] or [..., C, K]."""
    arithmetic = arithmetic or Exact()
    span = arithmetic.span(gamma)
    rows = []
    one = np.full_like(gamma[..., :1, :], zero(gamma) + 1)
    row = one[..., :0, :]
    for i in range(gamma.shape[-2]):
        row = np.concatenate([row * gamma[..., i : i + 1, :], one], axis=-2)
        rows.append(row)
    if gamma.shape[-1] == 1:
        return HeadDecays(rows, span, arithmetic)
    return ChannelDecays(rows, span, arithmetic)


class HeadDecays:
    """One decay E_ij for all channels: contractions are matrix products times E."""

    def __init__(self, rows, span, arithmetic):
        C = len(rows)
        E = np.full((*rows[0].shape[:-2], C, C), np.asarray(zero(rows[0])), dtype=rows[0].dtype)
        for i, row in enumerate(rows):
            E[..., i, : i + 1] = row[..., 0]
        self._E = arithmetic.decay(E, span)  # row i has the span of G_i, the larger of the two
        self._arithmetic = arithmetic

    def scores(self, xs, z):
        """For each x of xs: sum_d x_id z_jd E_ij for i >= j, else 0; [..., C, K] -> [..., C, C]."""
        return [self._arithmetic.product(x, transpose(z)) * self._E for x in xs]

    def to_rows(self, ms, z):
        """For each m [..., C, C] of ms: sum_j m_ij z_j E_ij, the adjoint of x, [..., C, K]."""
        return [self._arithmetic.product(m * self._E, z) for m in ms]

    def to_columns(self, ms, xs):
        """sum_i m_ij x_i E_ij summed over the pairs (m, x), the adjoint of z: [..., C, K]."""
        terms = zip(ms, xs, strict=True)
        return sum(self._arithmetic.product(transpose(m * self._E), x) for m, x in terms)


class ChannelDecays:
    """A decay E_ij,d per channel: contractions row by row, [..., i, K] at a time.

    Same three operations as HeadDecays. E[i, j] is needed for j <= i only and is kept as rows.
    """

    def __init__(self, rows, span, arithmetic):
        self._rows = [arithmetic.decay(row, span[..., i : i + 1, :]) for i, row in enumerate(rows)]
        self._arithmetic = arithmetic

    def scores(self, xs, z):
        """For each x of xs: sum_d x_id z_jd E_ij,d for i >= j, else 0."""
        x, z = self._operands(xs), self._arithmetic.operand(z)
        C, n = x.shape[-3:-1]
        out = self._zeros((n, C, C), x, z)
        for i, E in enumerate(self._rows):
            decayed = z[..., : i + 1, :] * E
            rows = self._arithmetic.matmul(decayed, transpose(x[..., i, :, :]))  # [..., i + 1, n]
            out[..., :, i, : i + 1] = transpose(rows)
        return [out[..., m, :, :] for m in range(n)]

    def to_rows(self, ms, z):
        """For each m of ms: sum_j m_ij z_j E_ij,d."""
        m, z = self._operands(ms), self._arithmetic.operand(z)
        C, n = m.shape[-3:-1]
        out = self._zeros((n, C, z.shape[-1]), m, z)
        for i, E in enumerate(self._rows):
            decayed = z[..., : i + 1, :] * E
            out[..., :, i, :] = self._arithmetic.matmul(m[..., i, :, : i + 1], decayed)
        return [out[..., m, :, :] for m in range(n)]

    def to_columns(self, ms, xs):
        """sum_i m_ij x_i E_ij,d summed over the pairs (m, x)."""
        m, x = self._operands(ms), self._operands(xs)
        out = self._zeros((x.shape[-3], x.shape[-1]), m, x, lead=-3)
        for i, E in enumerate(self._rows):
            row = self._arithmetic.matmul(transpose(m[..., i, :, : i + 1]), x[..., i, :, :])
            out[..., : i + 1, :] += E * row
        return out

    def _operands(self, arrays):
        """n arrays [..., C, D] as one [..., C, n, D]: a row of all is one matrix."""
        return self._arithmetic.operand(np.stack(np.broadcast_arrays(*arrays), axis=-2))

    def _zeros(self, shape, stacked, other, lead=-2):
        leading = np.broadcast_shapes(
            stacked.shape[:-3], other.shape[:lead], self._rows[0].shape[:-2]
        )
        dtype = np.result_type(stacked, other)
        return np.full((*leading, *shape), np.asarray(zero(stacked, other)), dtype=dtype)
