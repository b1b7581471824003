"""The operators under autograd: which gradients there are, when, at what cost in memory, and that
they are gradients.
"""

import pytest
import torch
from leaves import FORMS, OPERATORS, call, make_inputs
from torch.utils.checkpoint import checkpoint


def adjoints(*results):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in results]


def bits(tensors):
    return [None if x is None else x.detach().clone().view(torch.uint8) for x in tensors]


def assert_same_bits(found, expected):
    assert len(found) == len(expected)
    for x, y in zip(bits(found), bits(expected), strict=True):
        assert (x is None and y is None) or torch.equal(x, y)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_one_argument_alone_gets_the_gradient_it_gets_among_all(operator, form):
    raw = {"raw_gate": True, "raw_beta": True}
    options = {"use_beta_sigmoid_in_kernel": True, "use_qk_l2norm_in_kernel": True}
    if operator != "delta_rule":
        options["use_gate_in_kernel"] = True
    x = make_inputs(operator, **raw)
    results = call(operator, form, x, **options)
    seeds = adjoints(*results)
    together = torch.autograd.grad(results, list(x.values()), seeds)
    for (name, leaf), expected in zip(x.items(), together, strict=True):
        others = {other: value.detach() for other, value in x.items()}
        alone = leaf.detach().requires_grad_()
        results = call(operator, form, {**others, name: alone}, **options)
        torch.autograd.backward(results, seeds)
        assert_same_bits([alone.grad], [expected])
        assert all(value.grad is None for value in others.values())
        assert expected.abs().sum() > 0, name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_loss_through_both_is_the_sum_of_the_losses_through_each(operator, form):
    x = make_inputs(operator)
    o, ht = call(operator, form, x)
    do, dht = adjoints(o, ht)
    leaves = list(x.values())
    options = {"retain_graph": True, "allow_unused": True}
    through_o = torch.autograd.grad(o, leaves, do, **options)
    through_ht = torch.autograd.grad(ht, leaves, dht, **options)
    both = torch.autograd.grad((o, ht), leaves, (do, dht), **options)
    for name, x_o, x_ht, x_both in zip(x, through_o, through_ht, both, strict=True):
        torch.testing.assert_close(x_both, x_o + x_ht, rtol=1e-12, atol=1e-14, msg=name)
    dq = dict(zip(x, through_ht, strict=True))["q"]
    assert not dq.any()  # queries do not reach the state
    assert all(d.any() for d in through_o)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_without_a_final_state_gradients_still_flow(operator, form):
    x = make_inputs(operator)
    o, ht = call(operator, form, x, output_final_state=False)
    assert ht is None
    expected, _ = call(operator, form, x)
    (do,) = adjoints(o)
    assert_same_bits(
        torch.autograd.grad(o, list(x.values()), do),
        torch.autograd.grad(expected, list(x.values()), do),
    )


class Stop(torch.autograd.Function):
    """The identity, whose adjoint is nothing at all and not zeros."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, d):
        return None


def test_results_without_an_adjoint_give_no_gradients():
    x = make_inputs("kda")
    o, ht = call("kda", "chunk", x)
    (Stop.apply(o).sum() + Stop.apply(ht).sum()).backward()
    assert all(value.grad is None for value in x.values())


ROADS = {
    "recompute": ("chunk", {"disable_recompute": False}),
    "save": ("chunk", {"disable_recompute": True}),
    "decoding": ("fused_recurrent", {}),
}


@pytest.mark.parametrize(("form", "options"), ROADS.values(), ids=ROADS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_second_use_of_the_graph_gives_the_same_bits(operator, form, options):
    x = make_inputs(operator)
    results = call(operator, form, x, **options)
    seeds = adjoints(*results)
    first = torch.autograd.grad(results, list(x.values()), seeds, retain_graph=True)
    second = torch.autograd.grad(results, list(x.values()), seeds)
    assert_same_bits(second, first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(results, list(x.values()), seeds)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_no_bits(reentrant):
    x = make_inputs("kda")
    leaves = list(x.values())

    def function(*leaves):
        return call("kda", "chunk", dict(zip(x, leaves, strict=True)))

    expected, found = function(*leaves), checkpoint(function, *leaves, use_reentrant=reentrant)
    seeds = adjoints(*expected)
    gradients = torch.autograd.grad(expected, leaves, seeds)
    torch.autograd.backward(found, seeds)
    assert_same_bits([*found, *(leaf.grad for leaf in leaves)], [*expected, *gradients])


SECOND_DERIVATIVE = r"second derivative|differentiate twice"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_second_derivative_is_an_error_for_every_argument(operator, form):
    x = make_inputs(operator)
    leaves = list(x.values())
    o, _ = call(operator, form, x)
    first = torch.autograd.grad(o.square().sum(), leaves, create_graph=True)
    penalty = sum(d.square().sum() for d in first)
    for leaf in leaves:
        with pytest.raises(RuntimeError, match=SECOND_DERIVATIVE):
            torch.autograd.grad(penalty, leaf, retain_graph=True, allow_unused=True)
    with pytest.raises(RuntimeError, match=SECOND_DERIVATIVE):
        penalty.backward(retain_graph=True)


def test_a_penalty_on_the_gradient_is_not_dropped_silently():
    x = make_inputs("delta_rule")
    loss = call("delta_rule", "chunk", x)[0].square().sum()
    (dv,) = torch.autograd.grad(loss, x["v"], create_graph=True)
    with pytest.raises(RuntimeError, match=SECOND_DERIVATIVE):
        torch.autograd.grad(loss + dv.square().sum(), x["v"])


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_input_changed_in_place_is_noticed(operator):
    for name in make_inputs(operator):
        x = make_inputs(operator)
        o, _ = call(operator, "chunk", x)
        with torch.no_grad():
            x[name].mul_(0.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            o.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_autocast_changes_no_bits(operator, form, dtype):
    x = make_inputs(operator, dtype=torch.float32)
    for name in set(x) - {"initial_state"}:
        x[name] = x[name].detach().to(dtype).requires_grad_()
    leaves = list(x.values())
    expected = call(operator, form, x)
    seeds = adjoints(*expected)
    gradients = torch.autograd.grad(expected, leaves, seeds)
    with torch.autocast("cpu", torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        inside, outside = (call(operator, form, x) for _ in range(2))
        assert_same_bits(torch.autograd.grad(inside, leaves, seeds), gradients)
    assert_same_bits(torch.autograd.grad(outside, leaves, seeds), gradients)
    assert_same_bits(inside, expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_without_gradients_the_results_are_the_same_and_nothing_is_kept(operator, form):
    x = make_inputs(operator)
    expected = call(operator, form, x)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            found, kept = packed(lambda: call(operator, form, x))
            assert not any(y.requires_grad for y in found)
            assert kept == []
            assert_same_bits(found, expected)


def packed(function):
    """A result, and the tensors that autograd saved for it."""
    kept = []

    def pack(x):
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        return function(), kept


@pytest.mark.parametrize("operator", OPERATORS)
def test_recompute_keeps_the_inverse_beside_the_inputs_and_save_more(operator):
    tokens, C = 128, 32
    x = make_inputs(operator, tokens=tokens)
    HV, K, V = x["initial_state"].shape[1:]
    memories = {value.untyped_storage().data_ptr() for value in x.values()}
    shapes = {}
    for disable_recompute in (False, True):
        options = {"chunk_size": C, "disable_recompute": disable_recompute}
        _, kept = packed(lambda options=options: call(operator, "chunk", x, **options))
        beside = [y for y in kept if y.untyped_storage().data_ptr() not in memories]
        shapes[disable_recompute] = sorted(tuple(y.shape) for y in beside)
    M = tokens // C
    A, U, S = (M, HV, C, C), (M, HV, C, V), (M, HV, K, V)
    assert shapes[False] == [A]
    assert shapes[True] == sorted([A, A, U, S])  # A, P, U and the states


@pytest.mark.parametrize("operator", OPERATORS)
def test_decoding_keeps_nothing_beside_the_inputs(operator):
    x = make_inputs(operator)
    memories = {value.untyped_storage().data_ptr() for value in x.values()}
    _, kept = packed(lambda: call(operator, "fused_recurrent", x))
    assert kept
    assert all(y.untyped_storage().data_ptr() in memories for y in kept)


RAW = {
    "use_qk_l2norm_in_kernel": True,
    "use_beta_sigmoid_in_kernel": True,
    "allow_neg_eigval": True,
    "state_v_first": True,
}
OPTIONS = [
    *[(operator, {}) for operator in OPERATORS],
    ("delta_rule", RAW),
    *[(operator, {**RAW, "use_gate_in_kernel": True}) for operator in OPERATORS[1:]],
    *[(o, {"use_gate_in_kernel": True, "lower_bound": -5.0}) for o in ("kda", "gdn2")],
]


@pytest.mark.parametrize("tokens", [5, 19])
@pytest.mark.parametrize("policy", [False, True], ids=["recompute", "save"])
@pytest.mark.parametrize(("operator", "options"), OPTIONS)
def test_gradients_are_those_of_finite_differences(operator, options, policy, tokens):
    """Two chunks at 19 tokens, one that is not full at 5; through both results."""
    raw = {
        "raw_gate": bool(options.get("use_gate_in_kernel")),
        "raw_beta": bool(options.get("use_beta_sigmoid_in_kernel")),
    }
    x = make_inputs(operator, tokens=tokens, K=3, V=2, **raw)
    if options.get("state_v_first"):
        x["initial_state"] = x["initial_state"].detach().mT.contiguous().requires_grad_()
    options = {**options, "chunk_size": 16, "disable_recompute": policy}

    def function(*leaves):
        return call(operator, "chunk", dict(zip(x, leaves, strict=True)), **options)

    # Every number alone at 5 tokens; along a random direction, which is quicker, at 19.
    assert torch.autograd.gradcheck(function, tuple(x.values()), fast_mode=tokens > 5)
