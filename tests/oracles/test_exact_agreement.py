"""In exact arithmetic the three algorithms are one function, output by output."""

import numpy as np
import pytest

from oracles import FIELD, OPERATORS, RATIONAL, evaluate, points

ALGORITHMS = ("recurrence", "naive", "rewy")
GRADIENTS = {
    "delta_rule": {"dq", "dk", "dv", "dbeta"},
    "gated_delta_rule": {"dq", "dk", "dv", "dbeta", "dg"},
    "kda": {"dq", "dk", "dv", "dbeta", "dg"},
    "gdn2": {"dq", "dk", "dv", "db", "dw", "dg"},
}
PACKINGS = {
    "empty first": (0, 3, 1, 5),
    "empty in the middle": (1, 0, 0, 6),
    "empty last": (4, 1, 0),
    "one-token members": (1, 1, 1),
    "all empty": (0, 0),
}


def assert_algorithms_agree(system, arguments, do, dht):
    expected, *others = (evaluate(arguments, do, dht, name, system=system) for name in ALGORITHMS)
    for name, other in zip(ALGORITHMS[1:], others, strict=True):
        assert other.keys() == expected.keys()
        for quantity, value in expected.items():
            assert other[quantity].shape == value.shape, (name, quantity)
            assert np.array_equal(other[quantity], value), (name, quantity)
    return expected


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("chunk_size", [4, 8])
@pytest.mark.parametrize("remainder", range(8))
def test_every_remainder_in_the_field(operator, chunk_size, remainder):
    rng = np.random.default_rng(remainder)
    T = chunk_size + remainder % chunk_size
    case = points.call(
        FIELD, rng, operator, (T,), groups=1 + remainder % 3, chunk_size=chunk_size, resets=0.2
    )
    assert_algorithms_agree(FIELD, *case)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("T", range(7))
def test_every_remainder_in_the_rationals(operator, T):
    rng = np.random.default_rng(T)
    case = points.call(RATIONAL, rng, operator, (T,), K=2, V=2, chunk_size=4, resets=0.2)
    assert_algorithms_agree(RATIONAL, *case)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("lengths", PACKINGS.values(), ids=PACKINGS)
def test_packed_sequences(operator, lengths):
    rng = np.random.default_rng(1)
    arguments, do, dht = points.call(FIELD, rng, operator, lengths, heads=2, groups=2, resets=0.1)
    result = assert_algorithms_agree(FIELD, arguments, do, dht)
    for n, length in enumerate(lengths):
        if length == 0:
            assert np.array_equal(result["ht"][n], arguments.h0[n])
            assert np.array_equal(result["dh0"][n], dht[n])


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("through", ["output", "state", "both"])
@pytest.mark.parametrize("state", [False, True])
def test_gradients_through_output_and_state(operator, through, state):
    rng = np.random.default_rng(2)
    arguments, do, dht = points.call(FIELD, rng, operator, (6, 6), packed=False, state=state)
    do, dht = (None if through == "state" else do), (None if through == "output" else dht)
    result = assert_algorithms_agree(FIELD, arguments, do, dht)
    gradients = GRADIENTS[operator] | ({"dh0"} if state else set())
    assert result.keys() == gradients | {"o", "ht"}
    if through == "state":
        assert not result["dq"].any()
    assert result["dv"].all()


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_forward_only(operator, algorithm):
    arguments, _, _ = points.call(FIELD, np.random.default_rng(3), operator, (5,))
    assert evaluate(arguments, algorithm=algorithm, system=FIELD).keys() == {"o", "ht"}


@pytest.mark.parametrize("operator", OPERATORS)
def test_packing_is_the_sequences_apart(operator):
    lengths = (3, 0, 1, 6)
    arguments, do, dht = points.call(FIELD, np.random.default_rng(4), operator, lengths, groups=2)
    whole = evaluate(arguments, do, dht, "rewy", system=FIELD)
    names = ("q", "k", "v", "gamma", "beta", "b", "w")
    for n, (lo, hi) in enumerate(zip(arguments.offsets[:-1], arguments.offsets[1:], strict=True)):
        tokens = {x: getattr(arguments, x) for x in names if getattr(arguments, x) is not None}
        part = type(arguments)(
            operator,
            **{name: x[:, lo:hi] for name, x in tokens.items()},
            h0=arguments.h0[n : n + 1],
            scale=arguments.scale,
            chunk_size=4,
        )
        alone = evaluate(part, do[:, lo:hi], dht[n : n + 1], system=FIELD)
        for quantity, value in alone.items():
            states = quantity in ("ht", "dh0")
            expected = whole[quantity][n : n + 1] if states else whole[quantity][:, lo:hi]
            assert np.array_equal(value, expected), quantity


@pytest.mark.parametrize("operator", OPERATORS)
def test_groups_are_repeated_heads_with_summed_gradients(operator):
    rng = np.random.default_rng(5)
    arguments, do, dht = points.call(FIELD, rng, operator, (5,), heads=2, groups=3)
    grouped = evaluate(arguments, do, dht, system=FIELD)
    fields = {name: getattr(arguments, name) for name in arguments.__dataclass_fields__}
    fields |= {name: np.repeat(fields[name], 3, axis=2) for name in ("q", "k")}
    repeated = evaluate(type(arguments)(**fields), do, dht, system=FIELD)
    for name in ("dq", "dk"):
        B, T, HV, K = repeated[name].shape
        repeated[name] = repeated[name].reshape(B, T, HV // 3, 3, K).sum(axis=3)
    assert all(np.array_equal(grouped[name], repeated[name]) for name in grouped)


@pytest.mark.parametrize("system", [RATIONAL, FIELD], ids=lambda system: system.name)
def test_results_are_elements_even_where_nothing_was_computed(system):
    arguments, do, dht = points.call(system, np.random.default_rng(6), "kda", (1,), state=False)
    for algorithm in ALGORITHMS:
        for name, value in evaluate(arguments, do, dht, algorithm, system=system).items():
            assert {type(x) for x in value.flat} == {type(arguments.scale)}, name
