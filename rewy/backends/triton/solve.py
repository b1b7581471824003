"""Solve: A = (I + L)^-1 by forward substitution in blocks, one program a chunk and head."""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import tile


@triton.jit
def _join(A, L, i, j, s: tl.constexpr):
    """From inverses of the diagonal blocks of s rows to those of 2s rows: ``[[X, 0], [Z, Y]]^-1 =
    [[X^-1, 0], [-Y^-1 Z X^-1, Y^-1]]``.
    """
    below = tl.where((i // (2 * s) == j // (2 * s)) & (i // s > j // s), L, 0.0)
    return A - tl.dot(tl.dot(A, below, input_precision="ieee"), A, input_precision="ieee")


@triton.jit
def _solve(L, A, C: tl.constexpr, SOLVE_PREC: tl.constexpr):
    """``A = (I + L)^-1`` of strictly lower ``L [M, HV, C, C]`` float32, C = 16, 32 or 64.

    Blocks of 4 rows by ``(I - L)(I + L^2)``, which is exact there and, with two factors, as stable
    as substitution; neighbours are joined to blocks of 16; then 16 rows after the other, ``A_i = -
    A_ii sum_m L_im A_m``. ``SOLVE_PREC`` must be as good as float32. L is overwritten by A.
    """
    chunk = tl.program_id(0).to(tl.int64)
    N: tl.constexpr = C // 16
    block = tl.arange(0, N)[:, None, None] * 16
    i, j = tl.arange(0, 16)[None, :, None], tl.arange(0, 16)[None, None, :]
    on_diagonal = L + chunk * (C * C) + (block + i) * C + block + j  # [N, 16, 16]
    D = tl.load(on_diagonal)
    L4 = tl.where(i // 4 == j // 4, D, 0.0)
    unit = tl.where(i == j, 1.0, 0.0) + tl.zeros_like(D)
    square = tl.dot(L4, L4, input_precision="ieee")
    A16 = tl.dot(unit - L4, unit + square, input_precision="ieee")
    A16 = _join(A16, D, i, j, 4)
    A16 = _join(A16, D, i, j, 8)
    tl.debug_barrier()  # all have read what is overwritten
    tl.store(on_diagonal, A16)

    r, x = tl.arange(0, C), tl.arange(0, 16)
    for n in range(1, N):
        tl.debug_barrier()  # other threads read what these wrote
        own = n * 16 + x
        Ln = tl.load(tile(L, chunk, C, C, own, r), mask=(r < n * 16)[None, :], other=0)
        before = tl.load(tile(L, chunk, C, C, r, r), mask=(r < n * 16)[:, None], other=0)
        An = tl.load(tile(L, chunk, C, C, own, own))
        new = tl.dot(An, tl.dot(Ln, before, input_precision=SOLVE_PREC), input_precision=SOLVE_PREC)
        tl.debug_barrier()  # all have read what is overwritten
        tl.store(tile(L, chunk, C, C, own, r), -new, mask=(r < n * 16)[None, :])
    tl.debug_barrier()
    found = tl.load(tile(L, chunk, C, C, r, r))
    tl.store(tile(A, chunk, C, C, r, r), found.to(A.dtype.element_ty))
