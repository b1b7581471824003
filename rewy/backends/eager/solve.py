"""Solve: A = (I + L)^-1 by forward substitution."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 16  # rows substituted one by one; between blocks the substitution is two matrix products


def solve(L: Tensor) -> Tensor:
    """``A = (I + L)^-1`` of strictly lower ``L``, ``[..., C, C]``; unit lower triangular.

    Row i is ``A_i = e_i - sum_{j < i} L_ij A_j``. Doubling (products of I - L, I + L^2, ...) has
    fewer steps and fails: for nearly equal unit keys |A| <= 1 while its factors grow past 1e9.
    """
    C = L.shape[-1]
    A = torch.zeros_like(L)
    A.diagonal(dim1=-2, dim2=-1).fill_(1)
    size = min(BLOCK, C)
    blocks = L.unflatten(-2, (-1, size)).unflatten(-1, (-1, size)).diagonal(dim1=-4, dim2=-2)
    blocks = blocks.movedim(-1, -3).contiguous()  # [..., C / 16, 16, 16] on the diagonal
    inverse = torch.zeros_like(blocks)
    inverse.diagonal(dim1=-2, dim2=-1).fill_(1)
    for i in range(1, size):
        inverse[..., i, :i] = -(blocks[..., i : i + 1, :i] @ inverse[..., :i, :i])[..., 0, :]
    for n, start in enumerate(range(0, C, size)):
        rows = slice(start, start + size)
        A[..., rows, rows] = inverse[..., n, :, :]
        if start:
            above = L[..., rows, :start] @ A[..., :start, :start]
            A[..., rows, :start] = -(inverse[..., n, :, :] @ above)
    return A
