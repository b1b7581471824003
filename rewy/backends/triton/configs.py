"""Tile sizes, warps and pipeline stages of each kernel.

Tried on an H200 with Triton 3.6 (benchmarks/gpu.py); every entry is under test on the device, since
Triton has compiled wrong code for single configurations before.
"""

from __future__ import annotations

from typing import NamedTuple


class Config(NamedTuple):
    """One way to launch a kernel. BK, BV: channels a tile (0 where the kernel has none)."""

    BK: int
    BV: int
    warps: int
    stages: int


def config(kernel: str, C: int, KP: int, VP: int, wide: bool, gate: int) -> Config:
    """For a kernel at a chunk size, padded head sizes, operand width and kind of gate."""
    BK, BV, warps, stages = _WIDE[kernel] if wide else _NARROW[kernel, gate == 2]
    return Config(min(BK, KP), min(BV, VP), warps, stages)


_NARROW = {
    ("channel_scores", True): (64, 0, 1, 2),
    ("channel_contraction", True): (32, 0, 1, 2),
    ("local", False): (64, 128, 4, 3),
    ("local", True): (64, 128, 4, 3),
    ("local_adjoint", False): (128, 128, 4, 2),
    ("local_adjoint", True): (128, 128, 8, 2),
    ("passes", False): (0, 32, 4, 2),
    ("passes", True): (0, 32, 4, 2),
    ("output", False): (128, 128, 4, 3),
    ("output", True): (64, 128, 4, 2),
    ("correction", False): (0, 128, 8, 2),
    ("correction", True): (0, 128, 8, 3),
    ("contraction", False): (64, 64, 4, 3),
    ("contraction", True): (64, 64, 4, 2),
}
_WIDE = {
    "channel_scores": (32, 0, 1, 2),
    "channel_contraction": (32, 0, 1, 2),
    "local": (32, 32, 4, 2),
    "local_adjoint": (32, 32, 4, 2),
    "passes": (0, 16, 4, 2),
    "output": (32, 32, 4, 2),
    "correction": (0, 32, 4, 2),
    "contraction": (32, 32, 4, 2),
}
