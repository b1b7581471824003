"""Faults for compute-sanitizer to find."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _write(x):
    """Write 32 words to the end of 128 and as many behind it."""
    tl.store(x + 96 + tl.arange(0, 64), 1)


@triton.jit
def _race(x):
    """All threads write one word of shared memory and read what has become of it."""
    i = tl.arange(0, 128)
    seen = tl.inline_asm_elementwise(
        "{ .shared .b32 x; st.volatile.shared.b32 [x], $1; ld.volatile.shared.b32 $0, [x]; }",
        "=r,r", [i], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    tl.store(x + i, seen)
