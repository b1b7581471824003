"""A Case refuses what makes no experiment, and survives JSON exactly."""

import json
from dataclasses import replace

import pytest

from properties.case import OPERATORS, Case

ELABORATE = Case(
    operator="kda",
    lengths=(0, 17, 1, 64),
    packed=True,
    heads=2,
    groups=3,
    head_size=60,
    value_size=48,
    dtype="bfloat16",
    keys="correlated",
    key_spread=-7,
    gates="raw",
    gate_in_kernel=True,
    dt_bias=True,
    dt_bias_2d=True,
    int32_offsets=True,
    lower_bound=-5.0,
    initial_state="random",
    through="both",
    scale=0.1,
    state_v_first=True,
    cut=33,
    seed=2**32 - 1,
)


@pytest.mark.parametrize("operator", OPERATORS)
def test_default_case_round_trips(operator):
    case = Case(operator=operator)
    assert case.to_dict(short=True) == {"operator": operator}
    assert Case.from_dict({"operator": operator}) == case
    assert Case.from_json(case.to_json()) == case


def test_elaborate_case_round_trips():
    text = ELABORATE.to_json()
    assert Case.from_json(text) == ELABORATE
    assert Case.from_json(text).to_json() == text
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert Case.from_dict(ELABORATE.to_dict(short=True)) == ELABORATE


def test_short_forms_hold_what_differs_from_the_default():
    short = ELABORATE.to_json(short=True)
    assert json.loads(short) == ELABORATE.to_dict(short=True)
    assert Case.from_json(short) == ELABORATE
    assert repr(Case(operator="kda")) == "Case(operator='kda')"
    case = Case(operator="gdn2", lengths=(0, 3), packed=True)
    assert repr(case) == "Case(operator='gdn2', lengths=(0, 3), packed=True)"
    assert eval(repr(ELABORATE)) == ELABORATE


def test_float_fields_keep_every_bit():
    for scale in (0.1, 1 / 3, 5e-324, 1.7976931348623157e308):
        case = Case(operator="kda", scale=scale)
        assert Case.from_json(case.to_json()).scale.hex() == scale.hex()


def test_whole_number_is_accepted_for_a_float_field():
    scale = Case.from_json('{"operator": "kda", "scale": 2}').scale
    assert scale == 2.0
    assert type(scale) is float


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("operator", {"operator": "gla"}),
        ("lengths", {"lengths": []}),
        ("lengths", {"lengths": [3, -1], "packed": True}),
        ("lengths", {"lengths": [3, 4]}),
        ("lengths", {"lengths": 3}),
        ("heads", {"heads": 0}),
        ("heads", {"heads": True}),
        ("groups", {"groups": 5}),
        ("head_size", {"head_size": 2.0}),
        ("chunk_size", {"chunk_size": 24}),
        ("chunk_size", {"chunk_size": 16.0}),
        ("packed", {"packed": 1}),
        ("dtype", {"dtype": "float8"}),
        ("gate_dtype", {"gate_dtype": "float64"}),
        ("gate_dtype", {"dtype": "float64"}),
        ("gates", {"gates": "steep"}),
        ("gates", {"gates": "raw"}),
        ("gates", {"gate_in_kernel": True}),
        ("gates", {"operator": "delta_rule", "gates": "resets"}),
        ("gate_in_kernel", {"operator": "delta_rule", "gate_in_kernel": True}),
        ("gate_scale", {"gate_scale": 1}),
        ("key_spread", {"key_spread": -3}),
        ("key_spread", {"keys": "correlated"}),
        ("keys", {"keys": "norms"}),
        ("keys", {"keys": "hot", "beta_sigmoid": True}),
        ("scale", {"scale": "1"}),
        ("scale", {"scale": float("nan")}),
        ("dt_bias", {"dt_bias": True}),
        ("lower_bound", {"lower_bound": -1.0}),
        ("lower_bound", {"lower_bound": 1.0, "gates": "raw", "gate_in_kernel": True}),
        ("without_A_log", {"without_A_log": True}),
        ("gates", {"gates": "raw_infinite"}),
        ("gates", {"gates": "zero", "gate_in_kernel": True}),
        ("without_g", {"operator": "delta_rule", "without_g": True}),
        ("without_g", {"gates": "barely", "without_g": True}),
        ("without_g", {"gates": "raw", "gate_in_kernel": True, "without_g": True}),
        ("dt_bias_2d", {"gates": "raw", "gate_in_kernel": True, "dt_bias_2d": True}),
        (
            "dt_bias_2d",
            {"operator": "gated_delta_rule", "dt_bias": True, "dt_bias_2d": True}
            | {"gates": "raw", "gate_in_kernel": True},
        ),
        ("int32_offsets", {"int32_offsets": True}),
        ("int32_offsets", {"int32_offsets": 1, "packed": True}),
        ("neg_eigval", {"neg_eigval": True}),
        ("cut", {"cut": 2}),
        ("seed", {"seed": 2**32}),
        ("colour", {"colour": "red"}),
    ],
)
def test_wrong_field_is_named(field, fields):
    with pytest.raises(ValueError, match=rf"^{field}: "):
        Case.from_json(json.dumps({"operator": "kda"} | fields))


@pytest.mark.parametrize("operator", ["gated_delta_rule", "kda", "gdn2"])
def test_every_gate_may_be_bounded_and_every_gate_absent(operator):
    bounded = Case(operator=operator, gates="raw_infinite", gate_in_kernel=True, lower_bound=-1.0)
    assert {"lower_bound", "gates:raw_infinite"} <= bounded.regimes()
    without = Case(operator=operator, without_g=True)
    assert "without_g" in without.regimes()
    assert "g" not in without.shapes()
    assert "g" in Case(operator=operator).shapes()


def test_fields_at_their_defaults_are_left_out():
    """What lets a new field leave every file of the corpus valid, under its own name."""
    short = ELABORATE.to_dict(short=True)
    assert {"dt_bias_2d", "int32_offsets"} <= short.keys()
    assert not {"without_g", "betas", "beta_sigmoid", "layout"} & short.keys()


def test_missing_operator_is_named():
    with pytest.raises(ValueError, match="operator: missing"):
        Case.from_json("{}")


@pytest.mark.parametrize("text", ["[]", "3", "null"])
def test_other_json_is_refused(text):
    with pytest.raises(ValueError, match="case: got"):
        Case.from_json(text)


def test_text_that_is_not_json_is_refused():
    with pytest.raises(ValueError, match="Expecting"):
        Case.from_json("{")


def test_packed_geometry():
    case = Case(operator="kda", lengths=(0, 17, 1), packed=True)
    assert (case.B, case.T, case.N, case.tokens) == (1, 18, 3, 18)
    assert case.offsets == (0, 0, 17, 18)
    assert case.sequences() == ((0, 0, 0), (0, 0, 17), (0, 17, 18))
    assert case.chunks() == ((0, 0, 16), (0, 16, 17), (0, 17, 18))


def test_batch_geometry():
    case = Case(operator="kda", lengths=(17, 17))
    assert (case.B, case.T, case.N, case.tokens) == (2, 17, 2, 34)
    assert case.chunks() == ((0, 0, 16), (0, 16, 17), (1, 0, 16), (1, 16, 17))


def test_shapes_and_types_follow_the_options():
    T, H, HV, K, V, N = 82, 2, 6, 60, 48, 4
    assert ELABORATE.shapes() == {
        "q": (1, T, H, K),
        "k": (1, T, H, K),
        "v": (1, T, HV, V),
        "g": (1, T, HV, K),
        "beta": (1, T, HV),
        "h0": (N, HV, V, K),
        "A_log": (HV,),
        "dt_bias": (HV, K),
        "do": (1, T, HV, V),
        "dht": (N, HV, V, K),
    }
    flat = replace(ELABORATE, dt_bias_2d=False)
    assert flat.shapes() == ELABORATE.shapes() | {"dt_bias": (HV * K,)}
    types = ELABORATE.dtypes()
    assert (types["q"], types["do"], types["g"], types["h0"]) == (
        "bfloat16",
        "bfloat16",
        *["float32"] * 2,
    )
    gdn2 = Case(operator="gdn2", lengths=(3,), head_size=2, value_size=5, through="state").shapes()
    assert (gdn2["b"], gdn2["w"], gdn2["dht"]) == ((1, 3, 1, 2), (1, 3, 1, 5), (1, 1, 2, 5))
    assert not {"beta", "do", "h0"} & gdn2.keys()
    assert Case(operator="gated_delta_rule").shapes()["g"] == (1, 1, 1)
    assert "g" not in Case(operator="delta_rule").shapes()


def test_double_precision_has_double_states():
    case = Case(operator="kda", dtype="float64", gate_dtype="float64", initial_state="zeros")
    assert set(case.dtypes().values()) == {"float64"}


def test_regimes_of_a_packed_case():
    found = Case(operator="kda", lengths=(0, 1, 31, 0), packed=True, gates="past_700").regimes()
    assert {"packed:empty_first", "packed:empty_last", "packed:one_token_middle"} <= found
    assert {"length:0", "length:1", "remainder:15", "remainder:C-1"} <= found
    assert {"sum_past_88", "sum_past_700", "K=V", "cut:start"} <= found
    assert not {"packed:all_empty", "packed:empty_middle", "many_chunks"} & found
