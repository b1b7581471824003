"""Where an implementation rounds: Monte-Carlo arithmetic, and one that changes nothing.

Each rounding point x of the naive algorithm becomes x (1 + u xi) with xi uniform in [-1, 1] and u
the unit roundoff there. The spread of a result over the samples is the error that an implementation
with these rounding points may show on this very input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

# Unit roundoffs 2^-p of types with p significant bits, rounding to nearest.
BFLOAT16 = 2.0**-8
FLOAT16 = TENSOR_FLOAT32 = 2.0**-11
FLOAT32 = 2.0**-24
FLOAT64 = 2.0**-53

# Smallest normal numbers: accelerators flush what is below to zero. In float16 none does, so that
# its smallest subnormal counts.
FLOAT32_TINY = 2.0**-126
FLOAT16_TINY = 2.0**-24
FLOAT64_TINY = 2.0**-1022

GRID = 2.0**-15  # xi is a multiple of this, a 16-bit integer


@dataclass(frozen=True)
class Precision:
    """The unit roundoffs of an implementation.

    operand: what a matrix unit is fed. accumulate: what it sums in. store: intermediates between
    its stages. gate: the cumulative sums of log gates and their exponential. tiny: absolute error
    of storing near zero. carry: of a state, for each row that a chunk adds to it, where the state
    itself is what a product is summed in; of an output or gradient alike, where one product is
    summed in another; 0 where each is summed first and then added. Drawn with either sign: where
    the error has one, hundreds of chunks may add up to more.
    cuts: whether an operand is cut off to its bits and not rounded, so that all errors have a sign.
    rows: the most that a chunk has, between which states are stored; None: what is asked for.
    flush: a decay below it may be 0: Triton's exp2 on a GPU gives no subnormal float32.
    """

    operand: float
    accumulate: float
    store: float
    gate: float
    tiny: float
    carry: float = 0.0
    cuts: bool = False
    rows: int | None = None
    flush: float = 0.0

    @classmethod
    def float64(cls) -> Precision:
        """Everything in float64."""
        return cls(FLOAT64, FLOAT64, FLOAT64, FLOAT64, FLOAT64_TINY)

    @classmethod
    def float32(cls) -> Precision:
        """Everything in float32, products included."""
        return cls(FLOAT32, FLOAT32, FLOAT32, FLOAT32, FLOAT32_TINY, flush=FLOAT32_TINY)

    @classmethod
    def tensor_float32(cls) -> Precision:
        """Stored in float32, multiplied in TF32, accumulated in float32."""
        return cls(TENSOR_FLOAT32, FLOAT32, FLOAT32, FLOAT32, FLOAT32_TINY, flush=FLOAT32_TINY)

    @classmethod
    def bfloat16(cls) -> Precision:
        """Stored and multiplied in bfloat16, accumulated in float32, gates in float32."""
        return cls(BFLOAT16, FLOAT32, BFLOAT16, FLOAT32, FLOAT32_TINY, flush=FLOAT32_TINY)

    @classmethod
    def float16(cls) -> Precision:
        """Stored and multiplied in float16, accumulated in float32, gates in float32."""
        return cls(FLOAT16, FLOAT32, FLOAT16, FLOAT32, FLOAT16_TINY, flush=FLOAT32_TINY)

    def scaled(self, factor: float) -> Precision:
        """Every roundoff times the factor."""
        units = ("operand", "accumulate", "store", "gate", "tiny", "carry")
        return replace(self, **{name: factor * getattr(self, name) for name in units})

    def on_tensor_cores(self, cuts: bool = False) -> Precision:
        """The same, where a tensor core adds to what is there itself: it cuts off what is below the
        last bit of that. ``cuts``: it also cuts off float32 operands to TF32, which nobody rounded.
        """
        return replace(self, carry=2 * FLOAT32, cuts=cuts)


class Exact:
    """No rounding: every method returns what the number system gives.

    A subclass sees each value that an implementation would round, and may look at it.
    """

    samples = 1

    def operand(self, x):
        """x as a matrix unit reads it."""
        return x

    def product(self, x, y):
        """x @ y of operands rounded apart."""
        return self.matmul(self.operand(x), self.operand(y))

    def matmul(self, x, y):
        """x @ y of operands that are rounded already."""
        return x @ y

    def sum(self, x, axis):
        """x summed over the axis or axes, which stay with length 1."""
        return x.sum(axis=axis, keepdims=True)

    def solve(self, L, A):
        """A = (I + L)^-1, the result of a substitution."""
        return A

    def store(self, x):
        """x as it is read back from memory."""
        return x

    def accumulate(self, x):
        """x, a sum of products, as an accumulator holds it."""
        return x

    def carry(self, x, rows):
        """x, a state to which a chunk of so many rows was added, as it goes to the next."""
        return self.accumulate(x)

    def joined(self, x, rows):
        """x, to which products of a chunk's rows were added beside others."""
        return x

    def output(self, x):
        """x, a result or a chunk's part of one."""
        return x

    def span(self, gamma):
        """What `decay` must know about the sums of log gates; nothing, here."""
        return gamma

    def decay(self, x, span=None):
        """x, a product of gate factors, as the exponential of a sum gives it."""
        return x


class MonteCarlo:
    """Random rounding, `samples` independent runs at once on the leading axis of every array.

    Arguments have a leading axis of length 1 or `samples`; results have `samples`. In even samples
    xi is drawn for each element; in odd samples once for the whole array, because errors that agree
    over an array (a biased product, a shifted gate) sometimes spread further than independent ones.
    """

    def __init__(self, precision: Precision, rng: np.random.Generator, samples: int):
        self.precision = precision
        self.rng = rng
        self.samples = samples
        self._buffers = {}
        # Freeing one large block (untouched, so it costs nothing) makes glibc keep freed memory
        # from here on; otherwise every temporary array gets fresh pages from the system, a third of
        # the time of a budget.
        np.empty(2**21)

    def operand(self, x):
        """x rounded to what a product keeps of it: the coarser of operand and accumulator."""
        return self._perturb(x, self._operand_unit, centre=self._operand_centre)

    def product(self, x, y):
        """x @ y of operands rounded apart."""
        unit, centre = self._operand_unit, self._operand_centre
        left = self._perturb(x, unit, buffer="left", centre=centre)
        return self.matmul(left, self._perturb(y, unit, buffer="right", centre=centre))

    def matmul(self, x, y):
        """x @ y of operands that are rounded already, summed in the accumulator's type.

        A sum of n terms errs by about sqrt(n) u times the sum of their magnitudes, whatever cancels
        in the end (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019).
        """
        return self._blur(x @ y, np.abs(x[:1]) @ np.abs(y[:1]), x.shape[-1])

    def sum(self, x, axis):
        """x summed over the axis or axes in the accumulator's type; errs as a product does."""
        magnitude = np.abs(x[:1]).sum(axis=axis, keepdims=True)
        total = x.sum(axis=axis, keepdims=True)
        return self._blur(total, magnitude, x[:1].size // max(magnitude.size, 1))

    def solve(self, L, A):
        """A = (I + L)^-1 as forward substitution in the accumulator's type finds it.

        Its error is of the size |A| |L| |A|, entry by entry (Higham, Accuracy and Stability of
        Numerical Algorithms, chapter 14), which is far above u |A| where an entry cancels.
        """
        left = np.abs(A[:1])
        return self._blur(A, left @ (np.abs(L[:1]) @ left), A.shape[-1])

    def store(self, x):
        """x rounded to the storage type, with an absolute error near zero."""
        return self._perturb(x, self.precision.store, self.precision.tiny)

    def accumulate(self, x):
        """x rounded to the accumulator's type."""
        return self._perturb(x, self.precision.accumulate)

    def carry(self, x, rows):
        """x rounded to the accumulator's type, at each of its rows where that is declared."""
        return self._perturb(x, self.precision.accumulate + math.sqrt(rows) * self.precision.carry)

    def joined(self, x, rows):
        """x rounded to the accumulator's type at each of the rows, where that is declared."""
        unit = math.sqrt(rows) * self.precision.carry
        return self._perturb(x, unit) if unit else x

    def output(self, x):
        """x itself: whoever compares a result knows the type that it is rounded to."""
        return x

    def span(self, gamma):
        """Magnitude of the running sum of log gates [..., C, 1 or K]; a stored sum errs with it.

        A factor of 0 is a reset, not a summand.
        """
        keeps = gamma > 0
        logs = np.where(keeps, -np.log(np.where(keeps, gamma, 1)), 0)
        return np.abs(np.cumsum(logs, axis=-2))

    def decay(self, x, span=None):
        """x in [0, 1] as exp of a rounded sum of magnitude `span` (by default |log x|).

        0 stays 0, and 1 stays 1: exp(0) is exact, and G_i - G_i is 0 whatever G_i was rounded to.
        What may be flushed errs by all of itself.
        """
        if span is None:
            span = np.abs(np.log(np.where(x > 0, x, 1)))
        unit = self.precision.gate * np.where(x == 1, 0, 1 + span)
        # As a rounded sum gives it, what is a little above may be below.
        return self._perturb(x, np.where(x < 2 * self.precision.flush, 1, unit))

    def _blur(self, total, magnitude, terms):
        """total + sqrt(terms) u magnitude xi, u the accumulator's unit roundoff."""
        shape = total.shape[1:]
        out = np.empty((self.samples, *shape), total.dtype)
        unit = magnitude * (math.sqrt(terms) * self.precision.accumulate * GRID)
        for parity, draw in enumerate((self._each, self._shared)):
            blurred = out[parity::2]
            np.multiply(draw((len(blurred), *shape)), unit, out=blurred)
            blurred += _every_other(total, parity)
        return out

    @property
    def _operand_unit(self):
        return max(self.precision.operand, self.precision.accumulate)

    @property
    def _operand_centre(self):
        return 1 - self._operand_unit if self.precision.cuts else 1

    def _perturb(self, x, unit, tiny=0.0, buffer=None, centre=1):
        """x (centre + unit xi) + tiny xi, in the named buffer or in a new array."""
        shape = np.broadcast_shapes(x.shape, np.shape(unit))[1:]
        out = self._array(buffer, (self.samples, *shape), x.dtype)
        for parity, draw in enumerate((self._each, self._shared)):
            rounded, xi = out[parity::2], draw((len(out[parity::2]), *shape))
            room = rounded if parity == 0 else None  # a factor for each sample needs none
            factor = np.multiply(xi, _every_other(unit, parity) * GRID, out=room)
            factor += centre
            np.multiply(factor, _every_other(x, parity), out=rounded)
            if tiny:
                noise = self._array("noise", xi.shape, x.dtype)
                rounded += np.multiply(xi, tiny * GRID, out=noise)
        return out

    def _each(self, shape):
        """xi / GRID for every element, cut from raw bits: cheaper than drawing floats."""
        size = math.prod(shape)
        return self.rng.bit_generator.random_raw(-(-size // 4)).view(np.int16)[:size].reshape(shape)

    def _shared(self, shape):
        """xi / GRID for every sample."""
        return self.rng.uniform(-1 / GRID, 1 / GRID, (shape[0], *(1 for _ in shape[1:])))

    def _array(self, name, shape, dtype):
        """An uninitialised array, cut from memory kept under the name."""
        if name is None:
            return np.empty(shape, dtype)
        size = math.prod(shape)
        memory = self._buffers.get((name, dtype))
        if memory is None or memory.size < size:
            memory = self._buffers[name, dtype] = np.empty(size, dtype)
        return memory[:size].reshape(shape)


def _every_other(x, parity):
    """The samples of one parity of an array; all of what has none."""
    return x[parity::2] if np.ndim(x) and len(x) > 1 else x
