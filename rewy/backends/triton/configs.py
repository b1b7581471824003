"""Tile sizes, warps and pipeline stages of each kernel.

Tried on an H200 with Triton 3.6, each against float64 on the device, since Triton has compiled
wrong code for single configurations. Seen there, in kernels that are right in the interpreter and
in their other forms: the contraction with tiles of 16 or 32 key channels on four warps (wrong dk
and dg, or a fault), with 16 on eight, and 128 by 64 on four; the state passes with one pipeline
stage on four. Warp groups multiply from four warps on; below 64 rows or channels the kernels
therefore run on two, which use the older matrix instruction, with two stages or more.
"""

from __future__ import annotations

from typing import NamedTuple


class Config(NamedTuple):
    """One way to launch a kernel. BK, BV: channels a tile (0 where the kernel has none)."""

    BK: int
    BV: int
    warps: int
    stages: int


def config(kernel: str, C: int, KP: int, VP: int, operand: str, gate: int) -> Config:
    """For a kernel at a chunk size, padded head sizes and kind of gate.

    ``operand`` is what products are made of: 'bf16', 'tf32' or 'ieee' (float32).
    """
    narrow = operand == "bf16"
    BK, BV, warps, stages = _BFLOAT16[kernel, gate == 2] if narrow else _FLOAT32[kernel]
    found = Config(min(BK, KP), min(BV, VP), warps, stages)
    if kernel == "passes" and KP == 256:  # three tiles of 32 KB a stage
        found = found._replace(BV=min(16, VP), stages=2)
    small = min(C, KP, VP) < 64 or operand == "tf32"
    if small and operand != "ieee":
        found = found._replace(warps=min(warps, 2))
    return found


# By kernel and whether the gate is per channel.
_BFLOAT16 = {
    ("channel_scores", True): (128, 0, 2, 2),
    ("channel_contraction", True): (64, 0, 2, 2),
    ("scores", False): (64, 0, 4, 3),
    ("solve", False): (0, 0, 4, 2),
    ("solve", True): (0, 0, 4, 2),
    ("local", False): (64, 128, 4, 3),
    ("local", True): (64, 128, 4, 3),
    ("local_adjoint", False): (128, 128, 4, 2),
    ("local_adjoint", True): (128, 128, 8, 2),
    ("passes", False): (0, 32, 4, 3),
    ("passes", True): (0, 32, 4, 3),
    ("output", False): (128, 128, 4, 3),
    ("output", True): (64, 128, 4, 2),
    ("correction", False): (0, 128, 8, 2),
    ("correction", True): (0, 128, 8, 3),
    ("contraction", False): (64, 64, 4, 3),
    ("contraction", True): (64, 64, 8, 3),
}
_FLOAT32 = {
    "channel_scores": (32, 0, 1, 2),
    "channel_contraction": (32, 0, 1, 2),
    "scores": (32, 0, 4, 2),
    "solve": (0, 0, 4, 2),
    "local": (32, 32, 4, 2),
    "local_adjoint": (32, 32, 4, 2),
    "passes": (0, 16, 4, 2),
    "output": (32, 32, 4, 2),
    "correction": (0, 32, 4, 2),
    "contraction": (32, 32, 4, 2),
}
