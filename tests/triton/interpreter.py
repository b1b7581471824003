"""Triton's interpreter, mended: load as a pytest plugin (``-p tests.triton.interpreter``) or import
before anything imports Triton. What a GPU found is replayed without one by
``python -m tests.triton.interpreter replay FILE --implementation triton``.

As it comes (3.6) it computes bfloat16 on raw bit patterns, multiplies in float32 what a GPU would
in TF32, sums products in float32 before it adds them where a GPU adds them one by one, has
subnormal powers of 2 where a GPU has 0, and asks NumPy for an integer in a way that NumPy 2.4 no
longer answers. Mended it also refuses a TF32 product of what nobody rounded: see
rewy.backends.triton.common.dot.
"""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path

if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("tests.triton.interpreter must be imported before triton")
os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton.language as tl
from triton._C.libtriton.ir import INPUT_PRECISION
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

ARITHMETIC = {np.add, np.subtract, np.multiply, np.divide, np.fmod, np.minimum, np.maximum}
COMPARISON = {np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal}


def _is_bfloat16(x: TensorHandle) -> bool:
    return x.dtype.scalar == tl.bfloat16


def _widen(bits: np.ndarray) -> np.ndarray:
    """bfloat16, as uint16, to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _narrow(x: np.ndarray) -> np.ndarray:
    """float32 to bfloat16, as uint16, to nearest even; NaN stays NaN."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    bits = x.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


# The solve's product: of two operands it multiplies also what their rounding leaves, and does not
# want the last bits of that.
CUTS = "rewy/backends/triton/solve.py", "_times"


def _in(file: str, function: str) -> bool:
    """Whether it is called by a function of a file."""
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == function and Path(code.co_filename).as_posix().endswith(file):
            return True
        frame = frame.f_back
    return False


def _cut(x: TensorHandle) -> TensorHandle:
    """A float32 as a matrix unit reads it for TF32: without its last bits, not rounded.

    Raises:
        AssertionError: there are last bits, and this is not for ``CUTS``.
    """
    bits = np.ascontiguousarray(x.data, dtype=np.float32).view(np.int32)
    cut = (bits & -8192).view(np.float32)
    lost = (cut.view(np.int32) != bits) & ~np.isnan(cut)
    assert not lost.any() or _in(*CUTS), "a TF32 product of what nobody rounded"
    return TensorHandle(cut, x.dtype)


def _one_by_one(x: np.ndarray, y: np.ndarray, acc: np.ndarray) -> np.ndarray:
    """``acc + x @ y`` in float32 by fused multiplications and additions, as a GPU does without its
    matrix unit: each term is rounded to the digits of what it is added to.
    """
    columns = np.ascontiguousarray(x.T, np.float64)[:, :, None]
    with np.errstate(over="ignore", invalid="ignore"):
        for column, row in zip(columns, y.astype(np.float64), strict=True):
            acc = (column * row + acc).astype(np.float32)
    return acc


def _mend() -> None:
    dot, binary = InterpreterBuilder.create_dot, InterpreterBuilder.binary_op
    unary, cast = InterpreterBuilder.unary_op, InterpreterBuilder.cast_impl
    patch = interpreter._patch_lang_tensor

    def wide(x: TensorHandle) -> TensorHandle:
        if _is_bfloat16(x):
            return TensorHandle(_widen(x.data), tl.float32)
        if x.data.dtype == np.float16:
            return TensorHandle(x.data.astype(np.float32), tl.float32)
        return x

    def create_dot(self, a, b, d, input_precision, imprecise):
        single = a.data.dtype == b.data.dtype == d.data.dtype == np.float32
        a, b = wide(a), wide(b)
        if input_precision == INPUT_PRECISION.TF32:
            a, b = _cut(a), _cut(b)
        elif single:
            return TensorHandle(_one_by_one(a.data, b.data, d.data), d.dtype)
        return dot(self, a, b, d, input_precision, imprecise)

    def binary_op(self, left, right, op):
        if _is_bfloat16(left) and op in ARITHMETIC | COMPARISON:
            result = op(_widen(left.data), _widen(right.data))
            if op in COMPARISON:
                return TensorHandle(result, tl.int1)
            return TensorHandle(_narrow(result), tl.bfloat16)
        return binary(self, left, right, op)

    def unary_op(self, x, op):
        if _is_bfloat16(x):
            return TensorHandle(_narrow(op(_widen(x.data))), tl.bfloat16)
        found = unary(self, x, op)
        if op is np.exp2 and found.data.dtype == np.float32:  # ex2.approx.ftz.f32
            found.data[found.data < np.finfo(np.float32).tiny] = 0
        return found

    def cast_impl(self, x, to):
        source, target = x.dtype.scalar, to.scalar
        if target == tl.bfloat16 and source != tl.bfloat16:
            return TensorHandle(_narrow(x.data.astype(np.float32)), target)
        if source == tl.bfloat16 and target != tl.bfloat16:
            return TensorHandle(_widen(x.data).astype(interpreter._get_np_dtype(to)), target)
        return cast(self, x, to)

    def patch_lang_tensor(tensor, *scope):
        patch(tensor, *scope)

        def index(self):
            return int(self.handle.data.reshape(-1)[0])

        if scope:
            scope[0].set_attr(tensor, "__index__", index)
        else:
            tensor.__index__ = index

    # Some versions pass a scope that undoes the patch.
    assert len(inspect.signature(patch).parameters) in (1, 2)
    InterpreterBuilder.create_dot, InterpreterBuilder.binary_op = create_dot, binary_op
    InterpreterBuilder.unary_op, InterpreterBuilder.cast_impl = unary_op, cast_impl
    interpreter._patch_lang_tensor = patch_lang_tensor


_mend()

if __name__ == "__main__":
    from properties.__main__ import main

    sys.exit(main())
