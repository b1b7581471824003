"""Solve: A = (I + L)^-1 of one chunk, in registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def solve(L, C: tl.constexpr, PREC: tl.constexpr):
    """``(I + L)^-1`` of strictly lower ``L [C, C]`` float32, C = 16, 32 or 64.

    Blocks of 4 rows by ``(I - L)(I + L^2)``, which is exact there and, with two factors, as stable
    as substitution; then neighbours are joined, from 4 rows to C: ``[[X, 0], [Z, Y]]^-1 = [[X^-1,
    0], [-Y^-1 Z X^-1, Y^-1]]``, forward substitution by blocks. ``PREC`` must be as good as
    float32.
    """
    N: tl.constexpr = C // 16
    block = tl.arange(0, N)
    own = block[:, None, None, None] == block[None, None, :, None]
    i, j = tl.arange(0, 16)[None, :, None], tl.arange(0, 16)[None, None, :]
    D = tl.sum(tl.where(own, tl.reshape(L, (N, 16, N, 16)), 0.0), axis=2)  # diagonal, [N, 16, 16]
    L4 = tl.where(i // 4 == j // 4, D, 0.0)
    unit = tl.where(i == j, 1.0, 0.0) + tl.zeros_like(D)
    square = tl.dot(L4, L4, input_precision="ieee")
    A16 = tl.dot(unit - L4, unit + square, input_precision="ieee")
    A16 = _join(A16, D, i, j, 4, "ieee")
    A16 = _join(A16, D, i, j, 8, "ieee")
    A = tl.reshape(tl.where(own, A16[:, :, None, :], 0.0), (C, C))
    r = tl.arange(0, C)
    if C >= 32:
        A = _join(A, L, r[:, None], r[None, :], 16, PREC)
    if C >= 64:
        A = _join(A, L, r[:, None], r[None, :], 32, PREC)
    return A


@triton.jit
def _join(A, L, i, j, s: tl.constexpr, PREC: tl.constexpr):
    """From inverses of the diagonal blocks of s rows to those of 2s rows."""
    below = tl.where((i // (2 * s) == j // (2 * s)) & (i // s > j // s), L, 0.0)
    return A - tl.dot(tl.dot(A, below, input_precision=PREC), A, input_precision=PREC)
