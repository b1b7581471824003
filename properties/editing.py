"""Cases and inputs changed together: the experiments that relate one call to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import torch

from properties import session
from properties.case import Case
from properties.materialize import Inputs

TOKENS = ("q", "k", "v", "g", "beta", "b", "w", "do")  # arguments with a token axis, [B, T, ...]
PER_HEAD = ("A_log", "dt_bias")


def with_arrays(inputs: Inputs, **arrays: np.ndarray | None) -> Inputs:
    """The same inputs with some arrays in others' place."""
    return replace(inputs, **arrays)


def map_tokens(inputs: Inputs, change: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    """``change`` applied to every argument with a token axis."""
    return {name: change(inputs[name]) for name in TOKENS if inputs[name] is not None}


def packed_as(case: Case, lengths: tuple[int, ...]) -> Case:
    """The case with its tokens packed into sequences of these lengths."""
    return replace(case, lengths=lengths, packed=True, cut=0)


def unpack(case: Case, inputs: Inputs, n: int) -> tuple[Case, Inputs]:
    """Sequence n alone, as a batch of one."""
    row, first, end = case.sequences()[n]
    alone = replace(case, lengths=(end - first,), packed=False, int32_offsets=False, cut=0)
    arrays = map_tokens(inputs, lambda x: x[row : row + 1, first:end])
    arrays |= {name: inputs[name][n : n + 1] for name in ("h0", "dht") if inputs[name] is not None}
    return alone, with_arrays(inputs, **arrays)


def place_is_nothing(case: Case) -> bool:
    """Whether equal numbers get equal bits wherever they lie.

    No transcendental function may meet anything but 0: a vectorised loop hands its last few
    elements to another exponential. And a CPU's batched product may sum by place: MKL's does in
    float64 where there are three channels.
    """
    if case.gates != "zero" or case.beta_sigmoid:
        return False
    if torch.device(session.device()).type != "cpu":
        return True
    dtype = torch.float64 if case.dtype == "float64" else torch.float32
    sizes = {case.chunk_size, case.head_size, case.value_size}
    return _products_are_alike(dtype, frozenset(sizes))


@cache
def _products_are_alike(dtype: torch.dtype, sizes: frozenset[int]) -> bool:
    """A probe: whether equal matrices in a batch have equal products on this CPU, in all shapes of
    these sizes, with either factor transposed.
    """
    generator = torch.Generator().manual_seed(0)

    def copies(rows: int, columns: int, transposed: bool) -> torch.Tensor:
        shape = (columns, rows) if transposed else (rows, columns)
        x = torch.randn(shape, generator=generator, dtype=dtype).repeat(8, 1, 1)
        return x.mT if transposed else x

    for m, k, n in product(sorted(sizes), repeat=3):
        for left, right in product((False, True), repeat=2):
            for _ in range(3):
                found = copies(m, k, left) @ copies(k, n, right)
                if not (found == found[:1]).all():
                    return False
    return True


def plain_arguments(case: Case) -> bool:
    """Whether the arguments are the recurrence's own, without activation."""
    return not (case.qk_l2norm or case.gate_in_kernel or case.beta_sigmoid)
