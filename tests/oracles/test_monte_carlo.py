"""Monte-Carlo arithmetic: nothing without roundoff, else in proportion to it."""

import dataclasses

import numpy as np
import pytest

from oracles import OPERATORS, Exact, MonteCarlo, Precision, evaluate, points, spread
from oracles.numbers import EXTENDED, FLOAT64

NONE = Precision(operand=0.0, accumulate=0.0, store=0.0, gate=0.0, tiny=0.0)
POINTS = ("operand", "accumulate", "store", "gate", "carry")


def draw(operator, **options):
    """A call within the contract: short keys and small strengths, or the recurrence diverges."""
    rng = np.random.default_rng(0)
    arguments, do, dht = points.call(FLOAT64, rng, operator, (9, 0, 1, 6), groups=2, **options)
    return dataclasses.replace(arguments, k=arguments.k / 2), do, dht


def norms(deviations):
    return {name: np.sqrt((x.reshape(len(x), -1) ** 2).sum(1)) for name, x in deviations.items()}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("algorithm", ["naive", "rewy"])
def test_no_roundoff_is_the_exact_result(operator, algorithm):
    case = draw(operator)
    exact = evaluate(*case, algorithm)
    runs = evaluate(*case, algorithm, MonteCarlo(NONE, np.random.default_rng(0), 3))
    for name, value in exact.items():
        assert runs[name].shape == (3, *value.shape)
        # products with and without a samples axis may sum in another order
        np.testing.assert_allclose(runs[name], np.stack([value] * 3), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("point", POINTS)
def test_spread_is_proportional_to_each_roundoff(operator, point):
    case = draw(operator)
    small, large = (
        norms(spread(*case, dataclasses.replace(NONE, **{point: unit}), samples=6, seed=1)[1])
        for unit in (2.0**-30, 2.0**-20)
    )
    for name in small:
        live = small[name] > 1e-12
        if point == "gate" and operator == "delta_rule":
            assert not live.any()
        else:
            assert live.any(), name
        np.testing.assert_allclose(large[name][live], 2**10 * small[name][live], rtol=2e-2)


def test_samples_alternate_between_elementwise_and_common_noise():
    arithmetic = MonteCarlo(Precision.bfloat16(), np.random.default_rng(0), 8)
    noise = arithmetic.store(np.ones((1, 50, 40))) - 1
    assert np.abs(noise).max() <= 2.0**-8
    assert (noise[1::2].std(axis=(1, 2)) == 0).all()
    assert (noise[0::2].std(axis=(1, 2)) > 2.0**-8 / 2).all()
    assert np.abs(noise[0::2].mean(axis=(1, 2))).max() < 2.0**-8 / 10
    again = MonteCarlo(Precision.bfloat16(), np.random.default_rng(0), 8)
    assert np.array_equal(again.store(np.ones((1, 50, 40))) - 1, noise)


def test_an_operand_is_no_finer_than_its_accumulator():
    x = np.ones((1, 100, 1))
    for operand, accumulate in ((2.0**-8, 2.0**-24), (0.0, 2.0**-8)):
        precision = dataclasses.replace(NONE, operand=operand, accumulate=accumulate)
        arithmetic = MonteCarlo(precision, np.random.default_rng(0), 2)
        assert 2.0**-9 < np.abs(arithmetic.operand(x)[0] - 1).max() <= 2.0**-8
        # two operands and a sum of one term, each rounded
        product = arithmetic.product(x, np.ones((1, 1, 1)))
        assert 2.0**-8 < np.abs(product[0] - 1).max() <= 1.01 * 3 * 2.0**-8


def test_a_sum_errs_with_the_magnitude_of_its_terms_and_the_root_of_their_number():
    precision = dataclasses.replace(NONE, accumulate=2.0**-20)
    for n in (4, 64):
        arithmetic = MonteCarlo(precision, np.random.default_rng(0), 400)
        terms = np.resize([1.0, -1.0], (1, 1, n))
        for total in (arithmetic.matmul(terms, np.ones((1, n, 1))), arithmetic.sum(terms, -1)):
            bound = n * np.sqrt(n) * 2.0**-20
            assert 0.9 * bound < np.abs(total).max() <= bound


def test_a_state_that_products_are_summed_in_errs_at_each_row():
    arithmetic = MonteCarlo(
        dataclasses.replace(NONE, carry=2.0**-20), np.random.default_rng(0), 400
    )
    x = np.ones((1, 1, 1))
    assert np.array_equal(arithmetic.accumulate(x), np.ones((400, 1, 1)))
    for rows in (1, 16):
        bound = np.sqrt(rows) * 2.0**-20
        assert 0.9 * bound < np.abs(arithmetic.carry(x, rows) - 1).max() <= 1.001 * bound


def test_a_product_that_is_summed_in_another_errs_at_each_row_where_that_is_declared():
    x = np.ones((1, 1, 1))
    rng = np.random.default_rng(0)
    assert MonteCarlo(NONE, rng, 8).joined(x, 64) is x
    arithmetic = MonteCarlo(dataclasses.replace(NONE, carry=2.0**-20), rng, 400)
    for rows in (1, 16):
        bound = np.sqrt(rows) * 2.0**-20
        assert 0.9 * bound < np.abs(arithmetic.joined(x, rows) - 1).max() <= 1.001 * bound


def test_what_is_cut_off_is_never_more_than_it_was():
    precision = dataclasses.replace(NONE, operand=2.0**-10, cuts=True)
    arithmetic = MonteCarlo(precision, np.random.default_rng(0), 8)
    x = np.array([3.0, -5.0, 0.0])[None].repeat(50, axis=0)[None]
    off = arithmetic.operand(x) / np.where(x == 0, 1, x)
    off[..., 2] = 1  # of 0 nothing is cut off
    assert off.max() <= 1
    assert 1 - 2 * 2.0**-10 <= off[..., :2].min() < 1 - 1.8 * 2.0**-10
    assert abs(off[0, :, :2].mean() - (1 - 2.0**-10)) < 2.0**-13
    product = arithmetic.product(np.ones((1, 50, 1)), np.ones((1, 1, 1)))  # of two, each cut off
    assert 1 - 4 * 2.0**-10 <= product.min() < product.max() <= 1


def test_a_decay_errs_with_its_span_and_keeps_zero_and_one():
    arithmetic = MonteCarlo(Precision.float32(), np.random.default_rng(0), 64)
    gamma = np.exp(-np.array([0.0, 1.0, 0.0, 80.0]))[None, :, None]
    gamma = np.concatenate([gamma, np.zeros((1, 1, 1)), gamma[:, :1]], axis=1)
    assert np.allclose(arithmetic.span(gamma)[0, :, 0], [0, 1, 1, 81, 81, 81])
    rounded = arithmetic.decay(gamma)[..., 0]
    assert (rounded[:, [0, 2, 5]] == 1).all()
    assert (rounded[:, 4] == 0).all()
    errors = np.abs(rounded / np.where(gamma == 0, 1, gamma)[..., 0] - 1).max(axis=0) / 2.0**-24
    assert 1.5 < errors[1] <= 2.01
    assert 60 < errors[3] <= 82


def test_a_subnormal_decay_may_be_flushed():
    """Triton's exp2 on a GPU gives 0: of 6e-39 times 3, which float32 can hold, nothing is left."""
    decays = 2.0**-126 * np.array([0.0, 0.5, 1.0, 4.0])[None, :, None]
    for precision in (Precision.float64(), Precision.float32(), Precision.bfloat16()):
        arithmetic = MonteCarlo(precision, np.random.default_rng(0), 64)
        rounded = arithmetic.decay(decays)[..., 0] / decays[..., 0].clip(2.0**-127)
        assert (rounded[:, 0] == 0).all()
        assert np.abs(rounded[:, 3] - 1).max() < 1e-5
        flushed = precision != Precision.float64()
        assert (rounded[:, 1:3].min(axis=0) < 0.2).all() == flushed
        assert (np.abs(rounded[:, 1:3] - 1).max() < 1e-5) == (not flushed)


@pytest.mark.parametrize(
    "precision", ["float64", "float32", "tensor_float32", "bfloat16", "float16"]
)
def test_budget_covers_the_rewy_algorithm(precision):
    """At equal rounding points ReWY stays within a few times the naive spread, output by output."""
    precision = getattr(Precision, precision)()
    case = draw("gdn2", resets=0.1)
    truth, deviations = spread(*case, precision, samples=16)
    noise = precision.scaled(2.0**13) if precision == Precision.float64() else precision
    factor = 2.0**-13 if noise is not precision else 1.0
    runs = evaluate(*case, "rewy", MonteCarlo(noise, np.random.default_rng(9), 16))
    errors = norms({name: (runs[name] - truth[name]) * factor for name in truth})
    for name, budget in norms(deviations).items():
        assert np.isfinite(budget).all()
        assert errors[name].max() < 4 * budget.max(), name


def test_a_chunk_has_no_more_rows_than_an_implementation_gives_it():
    case = draw("kda")  # chunks of 4
    precision = Precision.bfloat16()
    fewer = dataclasses.replace(precision, rows=2)
    asked = dataclasses.replace(case[0], chunk_size=2)
    expected, as_asked = (
        spread(*x)[1] for x in ((asked, *case[1:], precision), (*case, precision))
    )
    found = spread(*case, fewer)[1]
    more = spread(*case, dataclasses.replace(precision, rows=64))[1]
    for name, deviation in found.items():
        assert np.array_equal(deviation, expected[name])
        assert np.array_equal(more[name], as_asked[name])
    assert any((found[name] != as_asked[name]).any() for name in found)


def test_truth_for_float64_is_in_extended_precision():
    case = draw("kda")
    truth, deviations = spread(*case, Precision.float64(), samples=4)
    assert truth["o"].dtype == EXTENDED.dtype
    plain = evaluate(*case)
    for name, budget in norms(deviations).items():
        error = np.sqrt(((plain[name] - truth[name]) ** 2).sum())
        assert error < 4 * budget.max(), name
        assert budget.max() < 1e-13 * np.sqrt((truth[name] ** 2).sum()), name


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("algorithm", ["naive", "rewy"])
def test_a_watcher_sees_every_product_and_every_result(operator, algorithm):
    """Whoever asks whether a case is free of rounding subclasses Exact and misses nothing."""

    class Watcher(Exact):
        def __init__(self):
            self.products, self.results = 0, []

        def matmul(self, x, y):
            self.products += 1
            return x @ y

        def output(self, x):
            self.results.append(x)
            return x

    case = draw(operator)
    watcher = Watcher()
    results = evaluate(*case, algorithm, watcher)
    exact = evaluate(*case, algorithm)
    for name, value in exact.items():
        assert np.array_equal(results[name], value)
        assert any(
            x.shape[1:] == value.shape and np.array_equal(x[0], value) for x in watcher.results
        )
    assert watcher.products > 4 * 15
