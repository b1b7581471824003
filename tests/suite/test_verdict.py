"""The verdict: right results pass, every way of being wrong fails with a message to act on."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from oracles import Precision
from properties import truth
from properties.case import Case
from properties.materialize import round_to
from properties.verdict import (
    FORMATS,
    KAPPA,
    MISMATCHES,
    QUANTITIES,
    BrokenBudget,
    Mismatch,
    Verdict,
    groups,
    judge,
    judge_bits,
    output_type,
)

# Two heads in groups of two, three chunks with a short tail, K != V, every gradient but gdn2's.
CASE = Case(
    operator="kda",
    lengths=(35,),
    heads=2,
    groups=2,
    head_size=5,
    value_size=3,
    gates="raw",
    gate_in_kernel=True,
    dt_bias=True,
    initial_state="random",
    through="both",
    seed=1,
)
SHORT = Case(operator="delta_rule", lengths=(3,), head_size=2, value_size=2, through="both", seed=1)


def budget(case: Case = CASE):
    """(truth, deviations) of a float32 implementation."""
    return truth.budget(case, Precision.float32())


def right(case: Case = CASE) -> dict[str, np.ndarray]:
    """What an implementation that rounds nowhere but at the end would return."""
    return {
        name: np.array(round_to(np.asarray(x, np.float64), output_type(case, name)))
        for name, x in budget(case)[0].items()
    }


def failure(results, case: Case = CASE) -> Mismatch:
    with pytest.raises(Mismatch) as caught:
        judge(case, results, *budget(case)).check()
    return caught.value


def test_rounded_truth_passes():
    verdict = judge(CASE, right(), *budget())
    verdict.check()
    assert verdict.scores.keys() == budget()[0].keys()
    assert 0 < verdict.score <= 1


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_rounded_truth_passes_in_every_type(dtype):
    case = replace(CASE, dtype=dtype, gate_dtype="float64" if dtype == "float64" else "float16")
    precision = Precision.float64() if dtype == "float64" else Precision.float32()
    judge(case, right(case), *truth.budget(case, precision)).check()


def test_monte_carlo_samples_of_the_naive_algorithm_pass():
    """Each sample is an admissible result, by what the budget means."""
    exact, deviations = budget()
    for n in range(truth.SAMPLES):
        judge(CASE, {x: exact[x] + deviations[x][n] for x in exact}, exact, deviations).check()


@pytest.mark.parametrize("name", budget()[0])
def test_each_quantity_is_judged_alone(name):
    results = right()
    results[name] = 1.01 * results[name]
    error = failure(results)
    assert type(error) is MISMATCHES[name]
    assert error.quantity == name
    assert error.score > 1
    assert "also wrong" not in str(error)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["o", "ht", "dg", "dA_log"])
def test_one_element_that_is_not_finite_fails(name, value):
    results = right()
    results[name].flat[-1] = value
    error = failure(results)
    assert (error.quantity, error.score) == (name, np.inf)
    place = [n - 1 for n in results[name].shape]
    assert f"got {value:.9g}, truth" in str(error)
    assert "worst in" in str(error)
    if name in ("ht", "dA_log"):
        assert "head 3" in str(error)
    else:
        assert f"row 0, tokens 32..34, head {place[2]}" in str(error)


def test_everything_not_a_number_fails():
    assert failure({name: np.full_like(x, np.nan) for name, x in right().items()}).score == np.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: None, "missing"),
        (lambda x: x.tolist(), "not an array of floats but list"),
        (lambda x: float(x.flat[0]), "not an array of floats but float"),
        (lambda x: np.rint(x).astype(int), "not an array of floats but ndarray"),
        (lambda x: x.astype(object), "not an array of floats but ndarray"),
        (lambda x: x[:, :-1], "shape [1, 34, 2, 5], wanted [1, 35, 2, 5]"),
        (lambda x: x.swapaxes(1, 2), "shape [1, 2, 35, 5], wanted [1, 35, 2, 5]"),
        (lambda x: x[..., :1], "shape [1, 35, 2, 1], wanted [1, 35, 2, 5]"),
        (lambda x: x[:0], "shape [0, 35, 2, 5], wanted [1, 35, 2, 5]"),
    ],
)
@pytest.mark.parametrize("bits", [False, True])
def test_wrong_form_fails(change, message, bits):
    results = right()
    results["dq"] = change(results["dq"])
    judged = (judge_bits, right(), "equal") if bits else (judge, *budget())
    with pytest.raises(MISMATCHES["dq"]) as caught:
        judged[0](CASE, results, *judged[1:])
    assert str(caught.value).startswith("dq: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", budget()[0])
def test_missing_quantity_fails(name):
    results = right()
    del results[name]
    assert str(failure(results)) == f"{name}: missing"


@pytest.mark.parametrize("name", ["dw", "dz"])
def test_quantity_that_nobody_asked_for_fails(name):
    error = failure({**right(), name: np.zeros(3)})
    assert str(error) == f"{name}: nobody asked for it"
    assert type(error) is MISMATCHES.get(name, Mismatch)


def test_nothing_at_all_fails():
    assert "missing" in str(failure({}))


@pytest.mark.parametrize("pair", [("dq", "dk"), ("dh0", "ht"), ("dv", "o")])
def test_swapped_results_fail(pair):
    one, other = pair
    results = right()
    results[one], results[other] = results[other], results[one]
    error = failure(results)
    assert error.quantity in pair
    assert "also wrong" in str(error)


def test_results_judged_as_the_truth_fail_too():
    """Arguments of judge the wrong way round: a wrong value is wrong from either side."""
    exact, deviations = budget()
    wrong = {**right(), "dv": right()["dv"] + 1}
    with pytest.raises(MISMATCHES["dv"]):
        judge(CASE, exact, wrong, deviations).check()


@pytest.mark.parametrize("name", ["o", "dq", "dk", "dv", "dg", "dbeta"])
def test_wrong_tail_chunk_does_not_hide(name):
    """The tail's error is far below that of the whole tensor's norm allows."""
    exact, deviations = (dict(x) for x in budget())
    tail = (0, slice(32, None), 0)
    results = right()
    for arrays in (exact, results):
        arrays[name] = np.array(arrays[name], np.float64)
        arrays[name][tail] *= 1e-6
    deviations[name] = deviations[name].copy()
    deviations[name][(slice(None), *tail)] *= 1e-6
    judge(CASE, results, exact, deviations).check()
    results[name][tail] *= 1.01
    with pytest.raises(MISMATCHES[name], match=r"row 0, tokens 32\.\.34, head 0"):
        judge(CASE, results, exact, deviations).check()


@pytest.mark.parametrize("name", ["o", "ht", "dh0", "dv", "ddt_bias"])
def test_single_wrong_head_does_not_hide(name):
    results = right()
    heads_axis = {"o": 2, "dv": 2, "ht": 1, "dh0": 1, "ddt_bias": 0}[name]
    index = [slice(None)] * results[name].ndim
    index[heads_axis] = slice(10, 15) if name == "ddt_bias" else 2  # of [HV * K] or of HV
    results[name][tuple(index)] *= 1.01
    assert re.search(r"head 2\b", str(failure(results)))


@pytest.mark.parametrize("packed", [False, True])
def test_parts_cover_every_element_once(packed):
    case = replace(CASE, lengths=(0, 17, 16, 1) if packed else (35, 35), packed=packed)
    shapes = case.shapes()
    shapes |= {"o": shapes["v"], "ht": shapes["h0"]}
    for name in ("o", "ht", "dq", "dk", "dv", "dg", "dbeta", "dh0", "dA_log", "ddt_bias"):
        seen = np.zeros(shapes.get(name, shapes.get(name[1:])), dtype=int)
        for _, index in groups(case, name):
            seen[index] += 1
        assert (seen == 1).all(), name


def test_message_says_quantity_place_and_both_values():
    results = right()
    results["dk"][0, 33, 1, 4] = 1234.5
    message = str(failure(results))
    exact = budget()[0]["dk"][0, 33, 1, 4]
    assert message.startswith("dk: score ")
    assert "(right is <= 1); worst in row 0, tokens 32..34, head 1 at [1, 4]" in message
    assert f"got 1234.5, truth {exact:.9g}" in message


def test_worst_quantity_is_raised_and_the_others_are_named():
    results = right()
    results["dq"] = 1.001 * results["dq"]
    results["dv"] = 3 * results["dv"]
    error = failure(results)
    assert error.quantity == "dv"
    assert re.search(r"; also wrong: dq [\d.e+]+$", str(error))


def test_error_within_the_budget_passes_and_just_beyond_it_fails():
    exact, deviations = (dict(x) for x in budget(SHORT))
    results = right(SHORT)
    spread = np.sqrt((deviations["dv"] ** 2).sum(axis=(1, 2, 3, 4)).mean())
    form = FORMATS["float32"]
    allowed = KAPPA * spread + np.linalg.norm(form.unit * np.abs(exact["dv"]) + form.tiny)
    direction = np.ones_like(exact["dv"]) / np.sqrt(exact["dv"].size)
    for factor, passes in ((0.999, True), (1.001, False)):
        results["dv"] = exact["dv"] + factor * allowed * direction
        score = judge(SHORT, results, exact, deviations).scores["dv"]
        assert score == pytest.approx(factor, rel=1e-6)
        assert (score <= 1) is passes


def test_score_scales_with_kappa():
    results = {**right(SHORT), "dq": right(SHORT)["dq"] + 1}
    exact, deviations = budget(SHORT)
    one, two = (judge(SHORT, results, exact, deviations, kappa=x).scores["dq"] for x in (1, 2))
    assert 1.5 < one / two <= 2


def test_score_that_is_not_a_number_fails():
    with pytest.raises(MISMATCHES["o"]):
        Verdict(scores={"o": float("nan")}, worst={"o": "nowhere"}).check()


HALF = replace(SHORT, dtype="float16")


def half(value: float, got: float) -> tuple[dict, dict, dict]:
    """(results, truth, deviations) of float16 outputs, one of them `value` and given as `got`."""
    exact = {"o": np.ones((1, 3, 1, 2))}
    exact["o"][0, 1, 0, 0] = value
    results = {"o": exact["o"].copy()}
    results["o"][0, 1, 0, 0] = got
    return results, exact, {"o": np.zeros((8, 1, 3, 1, 2))}


@pytest.mark.parametrize("got", [np.inf, 65504.0, np.nan])
def test_what_the_type_cannot_hold_has_no_right_answer(got):
    assert judge(HALF, *half(70_000.0, got)).score == 0


@pytest.mark.parametrize("deviation", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("got", [1.0, np.nan])
def test_budget_that_is_not_finite_is_an_error_of_the_suite(deviation, got):
    """Neither a pass, even of a right result, nor a failure of the implementation's."""
    results, exact, deviations = half(1.0, got)
    deviations["o"][5, 0, 1, 0, 0] = deviation
    place = r"o in row 0, tokens 0\.\.2, head 0: .* 1 of 6 elements, the first at \[1, 0\]: truth 1"
    with pytest.raises(BrokenBudget, match=place) as caught:
        judge(HALF, results, exact, deviations)
    assert not isinstance(caught.value, Mismatch)


@pytest.mark.parametrize("value", [70_000.0, np.inf, np.nan])
@pytest.mark.parametrize("deviation", [np.inf, np.nan])
def test_budget_may_be_anything_where_the_truth_has_no_right_answer(value, deviation):
    results, exact, deviations = half(value, np.inf)
    deviations["o"][5, 0, 1, 0, 0] = deviation
    assert judge(HALF, results, exact, deviations).score == 0
    results["o"][0, 2, 0, 1] = 1.01
    with pytest.raises(MISMATCHES["o"]):
        judge(HALF, results, exact, deviations).check()


@pytest.mark.parametrize("got", [np.inf, np.nan, 59_000.0])
def test_what_the_type_holds_has_one(got):
    with pytest.raises(MISMATCHES["o"]):
        judge(HALF, *half(60_000.0, got)).check()


def test_neighbours_of_an_overflow_are_still_judged():
    results, exact, deviations = half(70_000.0, np.inf)
    results["o"][0, 2, 0, 1] = 1.01
    with pytest.raises(MISMATCHES["o"], match=r"row 0, tokens 0\.\.2, head 0"):
        judge(HALF, results, exact, deviations).check()


@pytest.mark.parametrize("lengths", [(0,), (0, 0)])
def test_empty_results_pass_and_are_compared_in_shape(lengths):
    case = replace(CASE, lengths=lengths, packed=True, initial_state="none", through="output")
    exact, deviations = budget(case)
    assert exact["o"].shape == (1, 0, 4, 3)
    results = right(case)
    judge(case, results, exact, deviations).check()
    judge_bits(case, results, exact, "the truth")
    with pytest.raises(MISMATCHES["o"], match="shape"):
        judge(case, {**results, "o": np.empty((1, 0, 4, 2))}, exact, deviations)
    with pytest.raises(MISMATCHES["ht"]):
        judge(case, {**results, "ht": results["ht"] + 1}, exact, deviations).check()


def test_equal_bits_pass():
    judge_bits(CASE, right(), right(), "those of the first call")


@pytest.mark.parametrize("name", budget()[0])
def test_last_bit_of_one_element_fails(name):
    results = right()
    results[name].flat[-1] = np.nextafter(results[name].flat[-1], np.inf)
    with pytest.raises(MISMATCHES[name]) as caught:
        judge_bits(CASE, results, right(), "those of the first call")
    place = [n - 1 for n in results[name].shape]
    message = str(caught.value)
    size = results[name].size
    assert message.startswith(f"{name}: 1 of {size} elements are not those of the first call")
    assert f"the first at {place}: {results[name].flat[-1]!r}, wanted" in message
    assert message.endswith(repr(right()[name].flat[-1]))


def one(value: float) -> dict[str, np.ndarray]:
    return {"o": np.full((1, 3, 1, 2), value)}


@pytest.mark.parametrize(
    ("got", "wanted", "equal"),
    [
        (np.nan, np.nan, True),
        (np.inf, np.inf, True),
        (0.0, -0.0, True),
        (np.inf, -np.inf, False),
        (np.nan, 1.0, False),
        (1.0, np.nan, False),
        (np.inf, 1.0, False),
        (1e-300, 0.0, False),
    ],
)
def test_special_values_as_bits(got, wanted, equal):
    if equal:
        judge_bits(SHORT, one(got), one(wanted), "equal")
        return
    with pytest.raises(MISMATCHES["o"]):
        judge_bits(SHORT, one(got), one(wanted), "equal")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_only_subnormal_differences_are_let_through(dtype):
    case = replace(SHORT, dtype=dtype, gate_dtype="float64" if dtype == "float64" else "float32")
    tiny = FORMATS[dtype].tiny
    judge_bits(case, one(tiny), one(0.0), "equal", subnormals=False)
    with pytest.raises(MISMATCHES["o"]):
        judge_bits(case, one(2 * tiny), one(0.0), "equal", subnormals=False)
    with pytest.raises(MISMATCHES["o"]):
        judge_bits(case, one(tiny), one(0.0), "equal")


def test_mismatches_are_one_type_a_quantity():
    assert MISMATCHES.keys() == set(QUANTITIES)
    assert len(set(MISMATCHES.values())) == len(QUANTITIES)
    for name, kind in MISMATCHES.items():
        assert issubclass(kind, Mismatch)
        assert issubclass(kind, AssertionError)
        assert kind.quantity == name
        assert MISMATCHES[name] is kind
    error = MISMATCHES["dk"]("dk: wrong", 3.0)
    assert (error.score, error.implementation) == (3.0, None)


@pytest.mark.parametrize("gate_dtype", ["float32", "bfloat16"])
def test_output_types(gate_dtype):
    case = replace(CASE, dtype="bfloat16", gate_dtype=gate_dtype)
    assert {output_type(case, x) for x in ("o", "dq", "dk", "dv")} == {"bfloat16"}
    assert {output_type(case, x) for x in ("dg", "dbeta", "db", "dw")} == {gate_dtype}
    assert {output_type(case, x) for x in ("ht", "dh0", "dA_log", "ddt_bias")} == {"float32"}
