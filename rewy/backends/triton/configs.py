"""Tile sizes, warps and pipeline stages of each kernel.

Tried on an H200 with Triton 3.6, each against float64 on the device, since Triton has compiled
wrong code for single configurations: tiles that are overwritten while a product reads them, which
properties/hazards.py sees in the code; and for reasons not known, in an earlier form, the state
passes with one stage on four warps and with tiles of 64 in four stages, and TF32 on eight warps,
which read and wrote elsewhere. (TF32's passes with one stage on four warps, below, were right in
all that was tried.) Four warps and 64 rows make a warp group; chunks below 64 therefore run on two
warps, which use the older matrix instruction.
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
    table = {"bf16": _BFLOAT16, "tf32": _TF32, "ieee": _FLOAT32}[operand]
    BK, BV, warps, stages = table.get((kernel, gate)) or table[kernel]
    if not known:
        BK, BV = min(BK, SMALLEST), min(BV, SMALLEST)
    found = Config(min(BK, KP), min(BV, VP), warps, stages)
    if kernel == "passes" and narrow:
        if KP == 256:  # three tiles of 32 KB a stage
            found = found._replace(BV=16, stages=2)
        elif fills_the_gpu(columns, VP):
            found = found._replace(BV=64)
    if kernel == "passes" and operand == "tf32" and KP == 256:
        # Two warps have too few registers for 64 rows a step: a forward of GDN took 27 ms,
        # and 3.4 on four (H200, T 8192, K = V = 256).
        found = found._replace(warps=4, stages=1)
    if C < 64 and operand != "ieee":
        found = found._replace(warps=min(found.warps, 2))
    return found


def fills_the_gpu(columns: int, VP: int) -> bool:
    """Whether state passes of that many sequences and heads, 64 value channels a program, leave no
    multiprocessor without work.
    """
    return columns * (VP // 64) >= MULTIPROCESSORS


def go_apart(operand: str, columns: int, KP: int, VP: int) -> bool:
    """Whether two state passes go one after the other: where either fills the GPU (0.27 ms, side by
    side 0.32; H200, GDN, B8 T2048), and where one kernel for both has too few registers (6.4 and
    8.4; T 8192, float16, K = V = 256).
    """
    return fills_the_gpu(columns, VP) or (operand == "tf32" and KP == 256)


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
# Beside float16. Operands that are not there as float32 go through registers: two warps hold few.
_TF32 = {
    "channel_scores": (16, 0, 2, 2),
    "channel_gradients": (16, 16, 2, 2),
    "channel_reduction": (32, 0, 2, 2),
    "scores": (16, 0, 2, 2),
    "solve": (0, 0, 2, 2),
    "local": (32, 32, 4, 1),
    "local_adjoint": (32, 32, 4, 1),
    "local_both": (32, 32, 4, 1),
    "passes": (0, 16, 2, 2),
    "output": (32, 32, 4, 1),
    "correction": (0, 32, 4, 1),
    "gradients": (32, 32, 4, 1),
}
# Products in float32 are unrolled multiply-adds: more warps and small tiles, or compiling takes
# longer than running.
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
