"""A channel gate's contraction three ways: the definition, and two as matrix products.

    M_ij = sum_d x_id z_jd E_ij,d  for i >= j, else 0,     E_ij,d = gamma_{j+1,d} ... gamma_i,d

Pairs (i, j) whose decays pass through one row c factor: E_ij = down_i up_j with down_i = exp(G_i -
G_c) and up_j = exp(G_c - G_j). One centre for a whole block divides by gammas, and overflows in
floating point once gates are steep; halving takes c at the later half's first row, where both
factors are products of gammas, at every level.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from . import decays
from .numbers import lower, transpose, zero


class Block(NamedTuple):
    """Rows `later` against rows `earlier`, with E_ij = down_i up_j for every pair with i >= j."""

    later: slice
    earlier: slice
    down: np.ndarray
    up: np.ndarray


def pairwise(x, z, gamma):
    """M [..., C, C] of x, z, gamma [..., C, K] by pairwise decays."""
    return decays.between(gamma).scores([x], z)[0]


def pairwise_adjoint(x, z, gamma, dM):
    """(dx, dz) [..., C, K] for dM [..., C, C], by pairwise decays."""
    pairs, dM = decays.between(gamma), lower(dM)
    return pairs.to_rows([dM], z)[0], pairs.to_columns([dM], [x])


def centred(gamma, centre: int) -> Iterator[Block]:
    """The whole of gamma [..., C, K] as one block around a row; divides by every gamma.

    Raises ZeroDivisionError in an exact system when a gamma is 0. Rows before the centre have down
    > 1.
    """
    G = np.cumprod(gamma, axis=-2)
    c = G[..., centre : centre + 1, :]
    yield Block(slice(None), slice(None), G / c, c / G)


def halved(gamma) -> Iterator[Block]:
    """Blocks that cover each pair i >= j of gamma [..., C, K] once, for any C, without division.

    Every decay of a block lies in [0, 1] when the gammas do, 0 included.
    """
    C = gamma.shape[-2]
    one = np.full_like(gamma[..., :1, :], zero(gamma) + 1)

    def split(first, last):
        if last - first == 1:
            rows = slice(first, last)
            yield Block(rows, rows, one, one)
            return
        middle = (first + last) // 2
        after = np.cumprod(gamma[..., middle + 1 : last, :], axis=-2)
        until = np.flip(
            np.cumprod(np.flip(gamma[..., first + 1 : middle + 1, :], axis=-2), axis=-2), axis=-2
        )
        down = np.concatenate([one, after], axis=-2)  # the centre is row `middle` itself
        yield Block(slice(middle, last), slice(first, middle), down, until)
        yield from split(first, middle)
        yield from split(middle, last)

    return split(0, C) if C else iter(())


def contract(x, z, blocks):
    """M [..., C, C] of x, z [..., C, K], a matrix product a block."""
    C = x.shape[-2]
    M = np.full((*x.shape[:-1], C), np.asarray(zero(x, z)), dtype=x.dtype)
    for later, earlier, down, up in blocks:
        scores = (x[..., later, :] * down) @ transpose(z[..., earlier, :] * up)
        M[..., later, earlier] = scores
    return lower(M)


def contract_adjoint(x, z, dM, blocks):
    """(dx, dz) [..., C, K] for dM [..., C, C], two matrix products a block."""
    dM = lower(dM)
    dx, dz = (np.full(array.shape, np.asarray(zero(array)), dtype=array.dtype) for array in (x, z))
    for later, earlier, down, up in blocks:
        local = dM[..., later, earlier]
        dx[..., later, :] += down * (local @ (z[..., earlier, :] * up))
        dz[..., earlier, :] += up * (transpose(local) @ (x[..., later, :] * down))
    return dx, dz
