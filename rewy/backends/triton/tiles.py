"""Between tokens and chunks, as the kernels see it.

Kernels read tokens ``[B * T, heads, D]`` and keep their own tensors by chunk, ``[M, HV, C, D]``:
M chunks of C rows, sequence after sequence, D padded to a power of two. Rows past a sequence's end
and channels past D are read as 0 and written as 0, which makes both exactly inert.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import torch

from rewy.problem import Spec

SMALLEST = 64  # heads are padded up to it: smaller tiles would be so many more forms to compile
CHUNKS = 16, 32, 64  # rows; never more than asked for, since long chunks round more


def padded(size: int) -> int:
    """The power of two, at least 64, that holds ``size``."""
    return max(SMALLEST, 1 << (size - 1).bit_length())


class Tiles:
    """Where the chunks of a problem lie.

    Attributes:
        C: rows a chunk: the smallest of CHUNKS that holds what the problem asks for or has, else
            the largest.
        M: chunks in all. NT: chunks a sequence where all are equally long.
        KP, VP: K and V padded.
        packed: whether the sequences differ in length.
        table: ``[M, 2]`` int64, first token and rows of each chunk; one element unless packed.
        starts: ``[N + 1]`` int64, the first token of each sequence; one element unless packed.
        firsts: ``[N + 1]`` int64, the first chunk of each sequence; one element unless packed.
        nothing: what stands for a tensor that is not there.
    """

    def __init__(self, spec: Spec, device: torch.device):
        starts = spec.sequence_starts
        self.packed = starts != tuple(range(0, spec.B * spec.T + 1, max(spec.T, 1)))
        lengths = [b - a for a, b in pairwise(starts)] if self.packed else [spec.T]
        longest = max(lengths, default=0)
        self.C = next((C for C in CHUNKS if C >= min(spec.chunk_size, longest)), CHUNKS[-1])
        self.KP, self.VP = padded(spec.K), padded(spec.V)
        self.nothing = _nothing(device, torch.float32)
        self.NT = -(-spec.T // self.C)
        if self.packed:
            self.starts, self.table, self.firsts = _tables(starts, self.C, device)
            self.M = len(self.table)
        else:
            self.starts = self.table = self.firsts = _nothing(device, torch.int64)
            self.M = spec.N * self.NT


@lru_cache(maxsize=8)
def _tables(
    starts: tuple[int, ...], C: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Chunks and sequences of a pack; kept, since every layer of a model asks for the same."""
    offsets = torch.tensor(starts, dtype=torch.int64)
    lengths = offsets[1:] - offsets[:-1]
    counts = (lengths + C - 1) // C
    firsts = torch.zeros(len(starts), dtype=torch.int64)
    firsts[1:] = counts.cumsum(0)
    sequence = torch.repeat_interleave(torch.arange(len(counts)), counts)
    inside = (torch.arange(len(sequence)) - firsts[:-1][sequence]) * C
    rows = (lengths[sequence] - inside).clamp(max=C)
    table = torch.stack([offsets[:-1][sequence] + inside, rows], 1).contiguous()
    return offsets.to(device), table.to(device), firsts.to(device)


@lru_cache(maxsize=8)
def _nothing(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(1, dtype=dtype, device=device)
