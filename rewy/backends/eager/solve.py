"""Solve: A = (I + L)^-1 by forward substitution, of blocks twice the size at each level."""

from __future__ import annotations

import torch
from torch import Tensor

from rewy.backends.eager.gates import pairs


def solve(L: Tensor) -> Tensor:
    """``A = (I + L)^-1`` of strictly lower ``L``, ``[..., C, C]``; unit lower triangular.

    Of two neighbouring blocks of the diagonal, solved, the later one takes in the earlier: below
    them A is ``-A_later L_pair A_earlier``. Only entries of A and L meet. Doubling (products of I -
    L, I + L^2, ...) has as few steps and fails: for nearly equal unit keys |A| <= 1 while its
    factors grow past 1e9.
    """
    A = L.new_ones(*L.shape[:-1], 1, 1)  # blocks of s rows, [..., C / s, s, s]
    while (s := A.shape[-1]) < L.shape[-1]:
        pair = pairs(L, s)
        earlier, later = A[..., ::2, :, :], A[..., 1::2, :, :]
        A = L.new_zeros(*pair.shape[:-2], 2 * s, 2 * s)
        A[..., :s, :s] = earlier
        A[..., s:, s:] = later
        torch.neg(later @ (pair @ earlier) if s > 1 else pair, out=A[..., s:, :s])
    return A.squeeze(-3)


def pack(A: Tensor, L: Tensor) -> Tensor:
    """Both in one ``[..., C, C]``: A, whose upper triangle is 0, and above it ``L^T``."""
    return A + L.mT


def unpack(packed: Tensor) -> tuple[Tensor, Tensor]:
    """A, and what is L strictly below its diagonal."""
    return packed.tril(), packed.mT
