"""Gate sums: inclusive sums of the log gates within a chunk, as exponents of 2.

The kernels decay from row j to row i by ``2**(G_i - G_j)``. Where products are float32 the sums are
float64, so that the difference of two sums is as good as the sum over the stretch; beside 16-bit
operands float32 sums are. A gate below ``FORGETS`` is 0 in float32 and so is every decay across it,
whatever else is in the stretch: it counts as ``FORGETS``, which keeps -inf out of the differences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rewy.backends.triton.common import load_tokens, place, tile
from rewy.backends.triton.configs import Config
from rewy.backends.triton.start import start
from rewy.backends.triton.tiles import Tiles

LOG2E = tl.constexpr(1.4426950408889634)
FORGETS = tl.constexpr(-160.0)  # 2**-149 is the smallest float32


@triton.jit(do_not_specialize=["T", "NT", "PACKED", "HV", "D"])
def _gate_sums(
    g, G, table, T, NT,
    HV, D, DP, C: tl.constexpr, BD: tl.constexpr,
    PACKED,
):  # fmt: skip
    ND = DP // BD
    part, pid = tl.program_id(0) % ND, tl.program_id(0) // ND
    chunk, h, first, rows = place(pid, HV, table, T, NT, C, PACKED)
    r, d = tl.arange(0, C), part * BD + tl.arange(0, BD)
    x = load_tokens(g, first, rows, h, HV, r, d, D).to(tl.float32) * LOG2E
    x = tl.where(x < FORGETS, FORGETS, x)
    sums = tl.cumsum(x.to(G.dtype.element_ty), 0)
    tl.store(tile(G, chunk, C, DP, r, d), sums)


def gate_sums(g: Tensor, tiles: Tiles, HV: int, T: int, wide: bool, known: bool = False) -> Tensor:
    """``G_i = log2(e) (g_0 + ... + g_i)`` within each chunk.

    g: ``[B, T, HV, 1 or K]``, any float type. Returns ``[M, HV, C, 1 or KP]`` in float64 where
    ``wide``, else float32; rows past the end repeat the last sum. ``known``: whether sizes are
    compiled in.
    """
    D = g.shape[-1]
    DP = 1 if D == 1 else tiles.KP
    BD = min(DP, 32)
    dtype = torch.float64 if wide else torch.float32
    G = torch.empty(tiles.M, HV, tiles.C, DP, dtype=dtype, device=g.device)
    start(
        _gate_sums, tiles.M * HV * (DP // BD), Config(BD, 0, 4, 2),
        [g, G, tiles.table, T, tiles.NT],
        {"HV": HV, "D": D, "DP": DP, "C": tiles.C, "BD": BD, "PACKED": int(tiles.packed)},
        ("D", "DP") if known else (),
    )  # fmt: skip
    return G
