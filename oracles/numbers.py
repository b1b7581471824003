"""Number systems: float64, extended precision, the rationals, a prime field.

With gates taken as free factors gamma = exp(g), forward and backward are polynomials in the inputs,
so an oracle written with +, -, * and @ on NumPy arrays runs unchanged in every system below. In the
rationals equality is ==; in GF(2^61 - 1) two formulas of degree d that differ agree at a random
point with probability <= d / 2^61.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

MODULUS = 2**61 - 1  # a Mersenne prime: residues fit the one machine word that flint.nmod holds


@dataclass(frozen=True)
class NumberSystem:
    """What an oracle may compute in: elements, arrays of them, and random points.

    `exact` says whether +, - and * are free of rounding, that is whether == is the right
    comparison.
    """

    name: str
    exact: bool

    def array(self, values) -> np.ndarray:
        """Ints, Fractions, floats, or arrays of them, as an array of elements of the same shape."""
        raise NotImplementedError

    def random(self, rng: np.random.Generator, shape) -> np.ndarray:
        """Random non-zero elements: they may be divided by, so they serve for gate factors too."""
        raise NotImplementedError

    def zeros(self, shape) -> np.ndarray:
        """An array of zeros that are elements of this system."""
        return self.array(np.zeros(shape, dtype=int))

    def ones(self, shape) -> np.ndarray:
        """An array of ones that are elements of this system."""
        return self.array(np.ones(shape, dtype=int))

    def eye(self, n: int) -> np.ndarray:
        """The identity matrix [n, n]."""
        return self.array(np.eye(n, dtype=int))


@dataclass(frozen=True)
class Floats(NumberSystem):
    """A NumPy floating-point type."""

    dtype: type

    def array(self, values) -> np.ndarray:
        return np.asarray(values, dtype=self.dtype)

    def random(self, rng: np.random.Generator, shape) -> np.ndarray:
        """Magnitudes uniform in [1/4, 1), either sign."""
        magnitude = rng.uniform(0.25, 1.0, shape)
        return self.array(np.where(rng.integers(0, 2, shape) == 1, magnitude, -magnitude))


@dataclass(frozen=True)
class Flint(NumberSystem):
    """Elements of python-flint in object arrays; flint is imported with the first element."""

    def element(self, value):
        """An int, Fraction, finite float (the dyadic that it is) or element, as an element."""
        if isinstance(value, self._type):
            return value
        if isinstance(value, (int, np.integer)):
            return self._quotient(int(value), 1)
        if isinstance(value, Fraction):
            return self._quotient(value.numerator, value.denominator)
        return self._quotient(*value.as_integer_ratio())

    def array(self, values) -> np.ndarray:
        """Raises OverflowError for an infinity, ValueError for a NaN: neither is an element."""
        values = np.asarray(values, dtype=object)
        elements = np.empty(values.shape, dtype=object)
        elements.flat = [self.element(value) for value in values.flat]
        return elements

    @cached_property
    def _type(self) -> type:
        return type(self._quotient(0, 1))

    def _quotient(self, numerator: int, denominator: int):
        raise NotImplementedError


class Rationals(Flint):
    """The rationals, flint.fmpq."""

    def _quotient(self, numerator: int, denominator: int):
        from flint import fmpq

        return fmpq(numerator, denominator)

    def random(self, rng: np.random.Generator, shape) -> np.ndarray:
        """Numerator in -7..7 without 0, denominator in 1..4: few bits, or sums explode."""
        sign = 2 * rng.integers(0, 2, shape) - 1
        numerator, denominator = sign * rng.integers(1, 8, shape), rng.integers(1, 5, shape)
        return self.array(self.array(numerator) / self.array(denominator))


class PrimeField(Flint):
    """The integers modulo 2^61 - 1, flint.nmod; the fraction a/b is a times the inverse of b."""

    def _quotient(self, numerator: int, denominator: int):
        from flint import nmod

        return nmod(numerator, MODULUS) / nmod(denominator, MODULUS)

    def random(self, rng: np.random.Generator, shape) -> np.ndarray:
        """Uniform in 1 .. 2^61 - 2."""
        return self.array(rng.integers(1, MODULUS, shape))


FLOAT64 = Floats("float64", exact=False, dtype=np.float64)
EXTENDED = Floats("extended", exact=False, dtype=np.longdouble)
RATIONAL = Rationals("rational", exact=True)
FIELD = PrimeField("field", exact=True)


def zero(*arrays: np.ndarray):
    """The zero of the arrays' own system, where NumPy would put the int 0 in object arrays."""
    for array in arrays:
        if array.dtype != object:
            return array.dtype.type(0)
        if array.size:
            return array.flat[0] * 0
    return 0


def lower(x: np.ndarray, diagonal: int = 0) -> np.ndarray:
    """np.tril whose zeros are elements: keeps entries [..., i, j] with j <= i + diagonal."""
    mask = np.tri(*x.shape[-2:], k=diagonal, dtype=bool)
    return np.where(mask, x, np.asarray(zero(x), dtype=x.dtype))


def transpose(x: np.ndarray) -> np.ndarray:
    """The matrices of a stack, transposed."""
    return np.swapaxes(x, -1, -2)


def sum_to(x: np.ndarray, size: int) -> np.ndarray:
    """Sum the last axis when it was broadcast from size 1: the adjoint of that broadcast."""
    return x if x.shape[-1] == size else x.sum(axis=-1, keepdims=True)
