"""Neighbouring memory, strides and the caller's own tensors: not read, not felt, not changed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from properties import session, truth
from properties.case import CHOICES, Case
from properties.implementations import Implementation, TorchOperators
from properties.implementations.base import arguments
from properties.law import NOTHING, law, run
from properties.strategies import cases
from properties.verdict import judge_bits

VIEWS = tuple(layout for layout in CHOICES["layout"] if layout != "contiguous")


@law(partial(cases, layouts=VIEWS))
def test_views_equal_contiguous_copies(case: Case, implementation: Implementation) -> None:
    """Strided, sliced, permuted and expanded arguments, or one so and the next otherwise, in a sea
    of NaN give a contiguous copy's bits.
    """
    expected = run(replace(case, layout="contiguous"), implementation, truth.inputs_of(case))
    judge_bits(case, run(case, implementation), expected, "those of contiguous copies")


@law(cases)
def test_arguments_are_left_unchanged(case: Case, implementation: Implementation) -> object:
    """Neither forward, chunkwise or token by token, nor backward writes to an argument or to the
    memory around it.

    Nor in the case's plain form, contiguous, in wide types and with gates of -inf: what is copied
    first, to another layout or type, a write in place does not reach, and -inf is what one would
    replace.
    """
    if not isinstance(implementation, TorchOperators):
        return NOTHING
    wide = case.dtype if case.dtype == "float64" else "float32"
    plain = replace(case, layout="contiguous", dtype=wide, gate_dtype=wide, beta_dtype=None,
                    parameter_dtype=None)  # fmt: skip
    if case.has_gate and not case.gate_in_kernel:
        plain = replace(plain, gates="resets", gate_scale=0, without_g=False)
    for one in (case, plain) if plain != case else (case,):
        if session.refusal(one, implementation) is None:
            for by_token in (False, True) if implementation.decodes(one) else (False,):
                _check_left_unchanged(one, implementation, by_token)
    return None


def _check_left_unchanged(case: Case, implementation: TorchOperators, by_token: bool) -> None:
    inputs = truth.inputs_of(case)
    tensors, options = arguments(case, inputs, session.device())
    storages = {name: x.untyped_storage() for name, x in tensors.items()}
    before = {name: _bytes(storage) for name, storage in storages.items()}
    leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    with implementation.within():
        results = implementation.call(case, leaves, options, token_by_token=by_token)
        results = [x for x in results if x.requires_grad]
        if results and not by_token:
            torch.autograd.grad(results, list(leaves.values()), results, allow_unused=True)
    for name, storage in storages.items():
        assert np.array_equal(before[name], _bytes(storage)), (
            f"{name} or the memory around it changed"
        )


def _bytes(storage: torch.UntypedStorage) -> np.ndarray:
    return (
        torch.tensor([], dtype=torch.uint8, device=storage.device)
        .set_(storage)
        .cpu()
        .numpy()
        .copy()
    )
