"""Tile sizes, warps and pipeline stages of each kernel.

Tried on an H200 with Triton 3.6, each against float64 on the device, since Triton has compiled
wrong code for single configurations: tiles that are overwritten while a product reads them, which
properties/hazards.py sees in the code; and in an earlier form, for reasons not known, the state
passes with one stage on four warps, and with tiles of 64 in four stages. Four warps and 64 rows
make a warp group; chunks below 64, and TF32, therefore run on two warps, which use the older matrix
instruction.
"""

from __future__ import annotations

from typing import NamedTuple

from rewy.backends.triton.tiles import SMALLEST


class Config(NamedTuple):
    """One way to launch a kernel. BK, BV: channels a tile (0 where the kernel has none)."""

    BK: int
    BV: int
    warps: int
    stages: int


def config(
    kernel: str,
    C: int,
    KP: int,
    VP: int,
    operand: str,
    gate: int,
    known: bool = False,
    columns: int = 1,
) -> Config:
    """For a kernel at a chunk size, padded head sizes and kind of gate.

    ``operand`` is what products are made of: 'bf16', 'tf32' or 'ieee' (float32). ``known``: whether
    sizes are compiled in. ``columns``: how many sequences and heads the state passes have to share
    out.
    """
    narrow = operand == "bf16"
    table = _BFLOAT16 if narrow else _FLOAT32
    BK, BV, warps, stages = table.get((kernel, gate)) or table[kernel]
    if not known:
        BK, BV = min(BK, SMALLEST), min(BV, SMALLEST)
    found = Config(min(BK, KP), min(BV, VP), warps, stages)
    if kernel == "passes" and narrow:
        if KP == 256:  # three tiles of 32 KB a stage
            found = found._replace(BV=16, stages=2)
        elif fills_the_gpu(columns, VP):
            found = found._replace(BV=64)
    if operand == "tf32" or (C < 64 and narrow):
        found = found._replace(warps=min(warps, 2))
    return found


def fills_the_gpu(columns: int, VP: int) -> bool:
    """Whether state passes of that many sequences and heads, 64 value channels a program, leave no
    multiprocessor without work.
    """
    return columns * (VP // 64) >= MULTIPROCESSORS


MULTIPROCESSORS = 128  # about as many as the GPUs have that these were tried on

# By kernel, or by kernel and gate (0 none, 1 a head's, 2 a channel's).
_BFLOAT16 = {
    "channel_scores": (32, 0, 2, 3),
    "channel_gradients": (64, 128, 4, 2),
    "channel_reduction": (32, 0, 4, 2),
    "scores": (64, 0, 4, 3),
    "solve": (0, 0, 1, 2),
    "local": (64, 128, 4, 3),
    "local_both": (128, 128, 8, 2),
    ("local_both", 1): (128, 128, 4, 2),
    ("local_adjoint", 0): (128, 128, 4, 2),
    ("local_adjoint", 1): (128, 128, 4, 2),
    ("local_adjoint", 2): (128, 128, 8, 2),
    "passes": (0, 32, 4, 3),
    ("output", 0): (128, 128, 4, 3),
    ("output", 1): (128, 128, 4, 3),
    ("output", 2): (64, 128, 4, 2),
    "correction": (0, 128, 8, 3),
    ("gradients", 0): (32, 128, 4, 2),
    ("gradients", 1): (32, 128, 4, 3),
}
# Products in float32 are unrolled multiply-adds: more warps and small tiles, or compiling takes
# longer than running. TF32, beside float16, shares them and is not tuned.
_FLOAT32 = {
    "channel_scores": (16, 0, 4, 2),
    "channel_gradients": (16, 16, 4, 2),
    "channel_reduction": (32, 0, 4, 2),
    "scores": (16, 0, 8, 2),
    "solve": (0, 0, 4, 2),
    "local": (16, 16, 8, 2),
    "local_adjoint": (16, 16, 8, 2),
    "local_both": (16, 16, 8, 2),
    "passes": (0, 16, 8, 2),
    "output": (16, 16, 8, 2),
    "correction": (0, 16, 8, 2),
    "gradients": (16, 16, 8, 2),
}
