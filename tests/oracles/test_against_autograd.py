"""The oracle against two others that share nothing with it.

Automatic differentiation, in PyTorch, of a recurrence written anew with every raw-input option; and
central finite differences.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from oracles import OPERATORS, Arguments, evaluate

NORM, GATE, BOUND, SIGMOID, NEGATIVE, FIRST = (
    {"use_qk_l2norm_in_kernel": True},
    {"use_gate_in_kernel": True},
    {"use_gate_in_kernel": True, "lower_bound": -5.0},
    {"use_beta_sigmoid_in_kernel": True},
    {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
    {"state_v_first": True},
)
OPTIONS = {
    "plain": {},
    "norm": NORM,
    "gate": GATE,
    "bounded gate": BOUND,
    "sigmoid": SIGMOID,
    "negative eigenvalues": NEGATIVE,
    "value first": FIRST,
    "scale": {"scale": 0.7},
    "all": NORM | GATE | NEGATIVE | FIRST | {"scale": -1.3},
    "all bounded": NORM | BOUND | NEGATIVE | FIRST | {"scale": -1.3},
}
TENSORS = ("q", "k", "v", "g", "beta", "b", "w", "h0", "A_log", "dt_bias")
CASES = [
    (operator, name)
    for operator, name in itertools.product(OPERATORS, OPTIONS)
    if not (operator == "delta_rule" and ("gate" in name or "bounded" in name))
]


def draw(operator, seed=0, lengths=(3, 0, 1, 5), options=None, dt_bias=True, A_log=True):
    """A small packed call, K != V, HV = 2 H."""
    options = dict(options or {})
    if operator == "delta_rule":
        options.pop("use_gate_in_kernel", None)
    rng = np.random.default_rng(seed)
    H, HV, K, V, T, N = 2, 4, 3, 2, sum(lengths), len(lengths)
    raw_gate, raw_beta = (options.get(f"use_{x}_in_kernel") for x in ("gate", "beta_sigmoid"))
    arrays = {"q": rng.normal(size=(1, T, H, K)), "k": rng.normal(size=(1, T, H, K)) / 2}
    arrays["v"] = rng.normal(size=(1, T, HV, V))
    strength = rng.normal if raw_beta else rng.uniform
    if operator == "gdn2":
        arrays["b"], arrays["w"] = strength(size=(1, T, HV, K)), strength(size=(1, T, HV, V))
    else:
        arrays["beta"] = strength(size=(1, T, HV))
    if operator != "delta_rule":
        channels = () if operator == "gated_delta_rule" else (K,)
        g = rng.normal(size=(1, T, HV, *channels))
        arrays["g"] = g if raw_gate else -np.abs(g)
        if raw_gate:
            arrays["A_log"] = rng.normal(size=HV) if A_log else None
            arrays["dt_bias"] = rng.normal(size=HV * max(1, *channels, 1)) if dt_bias else None
    first = options.get("state_v_first")
    arrays["h0"] = rng.normal(size=(N, HV, V, K) if first else (N, HV, K, V))
    offsets = tuple(np.cumsum((0, *lengths)).tolist())
    arguments = Arguments(operator, **arrays, offsets=offsets, chunk_size=2, **options)
    return arguments, rng.normal(size=arrays["v"].shape), rng.normal(size=arrays["h0"].shape)


def activated(a, x):
    """The recurrence's own inputs q, k, gamma, b, w from the call's, in PyTorch."""
    q, k = x["q"], x["k"]
    if a.use_qk_l2norm_in_kernel:
        q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    beta, b, w = x.get("beta"), x.get("b"), x.get("w")
    if a.use_beta_sigmoid_in_kernel:
        top = 2 if a.allow_neg_eigval else 1
        beta, b = (None if y is None else top * y.sigmoid() for y in (beta, b))
        w = None if w is None else w.sigmoid()
    if beta is not None:
        b = w = beta[..., None]
    if "g" not in x:
        return q, k, torch.ones_like(b), b, w
    g = x["g"] if x["g"].ndim == 4 else x["g"][..., None]
    if a.use_gate_in_kernel:
        HV = g.shape[2]
        rate = x["A_log"].exp()[:, None] if "A_log" in x else 1.0
        if "dt_bias" in x:
            g = g + x["dt_bias"].view(HV, -1)
        if a.lower_bound is None:
            g = -rate * torch.nn.functional.softplus(g)
        else:
            g = a.lower_bound * (rate * g).sigmoid()
    return q, k, g.exp(), b, w


def plain_recurrence(a, x):
    """o and ht, one head and one token at a time."""
    q, k, gamma, b, w = activated(a, x)
    group = a.v.shape[2] // a.q.shape[2]
    scale = a.q.shape[-1] ** -0.5 if a.scale is None else a.scale
    o = [[None] * a.v.shape[2] for _ in range(a.q.shape[1])]
    states = []
    for n, (lo, hi) in enumerate(itertools.pairwise(a.offsets)):
        heads = []
        for h in range(a.v.shape[2]):
            S = x["h0"][n, h].T if a.state_v_first else x["h0"][n, h]
            for t in range(lo, hi):
                key = k[0, t, h // group]
                S = gamma[0, t, h][:, None] * S
                S = S + torch.outer(key, w[0, t, h] * x["v"][0, t, h] - S.T @ (b[0, t, h] * key))
                o[t][h] = scale * (S.T @ q[0, t, h // group])
            heads.append(S.T if a.state_v_first else S)
        states.append(torch.stack(heads))
    return torch.stack([torch.stack(row) for row in o])[None], torch.stack(states)


def differentiated(a, do, dht):
    """Every quantity by automatic differentiation."""
    given = {name: getattr(a, name) for name in TENSORS if getattr(a, name) is not None}
    x = {name: torch.tensor(value, requires_grad=True) for name, value in given.items()}
    o, ht = plain_recurrence(a, x)
    loss = (o * torch.tensor(do)).sum() + (ht * torch.tensor(dht)).sum()
    gradients = torch.autograd.grad(loss, list(x.values()))
    quantities = {f"d{name}": gradient for name, gradient in zip(x, gradients, strict=True)}
    return {name: y.detach().numpy() for name, y in ({"o": o, "ht": ht} | quantities).items()}


@pytest.mark.parametrize(("operator", "options"), CASES)
@pytest.mark.parametrize("algorithm", ["recurrence", "naive", "rewy"])
def test_matches_automatic_differentiation(operator, options, algorithm):
    arguments, do, dht = draw(operator, options=OPTIONS[options])
    expected = differentiated(arguments, do, dht)
    result = evaluate(arguments, do, dht, algorithm)
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        # float64 on numbers of order 1 to 100, a hundred operations deep
        np.testing.assert_allclose(result[name], value, rtol=1e-10, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("operator", ["gated_delta_rule", "kda", "gdn2"])
def test_optional_gate_parameters_may_be_absent(operator):
    cases = [(GATE, {"dt_bias": False})]
    cases += [(BOUND, {"A_log": False}), (BOUND, {"A_log": False, "dt_bias": False})]
    for options, absent in cases:
        arguments, do, dht = draw(operator, options=options, **absent)
        expected = differentiated(arguments, do, dht)
        result = evaluate(arguments, do, dht)
        assert result.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(result[name], value, rtol=1e-10, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("operator", ["gated_delta_rule", "kda", "gdn2"])
@pytest.mark.parametrize("algorithm", ["recurrence", "naive", "rewy"])
def test_gate_may_be_absent(operator, algorithm):
    arguments, do, dht = draw(operator)
    arguments = dataclasses.replace(arguments, g=None)
    expected = differentiated(arguments, do, dht)
    result = evaluate(arguments, do, dht, algorithm)
    assert "dg" not in result
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-10, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("operator", ["kda", "gdn2"])
@pytest.mark.parametrize("options", [GATE, BOUND], ids=["gate", "bounded gate"])
def test_bias_of_either_shape_has_a_gradient_of_that_shape(operator, options):
    arguments, do, dht = draw(operator, options=options)
    square = dataclasses.replace(arguments, dt_bias=arguments.dt_bias.reshape(4, 3))
    one, two = evaluate(arguments, do, dht), evaluate(square, do, dht)
    assert two["ddt_bias"].shape == (4, 3)
    assert np.array_equal(two["ddt_bias"].ravel(), one["ddt_bias"])
    assert all(np.array_equal(two[name], one[name]) for name in one.keys() - {"ddt_bias"})


@pytest.mark.parametrize(("operator", "options"), CASES)
def test_matches_finite_differences(operator, options):
    arguments, do, dht = draw(operator, lengths=(2, 1), options=OPTIONS[options])
    result = evaluate(arguments, do, dht, "rewy")
    rng = np.random.default_rng(1)
    step = 1e-4

    def loss(name, value):
        moved = evaluate(dataclasses.replace(arguments, **{name: value}))
        return (moved["o"] * do).sum() + (moved["ht"] * dht).sum()

    for name in TENSORS:
        value = getattr(arguments, name)
        if value is None:
            continue
        direction = rng.normal(size=value.shape)
        slope = (loss(name, value + step * direction) - loss(name, value - step * direction)) / (
            2 * step
        )
        # the third derivatives are of order 100: truncation error 100 step^2 = 1e-6
        expected = (result[f"d{name}"] * direction).sum()
        assert abs(slope - expected) < 1e-5 * (1 + abs(expected)), name


def test_two_unpacked_sequences_are_a_batch():
    packed, do, dht = draw("kda", lengths=(4, 4))
    names = [name for name in TENSORS if getattr(packed, name) is not None and name != "h0"]
    split = {name: np.concatenate(np.split(getattr(packed, name), 2, axis=1)) for name in names}
    batch = dataclasses.replace(packed, **split, offsets=None)
    one = evaluate(packed, do, dht)
    two = evaluate(batch, np.concatenate(np.split(do, 2, axis=1)), dht)
    for name, value in one.items():
        value = value if name in ("ht", "dh0") else np.concatenate(np.split(value, 2, axis=1))
        np.testing.assert_allclose(two[name], value, rtol=1e-13, atol=1e-13, err_msg=name)
