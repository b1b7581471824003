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
from properties.implementations.tensors import to_array
from properties.law import NOTHING, forward, law, run
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
    """A second backward through one forward (``retain_graph``) gives the first one's bits, and one
    from another adjoint in between those of a graph of its own.
    """
    if not isinstance(implementation, TorchOperators):
        return NOTHING
    other = truth.inputs_of(replace(case, seed=case.seed ^ 0xD0))
    graph, fresh = (forward(case, implementation) for _ in range(2))
    adjoints = graph.adjoints
    others = {name: _like(x, other[name]) for name, x in adjoints.items()}
    once = graph.gradients(adjoints, keep=True)
    judge_bits(case, graph.gradients(others, keep=True), fresh.gradients(others),
               "those of a graph that saw no other adjoint")  # fmt: skip
    judge_bits(case, graph.gradients(adjoints), once, "those of the first backward")
    return None


def _like(x: torch.Tensor, array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(x)


@law(cases)
def test_calls_in_flight_are_independent(case: Case, implementation: Implementation) -> object:
    """Two forwards, then the backward of the first and of the second, as two layers of a model
    have them: each gets the bits of the call alone, and what was returned, gradients too, stays as
    it was.
    """
    if not isinstance(implementation, TorchOperators):
        return NOTHING
    both = case, replace(case, seed=case.seed ^ 0xF1)
    alone = [run(one, implementation) for one in both]
    graphs = [forward(one, implementation) for one in both]
    found = [graph.backward(graph.adjoints) for graph in graphs]
    for one, graph, gradients, expected in zip(both, graphs, found, alone, strict=True):
        results = graph.outputs() | {name: to_array(x) for name, x in gradients.items()}
        judge_bits(one, results, expected, "those of the call alone")
    return None


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
    if session.refusal(many, implementation) is not None:
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
