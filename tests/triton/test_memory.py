"""What a backward has in use at once: allocations are counted and nothing is started."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

from properties.case import OPERATORS
from rewy.backends.triton import gates, graph, norm, run
from rewy.problem import Problem
from tests.triton.compiling import launches, problem

SIZE = 128  # K = V, H = HV = 2, two chunks of 64
TOKENS = 128


class InUse(TorchDispatchMode):
    """Counts the bytes that are allocated inside and not given back, and the most there were."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0

    def _back(self, size: int) -> None:
        self.now -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__.startswith(("empty", "new_empty", "zeros")):
            for x in tree_leaves(found):
                self.now += x.nbytes
                weakref.finalize(x, self._back, x.nbytes)
            self.most = max(self.most, self.now)
        return found


def _training(operator: str, policy: str, groups: int = 1) -> Problem:
    given = problem(operator, torch.bfloat16, SIZE, SIZE, 64, groups=groups, policy=policy)
    tensors = [None if x is None or x.dim() < 2 else x[:, :TOKENS] for x in given.tensors]
    tensors[given.tensors._fields.index("h0")] = None
    spec = replace(given.spec, T=TOKENS, sequence_starts=(0, TOKENS), output_final_state=False)
    return Problem(spec, type(given.tensors)(*tensors))


def _most_in_use(given: Problem, monkeypatch) -> float:
    """In tensors of v's size, by a backward and its results."""
    for module in (run, gates, norm):
        monkeypatch.setattr(module, "start", lambda *_: None)
    _, _, saved = graph.forward(given)
    do = torch.zeros_like(given.tensors.v)
    with InUse() as use:
        graph.backward(given, saved, do, None)
    return use.most / do.nbytes


# In tensors of the size of v. With the gradients: U, S (2), Y, dS (2), dq, dk and dv. Beside a
# channel gate also G, dg, dG and ends (2 each) and dP and dL (half of one each). 'save' has U, S
# and G from the forward. 'recompute', side by side, before the gradients: W_hat, U, S (2), K_hat,
# Q_g, Y, dS (2), which is as much, and beside a channel gate K_b, G (2) and K_t.
@pytest.mark.parametrize(
    ("operator", "policy", "most"),
    [
        ("delta_rule", "recompute", 9),
        ("delta_rule", "save", 6),
        ("gated_delta_rule", "recompute", 9),
        ("gated_delta_rule", "save", 6),
        ("kda", "recompute", 18),
        ("kda", "save", 13),
    ],
)
@pytest.mark.parametrize("filled", [False, True])
def test_a_backward_holds_no_more_than_it_needs(operator, policy, most, filled, monkeypatch):
    monkeypatch.setattr(graph, "go_apart", lambda *_: filled)
    assert _most_in_use(_training(operator, policy), monkeypatch) == pytest.approx(most, abs=0.2)


# With two value heads a key: dq and dk of each, float32 (2 each), instead of those above (1 each);
# what they are summed to (half of one each) comes when Y, dS and, if recomputed, U and S are gone.
@pytest.mark.parametrize(
    ("operator", "policy", "most"),
    [
        ("delta_rule", "recompute", 11),
        ("gated_delta_rule", "save", 8),
        ("kda", "recompute", 20),
        ("kda", "save", 15),
    ],
)
def test_sums_over_a_group_take_no_more(operator, policy, most, monkeypatch):
    given = _training(operator, policy, groups=2)
    assert _most_in_use(given, monkeypatch) == pytest.approx(most, abs=0.2)


@pytest.mark.parametrize("operator", OPERATORS)
def test_residuals_take_the_place_of_their_halves(operator):
    passes = [
        dict(zip(launch.kernel.arg_names, launch.arguments, strict=False)) | launch.constants
        for launch in launches(problem(operator, torch.bfloat16, SIZE, SIZE, 64))
        if launch.kernel.__name__ == "_passes"
    ]
    assert passes
    for given in passes:
        assert not given["FORWARD"] or given["U"] is given["U_hat"]
        assert not given["REVERSE"] or given["Y"] is given["Y_hat"]
