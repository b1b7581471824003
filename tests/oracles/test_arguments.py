"""Refusals name the argument, what it got and what it wants."""

from dataclasses import replace

import numpy as np
import pytest

from oracles import FIELD, FLOAT64, Arguments, evaluate, points

RAW = {"gamma": None, "g": np.zeros((1, 5, 1, 2)), "use_gate_in_kernel": True}


def fields(operator="kda", /, **changes):
    arguments, _, _ = points.call(FLOAT64, np.random.default_rng(0), operator, (3, 2))
    return vars(arguments) | changes


@pytest.mark.parametrize(
    ("operator", "changes", "message"),
    [
        ("kda", {"operator": "mamba"}, "operator must be one of .* got 'mamba'"),
        ("kda", {"chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ("kda", {"k": np.ones((1, 5, 1, 3))}, r"k must have shape \(1, 5, 1, 2\)"),
        ("kda", {"q": np.ones((5, 1, 2))}, "q and v must have 4 axes"),
        ("kda", {"beta": None}, "beta is required for kda"),
        ("kda", {"w": np.ones((1, 5, 1, 3))}, "w is no argument of kda"),
        ("gdn2", {"b": None}, "b is required for gdn2"),
        ("gdn2", {"beta": np.ones((1, 5, 1))}, "beta is no argument of gdn2"),
        ("kda", {"g": np.zeros((1, 5, 1, 2))}, "and not both"),
        ("delta_rule", {"g": np.zeros((1, 5, 1))}, "g is no argument of delta_rule"),
        ("gated_delta_rule", {"lower_bound": -5.0}, "lower_bound needs use_gate_in_kernel"),
        ("kda", RAW | {"lower_bound": 0.0}, "lower_bound must be below 0, got 0.0"),
        ("kda", RAW | {"lower_bound": -np.inf}, "lower_bound must be below 0, got -inf"),
        (
            "kda",
            RAW | {"lower_bound": -1.0, "dt_bias": np.zeros((2, 1))},
            r"dt_bias must have shape \(2,\) or \(1, 2\), got \(2, 1\)",
        ),
        (
            "gated_delta_rule",
            RAW | {"g": np.zeros((1, 5, 1)), "lower_bound": -1.0, "dt_bias": np.zeros((1, 1))},
            r"dt_bias must have shape \(1,\), got \(1, 1\)",
        ),
        ("kda", {"A_log": np.zeros(1)}, "A_log is no argument of kda as called"),
        ("kda", {"use_gate_in_kernel": True}, "use_gate_in_kernel activates g"),
        ("kda", {"offsets": (0, 3)}, "offsets must rise from 0 to 5"),
        ("kda", {"offsets": (0, 4, 3, 5), "h0": None}, "offsets must rise"),
        ("kda", {"offsets": (0,), "h0": None}, "offsets must rise"),
        ("kda", {"h0": np.zeros((2, 1, 3, 2))}, r"h0 must have shape \(2, 1, 2, 3\)"),
    ],
)
def test_refused(operator, changes, message):
    with pytest.raises(ValueError, match=message):
        Arguments(**fields(operator, **changes))


def test_gate_parameters_are_required_unless_bounded():
    with pytest.raises(ValueError, match="A_log is required"):
        Arguments(**fields(**RAW))
    Arguments(**fields(**RAW, lower_bound=-5.0))


@pytest.mark.parametrize("operator", ["gated_delta_rule", "kda", "gdn2"])
def test_no_gate_is_a_gate_of_one(operator):
    """In an exact system: the same numbers, and no gradient of what is not there."""
    rng = np.random.default_rng(0)
    arguments, do, dht = points.call(FIELD, rng, operator, (3, 2))
    gamma = FIELD.ones(np.shape(arguments.gamma))
    for algorithm in ("recurrence", "naive", "rewy"):
        without, ones = (
            evaluate(replace(arguments, gamma=x), do, dht, algorithm, system=FIELD)
            for x in (None, gamma)
        )
        assert ones.keys() - without.keys() == {"dg"}
        for name, x in without.items():
            assert (x == ones[name]).all(), name


def test_heads_must_divide():
    with pytest.raises(ValueError, match="multiple of q's 1 heads, got 0"):
        Arguments(**fields(v=np.ones((1, 5, 0, 3))))


def test_evaluate_refuses():
    arguments = Arguments(**fields())
    with pytest.raises(ValueError, match="algorithm must be"):
        evaluate(arguments, algorithm="fast")
    with pytest.raises(ValueError, match="do must have shape"):
        evaluate(arguments, np.ones((1, 5, 1, 2)))
    with pytest.raises(ValueError, match="dht must have shape"):
        evaluate(arguments, dht=np.ones((2, 1, 3, 2)))
    with pytest.raises(ValueError, match="field has no exponential"):
        evaluate(Arguments(**fields(use_qk_l2norm_in_kernel=True)), system=FIELD)
