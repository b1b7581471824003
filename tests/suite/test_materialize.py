"""Materialised values: the same bits for ever, exact in their types, inside the contract."""

from dataclasses import replace

import numpy as np
import pytest

from properties.case import ARGUMENTS, EXPANDED, OPERATORS, Case
from properties.materialize import Stream, materialize, round_to
from properties.profiles import BETAS, GATES, KEYS, LN2, RAW, VALUES

SIZES = dict(lengths=(37,), heads=2, groups=2, head_size=5, value_size=3, seed=7)
DIGESTS = {
    "delta_rule": "c0a4c8452eda3e3160b7573a1e51fca722a873be47394d7b84927ffa3da6af88",
    "gated_delta_rule": "e4779600e1fe246192dab26f2d0162adc9b262720c512a445e545953eae47706",
    "kda": "eda9fbed85894c6beb14f37f26ba13ec27d78a21a7b80560dfb46e4b005f73da",
    "gdn2": "3fd826a580ec6dcb2e6630daaa93fd649a485a59cf34e5a707571470beda220c",
    "raw": "44f2113b86da5109aadb540bb7a035cf6585ef82b45110ae696d3ac5f067fd02",
}


def everything(operator: str, **fields) -> Case:
    gates = "zero" if operator == "delta_rule" else "resets"
    return Case(
        operator=operator,
        **SIZES | {"gates": gates, "through": "both", "initial_state": "random"} | fields,
    )


def as_bfloat16(x: np.ndarray) -> np.ndarray:
    """Nearest bfloat16 of float32 numbers, by bits; an independent way from `round_to`."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("operator", OPERATORS)
def test_digest_is_stable(operator):
    assert materialize(everything(operator)).digest == DIGESTS[operator]


def test_digest_of_the_raw_options_is_stable():
    case = everything("gdn2", gates="raw", gate_in_kernel=True, dt_bias=True, beta_sigmoid=True)
    assert materialize(case).digest == DIGESTS["raw"]


def test_digest_covers_every_argument():
    case = everything("kda", dtype="float64", gate_dtype="float64")
    digests = {materialize(replace(case, **change)).digest for change in (
        {}, {"seed": 8}, {"keys": "equal"}, {"gates": "barely"}, {"betas": "one"},
        {"values": "integers"}, {"through": "output"}, {"initial_state": "zeros"},
    )}  # fmt: skip
    assert len(digests) == 8
    assert materialize(replace(case, chunk_size=64)).digest in digests


def test_an_argument_does_not_shift_another():
    small = materialize(everything("gdn2"))
    large = materialize(everything("gdn2", gates="raw", gate_in_kernel=True, dt_bias=True))
    for name in ("q", "k", "v", "b", "w", "h0", "do", "dht"):
        assert np.array_equal(small[name], large[name])


def test_streams_of_names_and_seeds_differ():
    words = [Stream(seed, name).words((4,)) for seed in (0, 1) for name in ("q", "k")]
    assert len({tuple(map(int, w)) for w in words}) == 4


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_are_exact_in_their_types(operator, dtype):
    case = everything(operator, dtype=dtype, gate_dtype=dtype)
    inputs = materialize(case)
    assert {name: array.shape for name, array in inputs.present().items()} == case.shapes()
    for name, array in inputs.present().items():
        assert array.dtype == np.float64
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        assert np.array_equal(array, round_to(array, inputs.dtypes[name]))


def test_absent_arguments_are_none():
    inputs = materialize(Case(operator="delta_rule"))
    assert [name for name in inputs if inputs[name] is not None] == ["q", "k", "v", "beta", "do"]
    assert tuple(inputs) == ARGUMENTS
    with pytest.raises(KeyError):
        inputs["dq"]


def test_rounding_agrees_with_numpy():
    rng = np.random.RandomState(0)
    x = rng.standard_normal(20_000) * 2.0 ** rng.randint(-170, 130, 20_000)
    edges = np.array(
        [0.0, -0.0, np.inf, -np.inf, 65519.0, 65520.0, -65520.0, 2.0**-25, 3e-8, 3.4e38]
    )
    ties = (np.arange(64) + 0.5) * 2.0**-24
    x = np.concatenate([x, edges, ties, 1 + np.arange(64) * 2.0**-12, [3.4028235677973366e38]])
    with np.errstate(over="ignore"):
        for dtype in (np.float16, np.float32):
            wanted = x.astype(dtype).astype(np.float64)
            assert np.array_equal(round_to(x, dtype.__name__), wanted)
        single = x.astype(np.float32).astype(np.float64)
    assert np.array_equal(round_to(single, "bfloat16"), as_bfloat16(single))
    assert np.signbit(round_to(np.array([-0.0]), "float16"))[0]


def test_rounding_toward_zero_never_lengthens():
    x = np.concatenate([np.random.RandomState(1).standard_normal(5000), [1e6, -1e6]])
    for dtype in ("float16", "bfloat16", "float32"):
        y = round_to(x, dtype, toward_zero=True)
        assert np.all(np.abs(y) <= np.abs(x))
        assert np.array_equal(y, round_to(y, dtype))
        assert np.all(np.isfinite(y))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("keys", sorted(set(KEYS) - {"norms"}))
@pytest.mark.parametrize("betas", sorted(BETAS))
def test_erase_strength_times_key_norm_is_at_most_two(dtype, keys, betas):
    for operator in ("kda", "gdn2"):
        case = Case(
            operator=operator,
            **SIZES,
            keys=keys,
            key_spread=-4 if keys == "correlated" else None,
            betas=betas,
            dtype=dtype,
            gate_dtype="float64" if dtype == "float64" else "bfloat16",
        )
        inputs = materialize(case)
        norm = np.repeat((inputs.k**2).sum(-1), case.groups, axis=2)
        strength = inputs.beta if operator == "kda" else inputs.b.max(-1)
        assert np.all(strength * norm <= 2 + 1e-12)
        assert np.all(strength >= 0)


@pytest.mark.parametrize("gates", sorted(set(GATES) - set(RAW)))
@pytest.mark.parametrize("gate_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("operator", ["gated_delta_rule", "kda"])
def test_gates_are_never_positive(gates, gate_dtype, operator):
    g = materialize(everything(operator, gates=gates, gate_dtype=gate_dtype)).g
    assert np.all(g <= 0)
    assert not np.any(np.signbit(g) & (g == 0))
    assert np.all(np.isfinite(g)) or gates in ("resets", "powers_of_two")


def test_special_gates_hold_what_they_promise():
    def gates(profile, **fields):
        return materialize(everything("kda", gates=profile, **fields)).g

    assert np.all(gates("constant") == -5)
    assert np.all(gates("constant", gate_scale=-1) == -2.5)
    assert np.isneginf(gates("resets", lengths=(1,), heads=1, groups=1, head_size=1)).all()
    assert np.all((gates("steep_channel") == -30).sum(-1) == 1)
    barely = gates("barely")
    assert barely.max() <= -(2.0**-24)
    assert barely.min() >= -(2.0**-12)
    for chunk_size in (16, 32, 64, 128):
        for limit in (88, 700):
            g = gates(f"past_{limit}", lengths=(chunk_size,), chunk_size=chunk_size)
            assert np.all(g.sum(1) < -limit)
    saturated = gates("saturated", lengths=(33,))
    deep = np.stack([saturated[:, a:b].max((1, 3)) <= -5 for _, a, b in ((0, 0, 16), (0, 16, 32))])
    assert deep.any()
    assert saturated.min() >= -40


@pytest.mark.parametrize("gate_dtype", ["float32", "bfloat16", "float16"])
def test_powers_of_two_are_exact_and_few(gate_dtype):
    case = everything("kda", lengths=(40, 40), gates="powers_of_two", gate_dtype=gate_dtype)
    g = materialize(case).g
    half = -round_to(np.array(LN2), gate_dtype)
    assert set(np.unique(g)) == {0.0, -np.inf, float(half)}
    for row, start, stop in case.chunks():
        assert (g[row, start:stop] == half).sum(0).max() <= 2


def test_hot_keys_are_one_or_two_simple_entries():
    k = materialize(everything("kda", keys="hot", lengths=(200,))).k
    assert set(np.unique(k)) == {-1.0, -0.5, 0.0, 0.5, 1.0}
    assert set(np.unique((k != 0).sum(-1))) == {1, 2}
    q = materialize(everything("kda", keys="hot")).q
    assert np.array_equal(q, np.rint(q))


def test_special_keys_hold_what_they_promise():
    def keys(profile, **fields):
        return materialize(everything("kda", keys=profile, **fields)).k

    equal = keys("equal")
    assert np.array_equal(equal, np.broadcast_to(equal[:, :1], equal.shape))
    assert not np.array_equal(equal[:, :, 0], equal[:, :, 1])
    near = keys("correlated", key_spread=-10)
    assert 0 < np.abs(near - near[:, :1]).max() < 2.0**-7
    zero = (keys("zero_rows") == 0).all(-1)
    assert zero.any()
    assert not zero.all()
    norm = np.sqrt((keys("norms", qk_l2norm=True, lengths=(200,)) ** 2).sum(-1))
    wanted = np.array([0, 1e-8, 1e-3, 1, 1e3])
    nearest = np.abs(norm[..., None] - wanted).argmin(-1)
    assert set(np.unique(nearest)) == set(range(5))
    assert np.allclose(norm, wanted[nearest], rtol=2.0**-20, atol=0)


def test_state_v_first_only_transposes_the_states():
    plain, turned = (materialize(everything("kda", state_v_first=flag)) for flag in (False, True))
    for name in plain.present():
        other = plain[name].swapaxes(-1, -2) if name in ("h0", "dht") else plain[name]
        assert np.array_equal(turned[name], other)


def test_expanded_arguments_repeat_along_their_last_axis():
    inputs = materialize(everything("gdn2", layout="expanded"))
    for name in ("q", "k", "v", "w", "do"):
        repeated = np.array_equal(
            inputs[name], np.repeat(inputs[name][..., :1], inputs[name].shape[-1], -1)
        )
        assert repeated == (name in EXPANDED)


@pytest.mark.parametrize("values", sorted(VALUES))
@pytest.mark.parametrize("betas", ["uniform", "mixed", "halves"])
def test_heads_differ(values, betas):
    inputs = materialize(everything("gdn2", gates="log_uniform", values=values, betas=betas))
    for name in ("q", "k", "v", "g", "b", "w", "do"):
        array = inputs[name]
        assert all(
            not np.array_equal(array[:, :, 0], array[:, :, h]) for h in range(1, array.shape[2])
        )
    for name in ("h0", "dht"):
        assert not np.array_equal(inputs[name][:, 0], inputs[name][:, 1])


def test_logits_reach_their_special_values():
    def logits(betas):
        return materialize(everything("kda", betas=betas, beta_sigmoid=True, lengths=(200,))).beta

    assert set(np.unique(logits("zero"))) == {-100.0}
    assert {-100.0, -20.0, 0.0, 20.0, 100.0} <= set(np.unique(logits("mixed")))
    halves = logits("halves")
    assert np.all(halves == 0)
    assert np.signbit(halves).any()
    assert not np.signbit(halves).all()


@pytest.mark.parametrize("gate_dtype", ["float32", "bfloat16", "float16"])
def test_infinite_raw_gates_are_raw_gates_with_infinities(gate_dtype):
    def gates(profile, **fields):
        fields = {"lengths": (200,)} | fields
        return materialize(
            everything("kda", gates=profile, gate_in_kernel=True, gate_dtype=gate_dtype, **fields)
        ).g

    g = gates("raw_infinite")
    assert {-np.inf, np.inf, -200.0, 50.0} <= set(np.unique(g))
    assert not np.isnan(g).any()
    assert 1 / 16 < np.isinf(g).mean() < 1 / 4
    one = dict(lengths=(1,), heads=1, groups=1, head_size=1)
    assert np.isinf(gates("raw_infinite", **one)).all()
    assert np.isfinite(gates("raw")).all()


def test_form_of_an_argument_changes_no_value():
    raw = everything("kda", gates="raw", gate_in_kernel=True, dt_bias=True)
    flat, square = (materialize(replace(raw, dt_bias_2d=two)).dt_bias for two in (False, True))
    assert square.shape == (4, 5)
    assert np.array_equal(square.ravel(), flat)
    packed = everything("kda", packed=True)
    assert materialize(packed).digest == materialize(replace(packed, int32_offsets=True)).digest
    zero = everything("gdn2", gates="zero")
    without = materialize(replace(zero, without_g=True)).present()
    given = materialize(zero).present()
    assert given.keys() - without.keys() == {"g"}
    assert all(np.array_equal(x, given[name]) for name, x in without.items())


def test_raw_gates_reach_their_special_values():
    case = everything("kda", gates="raw", gate_in_kernel=True, dt_bias=True, heads=20, groups=4)
    inputs = materialize(case)
    assert {-200.0, 50.0} <= set(np.unique(inputs.g))
    assert inputs.A_log.max() == 100
    assert inputs.A_log.min() >= -4
    assert inputs.dt_bias.shape == (80 * 5,)


@pytest.mark.parametrize("operator", OPERATORS)
def test_empty_cases_have_arrays(operator):
    for gates in ("zero",) if operator == "delta_rule" else sorted(set(GATES) - set(RAW)):
        for lengths, packed in (((0,), False), ((0, 0), False), ((0, 0), True)):
            case = everything(operator, lengths=lengths, packed=packed, gates=gates)
            inputs = materialize(case)
            assert inputs.q.shape == (case.B, 0, 2, 5)
            assert inputs.h0.shape == (case.N, 4, 5, 3)
