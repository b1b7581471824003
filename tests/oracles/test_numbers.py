"""Number systems: what becomes an element, and that arrays stay arrays of elements."""

from fractions import Fraction

import flint
import numpy as np
import pytest

from oracles import EXTENDED, FIELD, FLOAT64, RATIONAL
from oracles.numbers import MODULUS, lower, sum_to, zero

SYSTEMS = (FLOAT64, EXTENDED, RATIONAL, FIELD)


@pytest.fixture(params=SYSTEMS, ids=lambda system: system.name)
def system(request):
    return request.param


def test_values_mean_the_same_everywhere(system):
    values = [3, -2, Fraction(3, 4), 0.375, np.float32(-1.5), np.int64(7)]
    array = system.array(values)
    assert array.shape == (6,)
    fractions = system.array([Fraction(x) for x in (3, -2, 0.75, 0.375, -1.5, 7)])
    assert np.array_equal(array, fractions)
    assert np.array_equal(system.array(array), array)
    assert np.array_equal(array[2:3] * system.array(4), system.array([3]))


def test_random_elements_are_units(system):
    x = system.random(np.random.default_rng(0), (5, 4))
    assert x.shape == (5, 4)
    assert (x != 0).all()
    assert np.array_equal(x / x, system.ones((5, 4)))
    assert len({str(y) for y in x.flat}) > 10
    assert np.array_equal(x, system.random(np.random.default_rng(0), (5, 4)))


def test_scalars_and_empty_arrays(system):
    assert system.random(np.random.default_rng(0), ()).shape == ()
    assert system.zeros((2, 0, 3)).shape == (2, 0, 3)
    assert system.eye(2)[()].tolist() == [[1, 0], [0, 1]]


def test_masked_entries_are_elements(system):
    x = system.random(np.random.default_rng(1), (2, 3, 3))
    for diagonal in (0, -1):
        masked = lower(x, diagonal)
        assert {type(y) for y in masked.flat} == {type(y) for y in x.flat}
        assert np.array_equal(masked != 0, np.broadcast_to(np.tri(3, k=diagonal) == 1, x.shape))


def test_masking_drops_what_is_not_finite():
    assert np.array_equal(lower(np.full((2, 2), np.inf), -1), [[0, 0], [np.inf, 0]])


def test_zero_of_an_array(system):
    empty, full = system.zeros((0,)), system.ones((1,))
    assert zero(empty, full) == 0
    assert type(zero(full)) is type(full[0])


def test_sum_to_undoes_broadcasting(system):
    x = system.random(np.random.default_rng(2), (2, 3))
    assert sum_to(x, 3) is x
    assert np.array_equal(sum_to(x, 1)[:, 0], x[:, 0] + x[:, 1] + x[:, 2])


def test_the_field_is_a_field():
    assert MODULUS == 2**61 - 1
    third = FIELD.array(Fraction(1, 3))[()]
    assert third * 3 == 1
    assert isinstance(third, flint.nmod)
    assert FIELD.array(MODULUS + 5)[()] == 5


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_exact_systems_refuse_what_is_not_finite(value):
    for system in (RATIONAL, FIELD):
        with pytest.raises((OverflowError, ValueError)):
            system.array([value])
