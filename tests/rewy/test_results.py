"""What a caller may do with results, and calls in unusual surroundings."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import rewy
from rewy.backends.eager import graph

OPERATORS = ("delta_rule", "gated_delta_rule", "kda", "gdn2")


def call(operator: str, T: int, *, decoding: bool = False, **options):
    """A call on fixed values: (function, arguments)."""
    random = torch.Generator(device="cpu").manual_seed(T)
    B, H, K, V = 1, 2, 4, 3

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=random, device="cpu")

    x = {"q": draw(B, T, H, K), "k": draw(B, T, H, K) / K, "v": draw(B, T, H, V)}
    if operator != "delta_rule":
        x["g"] = -draw(B, T, H, *(() if operator == "gated_delta_rule" else (K,)))
    if operator == "gdn2":
        x |= {"b": draw(B, T, H, K), "w": draw(B, T, H, V)}
    else:
        x["beta"] = draw(B, T, H)
    form = "fused_recurrent" if decoding else "chunk"
    return getattr(rewy, f"{form}_{operator}"), {**x, **options}


@pytest.mark.parametrize("decoding", [False, True])
@pytest.mark.parametrize("T", [1, 4, 63, 64, 65, 128])
@pytest.mark.parametrize("operator", OPERATORS)
def test_outputs_are_contiguous_and_may_be_changed_in_place(operator, T, decoding):
    function, arguments = call(operator, T, decoding=decoding, output_final_state=True)
    arguments["v"].requires_grad_()
    o, ht = function(**arguments)
    assert o.is_contiguous()
    assert ht.is_contiguous()
    expected = torch.autograd.grad(2 * o.sum() + ht.sum(), arguments["v"], retain_graph=True)
    o.mul_(2)
    assert torch.equal(torch.autograd.grad(o.sum() + ht.sum(), arguments["v"])[0], expected[0])


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_default_device_elsewhere_does_not_matter(operator):
    function, arguments = call(operator, 70)
    expected, _ = function(**arguments)
    with torch.device("meta"):
        found, _ = function(**arguments)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_compiled_callers_get_the_same_bits(operator):
    function, arguments = call(operator, 70)
    arguments["k"].requires_grad_()
    compiled = torch.compile(lambda **x: function(**x)[0].square().sum(), backend="eager")
    plain = function(**arguments)[0].square().sum()
    found = compiled(**arguments)
    assert torch.equal(found, plain)
    assert torch.equal(
        torch.autograd.grad(found, arguments["k"])[0], torch.autograd.grad(plain, arguments["k"])[0]
    )


@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_the_eager_graph_is_not_traced(monkeypatch):
    """It would be for each number of tokens anew, for minutes."""
    traced = []

    def watch(stage, *arguments):
        traced.append(torch.compiler.is_compiling())
        return stage(*arguments)

    for name in ("forward", "backward", "decode"):
        monkeypatch.setattr(graph, name, partial(watch, getattr(graph, name)))
    function, arguments = call("kda", 20)
    arguments["k"].requires_grad_()
    compiled = torch.compile(lambda **x: function(**x)[0].square().sum(), backend="eager")
    torch.autograd.grad(compiled(**arguments), arguments["k"])
    decode = torch.compile(rewy.fused_recurrent_kda, backend="eager")
    decode(**{name: x.detach() for name, x in arguments.items()})
    assert traced == [False, False, False]


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize("raw", [float("inf"), float("-inf")])
def test_infinite_raw_gates_have_finite_gradients(raw, lower_bound):
    function, arguments = call("kda", 20, use_gate_in_kernel=True, lower_bound=lower_bound)
    arguments["g"][0, 7] = raw
    arguments["A_log"] = torch.tensor([0.5, -1.0])
    leaves = {name: arguments[name].requires_grad_() for name in ("g", "A_log", "k")}
    o, _ = function(**arguments)
    for gradient in torch.autograd.grad(o.sum(), list(leaves.values())):
        assert gradient.isfinite().all()


def test_a_missing_beta_has_no_logits():
    function, arguments = call("kda", 5, decoding=True)
    del arguments["beta"]
    with pytest.raises(TypeError, match="beta"):
        function(**arguments)
    function, arguments = call("delta_rule", 5, decoding=True, use_beta_sigmoid_in_kernel=True)
    del arguments["beta"]
    with pytest.raises(ValueError, match="beta"):
        function(**arguments)


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("scale", 10**400, ValueError),
        ("backend", ["eager"], ValueError),
        ("beta", torch.ones(1, 5, 2).to_sparse(), TypeError),
    ],
)
def test_odd_values_meet_the_door(option, value, error):
    function, arguments = call("delta_rule", 5)
    with pytest.raises(error, match=option):
        function(**{**arguments, option: value})


@pytest.mark.parametrize("policy", ["recompute", "save"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_what_no_row_owes_another_may_overflow(operator, policy):
    """The product of row 3's adjoint with the value of row 15, which comes later, is infinite."""
    function, x = call(operator, 20)
    x["v"][:, 15] = 1e30
    for value in x.values():
        value.requires_grad_()
    o, _ = function(**x, disable_recompute=policy == "save")
    do = torch.zeros_like(o)
    do[:, 3] = 1e10
    for name, gradient in zip(x, torch.autograd.grad(o, list(x.values()), do), strict=True):
        assert gradient.isfinite().all(), name
