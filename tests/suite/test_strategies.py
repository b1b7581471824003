"""The strategies reach every regime, honour their filters, and shrink to the simplest case."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings

from properties import session
from properties.case import OPERATORS, Case
from properties.materialize import materialize
from properties.strategies import (
    BUDGET,
    EXACT_SCALES,
    all_regimes,
    cases,
    exact_cases,
    length_table,
)

PROFILE = dict(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
many = settings(settings.get_profile("default"), max_examples=1500, **PROFILE)
some = settings(settings.get_profile("default"), max_examples=100, **PROFILE)
RAW = {"gates": "raw", "gate_in_kernel": True}
operators = pytest.mark.parametrize("operator", OPERATORS)


def shrunk(strategy, predicate) -> Case:
    quick = settings(settings.get_profile("default"), max_examples=2000, **PROFILE)
    return find(strategy, predicate, settings=quick)


def draws(strategy, profile) -> list[Case]:
    drawn = []

    @profile
    @given(strategy)
    def collect(case):
        drawn.append(case)

    collect()
    return drawn


@operators
def test_every_regime_is_reached(operator):
    reached = set().union(*(case.regimes() for case in draws(cases(operator), many)))
    assert reached == all_regimes(operator)


@operators
def test_draws_are_cheap(operator):
    drawn = draws(cases(operator), some)
    for case in drawn:
        assert case.tokens * case.HV * max(case.head_size, case.value_size) <= BUDGET
    assert np.median([case.tokens for case in drawn]) <= 80


@operators
def test_draws_round_trip_and_materialise_inside_the_contract(operator):
    for case in draws(cases(operator), some):
        assert Case.from_json(case.to_json()) == case
        assert Case.from_dict(case.to_dict(short=True)) == case
        inputs = materialize(case)
        assert inputs.digest == materialize(case).digest
        for name, array in inputs.present().items():
            assert array.shape == case.shapes()[name]
            infinite = np.isinf(array) if case.gates == "raw_infinite" else np.isneginf(array)
            assert np.all(np.isfinite(array) | (infinite if name == "g" else False))
        if inputs.g is not None and not case.gate_in_kernel:
            assert np.all(inputs.g <= 0)
        if not case.qk_l2norm and not case.beta_sigmoid:
            norm = np.repeat((inputs.k**2).sum(-1), case.groups, axis=2)
            strength = inputs.b.max(-1) if operator == "gdn2" else inputs.beta
            assert np.all(strength * norm <= 2 + 1e-12)


@operators
def test_any_case_shrinks_to_the_default(operator):
    assert shrunk(cases(operator), lambda case: True) == Case(operator=operator)


@pytest.mark.parametrize(
    ("predicate", "wanted"),
    [
        (lambda case: case.T >= 6, {"lengths": (6,)}),
        (lambda case: case.T > 16, {"lengths": (17,)}),
        (lambda case: case.tokens == 0, {"lengths": (0,)}),
        (lambda case: case.heads > 1, {"heads": 2}),
        (lambda case: case.groups == 3, {"groups": 3}),
        (lambda case: case.head_size >= 17, {"head_size": 32}),
        (lambda case: case.value_size > case.head_size, {"value_size": 2}),
        (lambda case: case.chunk_size > 32, {"chunk_size": 64}),
        (lambda case: case.dtype == "bfloat16", {"dtype": "bfloat16"}),
        (lambda case: case.gates == "resets", {"gates": "resets"}),
        (lambda case: case.betas == "two", {"betas": "two"}),
        (lambda case: case.through != "output", {"through": "state"}),
        (lambda case: case.state_v_first, {"state_v_first": True}),
        (lambda case: case.layout == "permuted", {"layout": "permuted"}),
        (lambda case: case.qk_l2norm, {"qk_l2norm": True}),
        (lambda case: case.packed, {"packed": True}),
        (lambda case: case.packed and 0 in case.lengths[1:], {"packed": True, "lengths": (1, 0)}),
        (lambda case: case.scale is not None, {"scale": 1.0}),
        (lambda case: case.without_g, {"without_g": True}),
        (lambda case: case.int32_offsets, {"packed": True, "int32_offsets": True}),
        (lambda case: case.gate_in_kernel, RAW),
        (lambda case: case.gates == "raw_infinite", RAW | {"gates": "raw_infinite"}),
        (lambda case: case.lower_bound is not None, RAW | {"lower_bound": -1.0}),
        (lambda case: case.dt_bias_2d, RAW | {"dt_bias": True, "dt_bias_2d": True}),
    ],
)
def test_shrinking_changes_only_what_matters(predicate, wanted):
    assert shrunk(cases("kda"), predicate) == Case(operator="kda", **wanted)


@operators
def test_filters_hold_by_construction(operator):
    narrow = cases(
        operator,
        dtypes=("bfloat16", "float16"),
        max_tokens=40,
        packed=True,
        plain=True,
        layouts=("strided",),
        chunk_sizes=(32, 64),
        gates=("resets", "model"),
    )
    for case in draws(narrow, some):
        assert case.dtype in ("bfloat16", "float16")
        assert case.tokens <= 40
        assert case.packed
        assert case.layout == "strided"
        assert case.chunk_size in (32, 64)
        assert case.gates in (("resets", "model") if operator != "delta_rule" else ("zero",))
        assert not case.regimes() & {"qk_l2norm", "gate_in_kernel", "beta_sigmoid", "without_g"}
    assert not any(case.packed for case in draws(cases(operator, packed=False), some))


@operators
def test_exact_cases_hold_short_binary_fractions(operator):
    drawn = draws(exact_cases(operator), some)
    assert {case.dtype for case in drawn} == {"float64", "float32", "bfloat16", "float16"}
    for case in drawn:
        assert case.scale in EXACT_SCALES
        assert case.gates in ("zero", "powers_of_two")
        assert not case.gate_in_kernel
        inputs = materialize(case)
        for name, array in inputs.present().items():
            if name != "g":
                assert np.array_equal(2 * array, np.rint(2 * array))
                assert np.abs(array).max(initial=0) <= 3


@pytest.mark.parametrize("chunk_size", [16, 32, 64, 128])
def test_lengths_ascend_from_one(chunk_size):
    table = length_table(chunk_size)
    assert table[0] == 1
    assert sorted(table, key=lambda length: (length != 1, length)) == list(table)
    assert {0, 1, 2, chunk_size - 1, chunk_size, chunk_size + 1, 2 * chunk_size + 17} <= set(table)


class Narrow:
    """Says what it claims."""

    dtypes = ("bfloat16",)
    chunk_sizes = (64,)
    head_sizes = (64, 128)


@pytest.mark.parametrize("draw", [cases, exact_cases])
def test_the_search_keeps_to_what_is_claimed(monkeypatch, draw):
    monkeypatch.setattr(session._current, "found", {"narrow": Narrow()})
    for case in draws(draw("kda", max_tokens=100), some):
        assert (case.dtype, case.chunk_size) == ("bfloat16", 64)
        assert {case.head_size, case.value_size} <= {64, 128}
    session._current.found["other"] = SimpleNamespace(dtypes=("float16",))
    assert session.kept_to("dtypes") == {"bfloat16", "float16"}
    assert session.kept_to("chunk_sizes") is None


def test_where_nobody_can_claim_a_law_draws_what_it_wants(monkeypatch):
    monkeypatch.setattr(session._current, "found", {"narrow": Narrow()})
    for case in draws(cases("kda", dtypes=("float64",), chunk_sizes=(16, 32)), some):
        assert case.dtype == "float64"
        assert case.chunk_size in (16, 32)
