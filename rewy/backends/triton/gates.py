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

from rewy.backends.triton.common import forgets, load_tokens, place, store_tokens, tile
from rewy.backends.triton.configs import Config
from rewy.backends.triton.start import start
from rewy.backends.triton.tiles import Tiles

LOG2E = tl.constexpr(1.4426950408889634)
FORGETS = tl.constexpr(-160.0)  # 2**-149 is the smallest float32


@triton.jit(do_not_specialize=["T", "NT"])
def _gate_sums(
    g, G, table, T, NT,
    HV, D, DP: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    ND: tl.constexpr = DP // BD
    part, pid = tl.program_id(0) % ND, tl.program_id(0) // ND
    chunk, h, first, rows = place(pid, HV, table, T, NT, C, PACKED)
    r, d = tl.arange(0, C), part * BD + tl.arange(0, BD)
    x = load_tokens(g, first, rows, h, HV, r, d, D).to(tl.float32) * LOG2E
    x = tl.where(x < FORGETS, FORGETS, x)
    sums = tl.cumsum(x.to(G.dtype.element_ty), 0)
    tl.store(tile(G, chunk, C, DP, r, d), sums)


def gate_sums(g: Tensor, tiles: Tiles, HV: int, T: int, wide: bool) -> Tensor:
    """``G_i = log2(e) (g_0 + ... + g_i)`` within each chunk.

    g: ``[B, T, HV, 1 or K]``, any float type. Returns ``[M, HV, C, 1 or KP]`` in float64 where
    ``wide``, else float32; rows past the end repeat the last sum.
    """
    D = g.shape[-1]
    DP = 1 if D == 1 else tiles.KP
    BD = min(DP, 32)
    dtype = torch.float64 if wide else torch.float32
    G = torch.empty(tiles.M, HV, tiles.C, DP, dtype=dtype, device=g.device)
    start(
        _gate_sums, tiles.M * HV * (DP // BD), Config(BD, 0, 4, 2),
        [g, G, tiles.table, T, tiles.NT],
        {"HV": HV, "D": D, "DP": DP, "C": tiles.C, "BD": BD, "PACKED": tiles.packed},
    )  # fmt: skip
    return G


@triton.jit(do_not_specialize=["T", "NT", "parts", "stride"])
def _gate_reduction(
    G, dG, db_erase, db_write, dg, db, table, T, NT, parts, stride,
    HV, C: tl.constexpr, HAS_G: tl.constexpr, HAS_B: tl.constexpr,
    HAS_W: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    chunk, h, first, rows = place(tl.program_id(0), HV, table, T, NT, C, PACKED)
    r = tl.arange(0, C)
    at = chunk * C + r
    wide = tl.zeros([1], dtype=tl.int64) + stride  # parts times stride may pass 2**31
    zero = tl.arange(0, 1)
    if HAS_G:
        x = tl.zeros([C], dtype=tl.float32)
        for part in range(0, parts):
            x += tl.load(dG + part * wide + at)
        x = tl.cumsum(x, 0, reverse=True)
        # Across a decay of 0 nothing flows: what is left there is rounding.
        before = tl.load(G + at - 1, mask=r > 0, other=0)
        x = tl.where(forgets(tl.load(G + at), before), 0.0, x)
        store_tokens(dg, first, rows, h, HV, r, zero, 1, x[:, None])
    if HAS_B:
        x = tl.zeros([C], dtype=tl.float32)
        for part in range(0, parts):
            x += tl.load(db_erase + part * wide + at)
        if HAS_W:
            x += tl.load(db_write + at)
        store_tokens(db, first, rows, h, HV, r, zero, 1, x[:, None])


def gate_reduction(
    G: Tensor | None,
    dG: Tensor | None,
    db_erase: Tensor | None,
    db_write: Tensor | None,
    dg: Tensor | None,
    db: Tensor | None,
    tiles: Tiles,
    HV: int,
    T: int,
) -> None:
    """Sum the parts of a head's gate and beta gradients and write them by token.

    G: the gate sums; dG: ``[parts, M, HV, C]``, their adjoints, whose reverse cumulative sum within
    the chunk is dg; db_erase: the same of beta where it erases; db_write ``[M, HV, C]`` where it
    writes. Absent ones are None. dg, db: ``[B, T, HV, 1]``, written.
    """
    if dG is None and db_erase is None:  # all per channel, and written already
        return
    parts = len(dG if dG is not None else db_erase)
    nothing = tiles.table
    tensors = [nothing if x is None else x for x in (G, dG, db_erase, db_write, dg, db)]
    start(
        _gate_reduction, tiles.M * HV, Config(0, 0, 1, 2),
        [*tensors, tiles.table, T, tiles.NT, parts, tiles.M * HV * tiles.C],
        {
            "HV": HV, "C": tiles.C, "HAS_G": dG is not None, "HAS_B": db_erase is not None,
            "HAS_W": db_write is not None, "PACKED": tiles.packed,
        },
    )  # fmt: skip
