"""Raw-input options where they are hard: finite and accurate at the ends of the range."""

import numpy as np
import pytest
from flint import arb, ctx

from oracles import EXTENDED, Arguments, Exact, activations, evaluate

HARD = [-1e4, -200.0, -31.0, -30.0, -29.0, -1.0, 0.0, 1.0, 30.0, 200.0, 1e4]


@pytest.mark.parametrize("u", HARD)
@pytest.mark.parametrize("A_log", [-4.0, 0.0, 3.0, 100.0])
def test_gate_equals_high_precision(u, A_log):
    g, pullback = activations.gate(np.array([u]), np.array([A_log]), None)
    dx, dA_log = pullback(np.array([1.0]))
    with ctx.workprec(200):
        rate = arb(A_log).exp()
        softplus = arb(u).exp().log1p()
        expected = -rate * softplus, -rate / (1 + arb(-u).exp()), -rate * softplus
        expected = [float(x) for x in expected]
    for value, truth in zip((g, dx, dA_log), expected, strict=True):
        # exp(a) of a rounded a errs by |a| roundoffs, |a| <= 10100
        scale = (2 + abs(A_log) + abs(u)) * 2.0**-52
        assert abs(value[0] - truth) <= scale * abs(truth)


def test_gate_is_finite_where_the_truth_is():
    g, pullback = activations.gate(np.array([-200.0, 0.0]), np.array(100.0), np.array(0.0))
    assert -1e-40 < g[0] < 0
    assert np.exp(g[1]) == 0
    with np.errstate(all="ignore"):
        g, pullback = activations.gate(np.array([1.0]), np.array(800.0), None)
        gradients = pullback(np.array([0.0]))
    assert g[0] == -np.inf
    assert all(np.array_equal(x, [0.0]) for x in gradients)


@pytest.mark.parametrize("A_log", [None, -4.0, 0.0, 100.0])
@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_infinite_raw_gates_have_their_limits(A_log, lower_bound):
    """-inf: no decay; +inf: a reset, whose dg is 0, or the lower bound. Neither has a slope."""
    x, rate = np.array([-np.inf, np.inf]), None if A_log is None else np.array([A_log])
    with np.errstate(all="ignore"):
        if lower_bound is not None:
            g, pullback = activations.bounded_gate(x, rate, None, lower_bound, Exact())
        elif A_log is not None:
            g, pullback = activations.gate(x, rate, None)
        else:
            return
        gradients = pullback(np.array([1.0, 0.0 if lower_bound is None else 1.0]))
    assert np.array_equal(g, [0, -np.inf if lower_bound is None else lower_bound])
    assert all(np.array_equal(dx, [0, 0]) for dx in gradients)


@pytest.mark.parametrize("algorithm", ["recurrence", "naive", "rewy"])
@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_infinite_raw_gates_are_their_limits(algorithm, lower_bound):
    """A call with them is the call with the log decays that they stand for."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 1, 9, 2, 3)) / 2
    raw, beta = rng.normal(size=v.shape), rng.uniform(size=(1, 9, 2))
    raw.flat[::5], raw.flat[1::5] = -np.inf, np.inf
    A_log, rest = np.array([0.5, -1.0]), {"q": q, "k": k, "v": v, "beta": beta, "chunk_size": 4}
    with np.errstate(all="ignore"):
        if lower_bound is None:
            g, _ = activations.gate(raw, A_log[:, None], None)
        else:
            g, _ = activations.bounded_gate(raw, A_log[:, None], None, lower_bound, Exact())
    given = evaluate(Arguments("kda", g=g, **rest), v, algorithm=algorithm)
    call = Arguments(
        "kda", g=raw, A_log=A_log, lower_bound=lower_bound, use_gate_in_kernel=True, **rest
    )
    found = evaluate(call, v, algorithm=algorithm)
    assert all(np.isfinite(x).all() for x in found.values())
    for name in ("o", "ht", "dq", "dk", "dv", "dbeta"):
        np.testing.assert_allclose(found[name], given[name], rtol=1e-12, atol=1e-13, err_msg=name)
    assert (found["dg"][np.isinf(raw)] == 0).all()
    assert found["dA_log"].all()


@pytest.mark.parametrize("u", HARD)
@pytest.mark.parametrize("A_log", [None, -4.0, 3.0, 100.0])
def test_bounded_gate_equals_high_precision(u, A_log):
    rate = None if A_log is None else np.array([A_log])
    with np.errstate(under="ignore", over="ignore"):
        g, pullback = activations.bounded_gate(np.array([u]), rate, None, -5.0, Exact())
        dx, dA_log = pullback(np.array([1.0]))
    with ctx.workprec(200):
        rate = arb(A_log or 0).exp()
        s, c = 1 / (1 + (-rate * u).exp()), 1 / (1 + (rate * u).exp())
        expected = [float(x) for x in (-5 * s, -5 * s * c * rate, -5 * s * c * rate * u)]
        steep = float(rate) * abs(u)
    for value, truth in zip((g, dx, dA_log), expected, strict=True):
        if abs(truth) < 1e-290:
            assert abs(value[0]) < 1e-290
        else:
            scale = (8 + abs(A_log or 0) + 4 * steep) * 2.0**-52
            assert abs(value[0] - truth) <= scale * abs(truth)


@pytest.mark.parametrize("norm", [0.0, 1e-8, 1e-3, 1.0, 1e3])
def test_norm_uses_one_epsilon_both_ways(norm):
    x = norm * np.array([[0.6, -0.8]])
    y, pullback = activations.l2norm(x, Exact())
    np.testing.assert_allclose(y, x / np.sqrt(norm**2 + 1e-6), rtol=1e-14)
    dy = np.array([[0.3, 0.7]])
    r = 1 / np.sqrt(norm**2 + 1e-6)
    expected = r * dy - r**3 * x * (x * dy).sum()
    np.testing.assert_allclose(pullback(dy), expected, rtol=1e-12, atol=1e-13 * r)


def test_sigmoid_is_accurate_on_both_sides():
    x = np.array([-700.0, -40.0, 0.0, 40.0, 700.0])
    np.testing.assert_allclose(activations.sigmoid(x)[:3], [np.exp(-700), np.exp(-40), 0.5], 1e-13)
    np.testing.assert_array_equal(activations.sigmoid(x)[3:], 1.0)


@pytest.mark.parametrize("algorithm", ["recurrence", "naive", "rewy"])
def test_a_dead_head_gives_finite_gradients(algorithm):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 1, 9, 2, 3)) / 2
    arguments = Arguments(
        "kda",
        q,
        k,
        v,
        g=rng.normal(size=v.shape),
        beta=rng.uniform(size=(1, 9, 2)),
        A_log=np.array([0.0, 100.0]),
        dt_bias=np.zeros(6),
        use_gate_in_kernel=True,
        chunk_size=4,
    )
    result = evaluate(arguments, v, algorithm=algorithm)
    assert all(np.isfinite(x).all() for x in result.values())
    if algorithm == "recurrence":
        assert result["dA_log"][1] == 0
        assert result["dA_log"][0] != 0


@pytest.mark.parametrize("algorithm", ["recurrence", "naive", "rewy"])
def test_resets_forget_and_get_no_gradient(algorithm):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 1, 9, 1, 3)) / 2
    g, beta = -rng.uniform(size=(2, 1, 9, 1))
    g[0, 5] = -np.inf
    arrays = {"q": q, "k": k, "v": v, "g": g, "beta": -beta}
    whole = evaluate(Arguments("gated_delta_rule", **arrays, chunk_size=4), v, algorithm=algorithm)
    np.testing.assert_allclose(whole["dg"][0, 5], 0, atol=1e-14)
    tail = Arguments("gated_delta_rule", **{name: x[:, 5:] for name, x in arrays.items()})
    np.testing.assert_allclose(whole["o"][:, 5:], evaluate(tail)["o"], rtol=1e-12)


def test_extended_precision_runs_the_options():
    rng = np.random.default_rng(1)
    q, k, v = rng.normal(size=(3, 1, 4, 1, 3))
    arguments = Arguments(
        "gated_delta_rule",
        q,
        k,
        v,
        g=rng.normal(size=(1, 4, 1)),
        beta=rng.normal(size=(1, 4, 1)),
        A_log=np.zeros(1),
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
    )
    fine, coarse = evaluate(arguments, v, system=EXTENDED), evaluate(arguments, v)
    for name, value in fine.items():
        assert value.dtype == EXTENDED.dtype
        np.testing.assert_allclose(np.asarray(value, float), coarse[name], rtol=1e-11, atol=1e-13)
