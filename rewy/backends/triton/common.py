"""What every kernel shares: addresses, decays, products.

``GATE`` is 0 (none), 1 (one a head) or 2 (one a channel). ``OP`` is the type that matrix units are
fed and intermediates are kept in, ``PREC`` the precision of a float32 product.
"""

from __future__ import annotations

import triton
import triton.language as tl

NONE, HEAD, CHANNEL = 0, 1, 2


@triton.jit
def place(pid, HV, table, T, NT, C: tl.constexpr, PACKED):
    """Of program ``pid`` of M times HV: its chunk and head as one int64 number, its head, and the
    chunk's first token (int64) and rows.
    """
    m, h = pid // HV, pid % HV
    first = (m % NT) * C
    start, rows = (m // NT).to(tl.int64) * T + first, tl.minimum(T - first, C)
    if PACKED:
        start, rows = tl.load(table + 2 * m), tl.load(table + 2 * m + 1).to(tl.int32)
    return pid.to(tl.int64), h, start, rows


@triton.jit
def tokens(x, start, h, heads, r, d, D):
    """Addresses ``[C, BD]`` in ``[B * T, heads, D]``: where the chunk lies in 64 bits, within it in
    32, which is what most of the arithmetic is.
    """
    return x + (start * heads + h) * D + (r[:, None] * (heads * D) + d[None, :])


@triton.jit
def load_tokens(x, start, rows, h, heads, r, d, D):
    """``[C, BD]`` of tokens ``[B * T, heads, D]``; 0 outside."""
    at = tokens(x, start, h, heads, r, d, D)
    return tl.load(at, mask=(r < rows)[:, None] & (d < D)[None, :], other=0)


@triton.jit
def load_tokens_t(x, start, rows, h, heads, r, d, D):
    """The transpose, ``[BD, C]``."""
    at = x + (start * heads + h) * D + (r[None, :] * (heads * D) + d[:, None])
    return tl.load(at, mask=(r < rows)[None, :] & (d < D)[:, None], other=0)


@triton.jit
def store_tokens(x, start, rows, h, heads, r, d, D, value):
    """Write ``[C, BD]`` to tokens ``[B * T, heads, D]``, in their type; nothing outside."""
    at = tokens(x, start, h, heads, r, d, D)
    tl.store(at, value.to(x.dtype.element_ty), mask=(r < rows)[:, None] & (d < D)[None, :])


@triton.jit
def load_rows(x, start, rows, h, heads, r):
    """``[C]`` float32 of ``[B * T, heads]``."""
    at = x + (start * heads + h) + r * heads
    return tl.load(at, mask=r < rows, other=0).to(tl.float32)


@triton.jit
def tile(x, chunk, R, D, r, d):
    """Addresses ``[r, d]`` in a chunk's own ``[R, D]`` matrix."""
    return x + chunk * (R * D) + (r[:, None] * D + d[None, :])


@triton.jit
def tile_t(x, chunk, R, D, r, d):
    """The same, transposed: ``[d, r]``."""
    return x + chunk * (R * D) + (r[None, :] * D + d[:, None])


@triton.jit
def forgets(own, before):
    """Whether a row's gate is a factor of 0, by its sum and that of the row before."""
    return own - before < -150.0  # 2**-149 is the smallest float32


@triton.jit
def decay(exponent):
    """``2**exponent`` of a sum of gates over a stretch: never above 1, whatever rounding says.

    Not by ``tl.minimum``, which answers 0 for NaN.
    """
    return tl.exp2(tl.where(exponent > 0, 0.0, exponent).to(tl.float32))


@triton.jit
def leading(x):
    """A float32 rounded to the bits that TF32 has, too: a matrix unit cuts the others off, and then
    what is lost has one sign. Not for a GPU's own NaN: 0x7FFFFFFF would overflow to -0.
    """
    return ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def operand(x, OP: tl.constexpr, PREC: tl.constexpr):
    """A tile as a matrix unit is to read it; values of 16-bit types fit in TF32 as they are."""
    narrow = x.dtype.primitive_bitwidth < 32
    x = x.to(OP)
    if OP == tl.float32 and PREC == "tf32" and not narrow:
        x = leading(tl.where(x == x, x, float("nan")))
    return x


@triton.jit
def keep(at, x, PREC: tl.constexpr):
    """Store what later products read, rounded as operands are."""
    tl.store(at, operand(x, at.dtype.element_ty, PREC))


@triton.jit
def dot(x, y, acc, OP: tl.constexpr, PREC: tl.constexpr):
    """``acc + x @ y``, accumulated in float32. x and y are inputs of 16-bit types, loaded as they
    were kept, or made operands: tests/triton/interpreter.py refuses what a matrix unit would cut
    off.
    """
    return tl.dot(x.to(OP), y.to(OP), acc, input_precision=PREC)


@triton.jit
def minus_dot(rest, x, y, OP: tl.constexpr, PREC: tl.constexpr):
    """``rest - x @ y``, the product summed by itself: the compiler makes of ``rest + dot(x, y, 0)``
    a product that starts from ``rest``, whose every term is rounded to the digits of ``rest``.
    """
    return rest - dot(x, y, tl.zeros_like(rest), OP, PREC)


@triton.jit
def add_dot(rest, x, y, OP: tl.constexpr, PREC: tl.constexpr):
    """``rest + x @ y`` for a rest that is another product. In float32 they are summed apart: many
    small terms of one size would all be rounded the same way beside a large rest. A matrix unit
    sums in rest, which 16-bit inputs leave no trace of.
    """
    if PREC == "ieee":
        found = minus_dot(rest, x, -y, OP, PREC)
    else:
        found = dot(x, y, rest, OP, PREC)
    return found
