"""Between tokens and chunks.

Tokens arrive as ``[B, T, H, D]``, possibly several sequences packed into one row. The graph works
on ``[M, HV, C, D]``: M chunks of C rows. Chunks are numbered step by step (the first chunk of every
sequence, then the second of those that have one, ...), longest sequence first, so that one step of
the state passes is a contiguous slice and the sequences still running are a prefix of the states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rewy.problem import Spec


class Tiling:
    """Where each token of a problem lies among the chunks.

    Attributes:
        C: rows a chunk, a power of two; the problem's chunk size, or less where every sequence is
            shorter (the chunk size changes no result, see docs/method.md).
        M: chunks in all.
        steps: for each step of the state passes its slice of the M chunks.
    """

    def __init__(self, spec: Spec, device: torch.device):
        starts = torch.tensor(spec.sequence_starts, dtype=torch.int64, device="cpu")
        lengths = starts[1:] - starts[:-1]
        longest = int(lengths.max()) if lengths.numel() else 0
        self.C = min(spec.chunk_size, 1 << max(longest - 1, 0).bit_length())
        counts = (lengths + self.C - 1) // self.C
        order = torch.argsort(counts, descending=True, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device="cpu")

        running = torch.bincount(counts, minlength=1).flip(0).cumsum(0).flip(0)[1:]
        begin = torch.cumsum(running, 0) - running
        self.steps = [
            slice(i, i + n) for i, n in zip(begin.tolist(), running.tolist(), strict=True)
        ]
        self.M = int(running.sum())
        self._heads = spec.HV

        sequence = torch.repeat_interleave(torch.arange(len(lengths), device="cpu"), lengths)
        position = torch.arange(int(lengths.sum()), device="cpu") - starts[:-1][sequence]
        slot = (begin[position // self.C] + rank[sequence]) * self.C + position % self.C
        in_order = slot.numel() == self.M * self.C and bool(
            (slot == torch.arange(slot.numel(), device="cpu")).all()
        )
        # The token of each row, -1 past a sequence's end; None where rows lie as tokens do.
        self._token = None
        if not in_order:
            self._token = torch.full((self.M * self.C,), -1, device="cpu")
            self._token[slot] = torch.arange(slot.numel(), device="cpu")
        self._device = device
        self._places: dict[tuple[int, int], tuple[Tensor, Tensor | None, Tensor]] = {}
        sorted_already = bool((order == torch.arange(len(order), device="cpu")).all())
        self._order = None if sorted_already else order.to(device)
        self._rank = None if sorted_already else rank.to(device)

    def chunks(self, x: Tensor, dtype: torch.dtype, rows: slice) -> Tensor:
        """Some chunks of ``[B, T, H, D]``, ``[m, HV, C, D]`` in ``dtype``; heads repeat over their
        group, rows past a sequence's end are 0 (k = b = w = 0 and g = 0 make a row exactly inert).
        """
        B, T, H, D = x.shape
        x = x.reshape(B * T, H, D)
        some = slice(rows.start * self.C, rows.stop * self.C)
        if self._token is None:
            x = x[some]
        else:
            token, inside, _ = self._place(some)
            x = x.index_select(0, token.clamp(min=0))
            if inside is not None:
                x.masked_fill_((token < 0)[:, None, None], 0)
        n = self._heads // H
        x = x.view(-1, self.C, H, 1, D).expand(-1, -1, -1, n, -1).permute(0, 2, 3, 1, 4)
        # Contiguous, so that products round alike for every layout.
        return x.to(dtype).contiguous().view(-1, self._heads, self.C, D)

    def put(self, x: Tensor, rows: slice, out: Tensor) -> None:
        """Some chunks, ``[m, HV, C, D]``, to their places in ``out``, ``[B, T, HV, D]``; without
        rows past a sequence's end.
        """
        B, T, HV, D = out.shape
        some, out = slice(rows.start * self.C, rows.stop * self.C), out.view(B * T, HV, D)
        x = x.transpose(1, 2)
        if self._token is None:
            out[some].view(x.shape).copy_(x)
            return
        _, inside, there = self._place(some)
        x = x.reshape(-1, HV, D)
        out.index_copy_(0, there, x if inside is None else x.index_select(0, inside))

    def _place(self, some: slice) -> tuple[Tensor, Tensor | None, Tensor]:
        """Of some rows, on the device: the token of each or -1; which rows have one, None for all;
        and their tokens.
        """
        key = some.start, some.stop
        if key not in self._places:
            token = self._token[some]
            inside = (token >= 0).nonzero()[:, 0]
            there = token[inside].to(self._device)
            whole = len(inside) == len(token)
            inside = None if whole else inside.to(self._device)
            self._places[key] = there if whole else token.to(self._device), inside, there
        return self._places[key]

    def sort(self, states: Tensor) -> Tensor:
        """States ``[N, ...]`` from the caller's order to longest first; always a copy, and of one
        layout also where an axis has size 1: products round alike.
        """
        if self._order is None:
            return states.clone(memory_format=torch.contiguous_format)
        return states.index_select(0, self._order)

    def unsort(self, states: Tensor) -> Tensor:
        """States ``[N, ...]`` from longest first to the caller's order."""
        return states if self._rank is None else states.index_select(0, self._rank)
