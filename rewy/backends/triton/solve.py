"""Solve: A = (I + L)^-1 by forward substitution in blocks, one program a chunk and head."""

from __future__ import annotations

import triton
import triton.language as tl

from rewy.backends.triton.common import keep, leading, tile


@triton.jit
def _block(x, chunk, n, m, C: tl.constexpr):
    """Addresses of the ``[16, 16]`` block in block row n and block column m."""
    i = tl.arange(0, 16)
    return tile(x, chunk, C, C, n * 16 + i, m * 16 + i)


@triton.jit
def _times(x, y, acc, PREC: tl.constexpr):
    """``acc + x @ y`` nearly as good as float32: where ``PREC`` is not IEEE, by TF32's 11 leading
    bits of each factor and the 11 that follow, small products first and acc last, since a matrix
    unit cuts off what is small beside the largest summand. (Triton's own three products also look
    for NaN in them, a third of all instructions here.)
    """
    if PREC == "ieee":
        acc = tl.dot(x, y, acc, input_precision="ieee")
    else:
        x_high, y_high = leading(x), leading(y)
        found = tl.dot(x - x_high, y_high, input_precision="tf32")
        found = tl.dot(x_high, y - y_high, found, input_precision="tf32")
        acc += tl.dot(x_high, y_high, found, input_precision="tf32")
    return acc


@triton.jit
def _join(A, L, i, j, s: tl.constexpr, PREC: tl.constexpr):
    """From inverses of the diagonal blocks of s rows to those of 2s rows: ``[[X, 0], [Z, Y]]^-1 =
    [[X^-1, 0], [-Y^-1 Z X^-1, Y^-1]]``.
    """
    below = tl.where((i // (2 * s) == j // (2 * s)) & (i // s > j // s), L, 0.0)
    zero = tl.zeros_like(A)
    return _times(A, -_times(below, A, zero, PREC), A, PREC)


@triton.jit
def _inverse(L, chunk, n, C: tl.constexpr, PREC: tl.constexpr):
    """``(I + L_nn)^-1``: blocks of 4 rows by ``(I - L)(I + L^2)``, which is exact there and, with
    two factors, as stable as substitution; neighbours are joined.
    """
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    D = tl.load(_block(L, chunk, n, n, C))
    L4 = tl.where(i // 4 == j // 4, D, 0.0)
    unit, zero = tl.where(i == j, 1.0, 0.0), tl.zeros([16, 16], dtype=tl.float32)
    found = _times(unit - L4, _times(L4, L4, unit, PREC), zero, PREC)
    return _join(_join(found, D, i, j, 4, PREC), D, i, j, 8, PREC)


@triton.jit
def _put(A, chunk, n, m, C: tl.constexpr, value, PREC: tl.constexpr):
    keep(_block(A, chunk, n, m, C), value, PREC)


@triton.jit
def _plus(L, chunk, n, m, C: tl.constexpr, x, acc, PREC: tl.constexpr):
    """``acc + L_nm @ x``."""
    return _times(tl.load(_block(L, chunk, n, m, C)), x, acc, PREC)


@triton.jit
def _solve(L, A, C: tl.constexpr, PREC: tl.constexpr):
    """``A = (I + L)^-1`` of strictly lower ``L [M, HV, C, C]`` float32, C = 16, 32 or 64.

    Diagonal blocks of 16 rows by :func:`_inverse`, which take their places in L; then one block
    column after the other, from the diagonal down, ``A_nm = -A_nn sum_l L_nl A_lm`` over the blocks
    m <= l < n.
    """
    tl.static_assert(C == 16 or C == 32 or C == 64)
    chunk = tl.program_id(0).to(tl.int64)
    N: tl.constexpr = C // 16
    zero = tl.zeros([16, 16], dtype=tl.float32)
    for n in tl.range(N, num_stages=1):  # unrolled, compiling takes four times as long
        found = _inverse(L, chunk, n, C, PREC)
        tl.debug_barrier()  # all have read
        tl.store(_block(L, chunk, n, n, C), found)
        for m in tl.static_range(1, N):
            if m > n:
                _put(A, chunk, n, m, C, zero, PREC)
    tl.debug_barrier()
    A0 = tl.load(_block(L, chunk, 0, 0, C))
    _put(A, chunk, 0, 0, C, A0, PREC)
    if N > 1:
        x = _plus(L, chunk, 1, 0, C, A0, zero, PREC)
        A1 = -_plus(L, chunk, 1, 1, C, x, zero, PREC)
        _put(A, chunk, 1, 0, C, A1, PREC)
        if N == 4:
            x = _plus(L, chunk, 2, 1, C, A1, _plus(L, chunk, 2, 0, C, A0, zero, PREC), PREC)
            A2 = -_plus(L, chunk, 2, 2, C, x, zero, PREC)
            _put(A, chunk, 2, 0, C, A2, PREC)
            x = _plus(L, chunk, 3, 1, C, A1, _plus(L, chunk, 3, 0, C, A0, zero, PREC), PREC)
            x = _plus(L, chunk, 3, 2, C, A2, x, PREC)
            _put(A, chunk, 3, 0, C, -_plus(L, chunk, 3, 3, C, x, zero, PREC), PREC)
        A1 = tl.load(_block(L, chunk, 1, 1, C))
        _put(A, chunk, 1, 1, C, A1, PREC)
    if N == 4:
        x = _plus(L, chunk, 2, 1, C, A1, zero, PREC)
        A2 = -_plus(L, chunk, 2, 2, C, x, zero, PREC)
        _put(A, chunk, 2, 1, C, A2, PREC)
        x = _plus(L, chunk, 3, 2, C, A2, _plus(L, chunk, 3, 1, C, A1, zero, PREC), PREC)
        _put(A, chunk, 3, 1, C, -_plus(L, chunk, 3, 3, C, x, zero, PREC), PREC)
        A2 = tl.load(_block(L, chunk, 2, 2, C))
        _put(A, chunk, 2, 2, C, A2, PREC)
        x = _plus(L, chunk, 3, 2, C, A2, zero, PREC)
        A3 = tl.load(_block(L, chunk, 3, 3, C))
        _put(A, chunk, 3, 2, C, -_times(A3, x, zero, PREC), PREC)
        _put(A, chunk, 3, 3, C, A3, PREC)
