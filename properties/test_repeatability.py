"""The same call again, or the same graph again, gives the same bits."""

from __future__ import annotations

from dataclasses import replace

import torch

from properties import session, truth
from properties.case import Case
from properties.implementations import Implementation, TorchOperators
from properties.implementations.base import arguments
from properties.implementations.tensors import to_array
from properties.law import NOTHING, law, run
from properties.strategies import cases
from properties.verdict import judge, judge_bits


@law(cases)
def test_repeated_calls_are_bitwise_equal(case: Case, implementation: Implementation) -> None:
    """A, B, A: no state is left behind, no order of summation is up to chance.

    B has A's sizes, other values and its sequences in reverse order, and is judged, too.
    """
    other = replace(case, seed=case.seed ^ 0xB, lengths=case.lengths[::-1])
    first = run(case, implementation)
    between = run(other, implementation, truth.inputs_of(other))
    judge(other, between, *truth.budget(other, implementation.precision(other))).check()
    judge_bits(case, run(case, implementation), first, "those of the first call")


@law(cases)
def test_the_graph_can_be_used_again(case: Case, implementation: Implementation) -> object:
    """A second backward through one forward (``retain_graph``) gives the first one's bits."""
    if not isinstance(implementation, TorchOperators):
        return NOTHING
    tensors, options = arguments(case, truth.inputs_of(case), session.device())
    leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    results = implementation.call(case, leaves, options, token_by_token=False)
    results = [x for x in results if x.requires_grad]
    if not results:
        return
    seeds = [torch.ones_like(x) for x in results]
    once, again = (
        torch.autograd.grad(
            results, list(leaves.values()), seeds, retain_graph=True, allow_unused=True
        )
        for _ in range(2)
    )
    both = [
        {f"d{name}": to_array(x) for name, x in zip(leaves, found, strict=True) if x is not None}
        for found in (once, again)
    ]
    judge_bits(case, both[1], both[0], "those of the first backward")
