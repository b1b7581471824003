"""Cases and inputs changed together: the experiments that relate one call to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

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
    """Whether equal numbers get equal bits wherever they lie, on a CPU, too.

    No transcendental function may meet anything but 0: a vectorised loop hands its last few
    elements to another exponential. And matrices must be whole cache lines: a BLAS sums others in
    an order that depends on their address (float64, three channels, chunks of 64).
    """
    aligned = case.head_size % 16 == 0 and case.value_size % 16 == 0
    return case.gates == "zero" and not case.beta_sigmoid and aligned


def plain_arguments(case: Case) -> bool:
    """Whether the arguments are the recurrence's own, without activation."""
    return not (case.qk_l2norm or case.gate_in_kernel or case.beta_sigmoid)
