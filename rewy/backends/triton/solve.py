"""Solve: A = (I + L)^-1 by forward substitution in blocks, one program a chunk and head."""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import tile


@triton.jit
def _join(A, L, i, j, s: tl.constexpr, PREC: tl.constexpr):
    """From inverses of the diagonal blocks of s rows to those of 2s rows: ``[[X, 0], [Z, Y]]^-1 =
    [[X^-1, 0], [-Y^-1 Z X^-1, Y^-1]]``.
    """
    below = tl.where((i // (2 * s) == j // (2 * s)) & (i // s > j // s), L, 0.0)
    return A - tl.dot(tl.dot(A, below, input_precision=PREC), A, input_precision=PREC)


@triton.jit
def _solve(L, A, C: tl.constexpr, SOLVE_PREC: tl.constexpr):
    """``A = (I + L)^-1`` of strictly lower ``L [M, HV, C, C]`` float32, C = 16, 32 or 64.

    Blocks of 4 rows by ``(I - L)(I + L^2)``, which is exact there and, with two factors, as stable
    as substitution; then neighbours are joined, from 4 rows to C. ``SOLVE_PREC`` must be as good as
    float32. The diagonal blocks of L are overwritten: they carry theirs of A to the last steps.
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
    A16 = _join(A16, D, i, j, 4, "ieee")
    A16 = _join(A16, D, i, j, 8, "ieee")
    tl.store(on_diagonal, A16)
    tl.debug_barrier()  # other threads read what these wrote

    r = tl.arange(0, C)
    i, j = r[:, None], r[None, :]
    both = tl.load(tile(L, chunk, C, C, r, r))
    joined = tl.where(i // 16 == j // 16, both, 0.0)
    if C >= 32:
        joined = _join(joined, both, i, j, 16, SOLVE_PREC)
    if C >= 64:
        joined = _join(joined, both, i, j, 32, SOLVE_PREC)
    tl.store(tile(A, chunk, C, C, r, r), joined.to(A.dtype.element_ty))
