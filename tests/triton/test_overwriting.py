"""That overwriting what a product still reads is seen in what Triton compiles."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from properties.hazards import hazards


@triton.jit
def _gram(x, y, out, sums, T, AHEAD: tl.constexpr):
    """``X Y^T`` and ``Y X^T``, and of each row the sum of X Y."""
    r = tl.arange(0, 64)
    first = tl.zeros([64, 64], dtype=tl.float32)
    second = tl.zeros([64, 64], dtype=tl.float32)
    both = tl.zeros([64], dtype=tl.float32)
    for t in tl.range(0, T, 64, num_stages=AHEAD):
        at = r[:, None] * 4096 + t + r[None, :]
        X, Y = tl.load(x + at), tl.load(y + at)
        both += tl.sum(X.to(tl.float32) * Y.to(tl.float32), 1)
        first = tl.dot(X, tl.trans(Y), first)
        second = tl.dot(Y, tl.trans(X), second)
    at = r[:, None] * 64 + r[None, :]
    tl.store(out + at, first)
    tl.store(out + 4096 + at, second)
    tl.store(sums + r, both)


def _ttgir(kernel: triton.JITFunction, signature: dict, constants: dict) -> str:
    """As compiled for Hopper, four warps, with pointers to 16 bytes."""
    aligned = {(n,): [["tt.divisibility", 16]] for n, kind in enumerate(signature.values())
               if kind.startswith("*")}  # fmt: skip
    source = ASTSource(kernel, signature, constants, aligned)
    target = GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options={"num_warps": 4}).asm["ttgir"]


def _compiled(ahead: int) -> str:
    names = ("x", "y", "out", "sums", "T", "AHEAD")
    types = ("*bf16", "*bf16", "*fp32", "*fp32", "i32", "constexpr")
    return _ttgir(_gram, dict(zip(names, types, strict=True)), {"AHEAD": ahead})


@pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="other Tritons may be right")
def test_triton_has_a_place_too_few_for_tiles_that_registers_want_too():
    assert any("a copy to" in line for line in hazards(_compiled(3)))


def test_nothing_is_overwritten_where_nothing_is_asked_for_ahead():
    assert hazards(_compiled(1)) == []


@pytest.mark.parametrize("gated", [True, False])
def test_the_kernel_that_fla_refuses_on_hopper(gated):
    """fla-org/flash-linear-attention#640: its states are wanted by products and, with a gate, in
    registers.
    """
    kernel = pytest.importorskip("fla.ops.common.chunk_o").chunk_bwd_kernel_dqkwg
    if not triton.__version__.startswith("3.6."):
        pytest.skip("other Tritons may be right")
    while not isinstance(kernel, triton.JITFunction):
        kernel = kernel.fn
    constants = {
        "g_gamma": None, "cu_seqlens": None, "chunk_indices": None, "B": 1, "H": 16, "HV": 16,
        "K": 128, "V": 128, "BT": 64, "BK": 64, "BV": 64, "USE_G": gated, "USE_G_GAMMA": False,
        "USE_DW": True, "STATE_V_FIRST": False, "IS_VARLEN": False,
    } | ({} if gated else {"g": None, "dg": None})  # fmt: skip
    types = {"g": "*fp32", "dg": "*fp32", "scale": "fp32", "T": "i32"}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*bf16")
        for name in kernel.arg_names
    }
    found = hazards(_ttgir(kernel, signature, constants))
    assert bool(found) == gated, found
