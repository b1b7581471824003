"""Sizes at the ends of their ranges: nothing at all, one, odd, and a great many."""

import resource
import sys
import time

import pytest
import torch
from leaves import FORMS, OPERATORS, call, make_inputs

from properties import truth
from properties.case import Case
from properties.implementations.ours import eager
from properties.law import run
from properties.verdict import judge

NOTHING = {  # B, T, N, packed
    "tokens": (2, 0, 2, False),
    "batch": (0, 5, 0, False),
    "tokens and batch": (0, 0, 0, False),
    "tokens of packed sequences": (1, 0, 2, True),
    "packed sequences": (1, 0, 0, True),
}
ROADS = {"recompute": ("chunk", False), "save": ("chunk", True), "decoding": ("fused_recurrent", 0)}


@pytest.mark.parametrize(("B", "tokens", "N", "packed"), NOTHING.values(), ids=NOTHING)
@pytest.mark.parametrize(("form", "disable_recompute"), ROADS.values(), ids=ROADS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_nothing_keeps_the_state_and_hands_back_its_adjoint(
    operator, form, disable_recompute, B, tokens, N, packed
):
    options = {"disable_recompute": disable_recompute} if form == "chunk" else {}
    if packed:
        options["cu_seqlens"] = torch.zeros(N + 1, dtype=torch.int64)
    x = make_inputs(operator, tokens, B=B, N=N, dtype=torch.float32)
    o, ht = call(operator, form, x, **options)
    assert o.shape == (B, tokens, 2, 3)
    assert torch.equal(ht, x["initial_state"])
    dht = torch.rand(ht.shape)
    gradients = torch.autograd.grad((o, ht), list(x.values()), (o.detach(), dht))
    for (name, leaf), gradient in zip(x.items(), gradients, strict=True):
        assert gradient.shape == leaf.shape
        assert torch.equal(gradient, dht if name == "initial_state" else torch.zeros_like(leaf))
    without = {name: value for name, value in x.items() if name != "initial_state"}
    _, ht = call(operator, form, without, **options)
    assert torch.equal(ht, torch.zeros(N, 2, 5, 3))


def test_the_final_state_of_nothing_is_not_the_initial_state_itself():
    x = make_inputs("kda", 0, B=2, dtype=torch.float32)
    for form in FORMS:
        with torch.no_grad():
            _, ht = call("kda", form, x)
        assert ht.untyped_storage().data_ptr() != x["initial_state"].untyped_storage().data_ptr()


# Under 20 s and 1 GiB beyond what the process had: one token a chunk, not a chunk a token.
LIMIT_SECONDS, LIMIT_MIB = 20, 1024


@pytest.mark.parametrize("operator", ["delta_rule", "gdn2"])
def test_a_pack_of_seventy_thousand_sequences_of_one_token(operator):
    N, K, V = 70_000, 4, 3
    x = make_inputs(operator, N, N=N, groups=1, K=K, V=V, dtype=torch.float32)
    before, started = _peak_mib(), time.perf_counter()
    o, ht = call(operator, "chunk", x, cu_seqlens=torch.arange(N + 1), scale=1.0)
    gradients = torch.autograd.grad((o, ht), list(x.values()), (o.detach(), ht.detach()))
    seconds, mib = time.perf_counter() - started, _peak_mib() - before
    assert seconds < LIMIT_SECONDS
    assert mib < LIMIT_MIB

    y = {name: value.detach().double().requires_grad_() for name, value in x.items()}
    S = y["initial_state"][:, 0]
    q, k, v = (y[name][0, :, 0] for name in ("q", "k", "v"))
    g = y["g"][0, :, 0] if "g" in y else torch.zeros(N, 1)
    erase = y["b"][0, :, 0] if "b" in y else y["beta"][0, :, :1].reshape(N, 1)
    write = y["w"][0, :, 0] if "w" in y else erase
    S = g.exp()[:, :, None] * S
    residual = write * v - ((erase * k)[:, None] @ S)[:, 0]
    S = S + k[:, :, None] * residual[:, None]
    expected = (q[:, None] @ S)[None, :, None, 0], S[:, None]
    adjoints = (o.detach().double(), ht.detach().double())
    expected_gradients = torch.autograd.grad(expected, list(y.values()), adjoints)
    # Sums of K products of numbers below 4: a few roundoffs of 2^-24 each.
    for found, wanted in zip((o, ht, *gradients), (*expected, *expected_gradients), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=16 * K * 2.0**-24)


def _peak_mib():
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage / 2**20 if sys.platform == "darwin" else usage / 2**10


@pytest.mark.parametrize(("K", "V"), [(1, 300), (1, 1), (256, 1), (17, 300)])
@pytest.mark.parametrize("operator", OPERATORS)
def test_head_sizes_at_the_ends_are_within_budget(operator, K, V):
    case = Case(
        operator=operator,
        lengths=(35,),
        heads=1,
        groups=2,
        head_size=K,
        value_size=V,
        gates="zero" if operator == "delta_rule" else "model",
        initial_state="random",
        through="both",
        seed=11,
    )
    for implementation in eager():
        expected, deviations = truth.budget(case, implementation.precision(case))
        for token_by_token in (False, True):
            results = run(case, implementation, token_by_token=token_by_token)
            judge(case, results, expected, deviations).check()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_expanded_inputs_give_the_bits_of_copies_and_gradients_of_full_shape(operator, form):
    """One row of memory for a whole axis, in every axis and in all arguments at once."""
    x = {name: value.detach() for name, value in make_inputs(operator, 21, B=2, heads=2).items()}
    for axis in range(4):
        views = {
            name: value.narrow(axis, 0, 1).expand(value.shape) if axis < value.dim() else value
            for name, value in x.items()
        }
        copies = {name: value.contiguous() for name, value in views.items()}
        found, expected = (
            _forward_and_backward(operator, form, tensors) for tensors in (views, copies)
        )
        for y, wanted in zip(found, expected, strict=True):
            assert torch.equal(y, wanted)


def _forward_and_backward(operator, form, tensors):
    leaves = {name: value.detach().requires_grad_() for name, value in tensors.items()}
    results = call(operator, form, leaves)
    seeds = [y.detach() for y in results]
    return *results, *torch.autograd.grad(results, list(leaves.values()), seeds)
