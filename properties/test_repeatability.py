"""The same call again, the same graph again, or the same sequences again in one call give the same
bits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from properties import session, truth
from properties.case import Case
from properties.editing import PER_HEAD, map_tokens, place_is_nothing, with_arrays
from properties.implementations import Implementation, TorchOperators
from properties.implementations.base import arguments
from properties.implementations.tensors import to_array
from properties.law import NOTHING, law, run
from properties.strategies import cases
from properties.verdict import STATES, judge, judge_bits

COPIES = 64
NUMBERS = 1 << 21  # in the arguments of all copies together


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


@law(cases)
def test_copies_in_one_call_get_equal_bits(case: Case, implementation: Implementation) -> object:
    """The same sequences many times over in one call, each copy judged by the first.

    An accelerator is kept busy by them. What depends on which of its parts is faster, such as
    memory that one overwrites while another reads it, seldom shows in a single small case. On a CPU
    there are three, and none where bits depend on the place.
    """
    on_cpu = torch.device(session.device()).type == "cpu"
    if on_cpu and not place_is_nothing(case):  # kernels of an accelerator know no place
        return NOTHING
    inputs = truth.inputs_of(case)
    numbers = sum(x.size for x in inputs.present().values())
    copies = 3 if on_cpu else max(2, min(COPIES, NUMBERS // max(1, numbers)))
    many = replace(case, lengths=case.lengths * copies, cut=0)
    if implementation.refuses(many, session.device()) is not None:
        return NOTHING
    axis = 1 if case.packed else 0
    arrays = map_tokens(inputs, lambda x: np.concatenate(copies * [x], axis))
    for name in ("h0", "dht"):
        if inputs[name] is not None:
            arrays[name] = np.concatenate(copies * [inputs[name]])
    found = {}
    for name, x in run(many, implementation, with_arrays(inputs, **arrays)).items():
        if name.removeprefix("d") not in PER_HEAD:  # whose gradients are sums over all
            parts = np.split(x, copies, 0 if name in STATES else axis)
            found[name] = np.stack(parts)
    first = {name: np.broadcast_to(x[:1], x.shape) for name, x in found.items()}
    judge_bits(many, found, first, "those of the first copy")
    return None
