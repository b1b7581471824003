"""Named distributions of keys, gates, write strengths and values, each a small function.

A profile turns a stream of raw bits into float64 by operations that IEEE 754 rounds exactly (+ - *
/ sqrt, scaling by powers of two), so that a profile and a seed mean the same numbers on every
platform. To add one, add a function and name it in the table at the end of its family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from properties.case import Case
    from properties.materialize import Stream

LN2 = 0.6931471805599453
BELOW_ONE = 1 - 2.0**-48  # takes a row norm that rounding pushed above 1 back below it
NORMS = (0.0, 1e-8, 1e-3, 1.0, 1e3)
LOGITS = {
    "zero": (-100.0,),
    "tiny": (-20.0,),
    "one": (20.0,),
    "two": (100.0,),
    "halves": (0.0, -0.0),
}


def square_norm(rows: np.ndarray) -> np.ndarray:
    """Sum of squares over the last axis, column by column: NumPy's own sum may change its order."""
    total = np.zeros(rows.shape[:-1])
    for column in range(rows.shape[-1]):
        total = total + rows[..., column] * rows[..., column]
    return total


def unit(rows: np.ndarray) -> np.ndarray:
    """Each row of the last axis divided by its norm; a zero row becomes the first basis vector."""
    norm = np.sqrt(square_norm(rows))[..., None]
    basis = np.zeros(rows.shape[-1:])
    basis[:1] = 1.0
    rows = np.where(norm > 0, rows / np.where(norm > 0, norm, 1.0), basis)
    return np.where(square_norm(rows)[..., None] > 1, rows * BELOW_ONE, rows)


def _at_least_one(stream: Stream, chosen: np.ndarray) -> np.ndarray:
    if chosen.size:
        chosen.flat[stream.integers((), 0, chosen.size - 1)] = True
    return chosen


# Keys: [B, T, H, K]. No row is longer than 1, except for `hot` (sqrt 2) and `norms` (raw).


def orthogonal(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Independent random unit rows, nearly orthogonal once K is large."""
    return unit(stream.bell(shape))


def equal(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """One unit row per batch member and head, repeated at every token."""
    return np.broadcast_to(unit(stream.bell((shape[0], 1, *shape[2:]))), shape)


def correlated(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """unit(mean + 2**key_spread * noise): nearly equal rows."""
    mean = unit(stream.bell((shape[0], 1, *shape[2:])))
    return unit(mean + np.ldexp(stream.bell(shape), case.key_spread))


def zero_rows(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Random unit rows of which a quarter, and at least one, are zero."""
    zero = _at_least_one(stream, stream.chance(shape[:-1], 1, 4))
    return np.where(zero[..., None], 0.0, unit(stream.bell(shape)))


def hot(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Exact rows: one or two entries of +-1 or +-1/2 among zeros."""
    rows = np.zeros(shape)
    first = stream.integers(shape[:-1], 0, shape[-1] - 1)
    np.put_along_axis(rows, first[..., None], _signed(stream, shape[:-1])[..., None], axis=-1)
    second = (first + stream.integers(shape[:-1], 0, shape[-1] - 1)) % shape[-1]
    value = np.where(
        second == first,
        np.take_along_axis(rows, first[..., None], -1)[..., 0],
        _signed(stream, second.shape),
    )
    value = np.where(stream.chance(second.shape, 1, 2) | (second == first), value, 0.0)
    np.put_along_axis(rows, second[..., None], value[..., None], axis=-1)
    return rows


def _signed(stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
    return stream.choose(shape, (1.0, -1.0, 0.5, -0.5))


def norms(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of norm 0, 1e-8, 1e-3, 1 and 1e3, for kernels that normalise them themselves."""
    return unit(stream.bell(shape)) * stream.choose((*shape[:-1], 1), NORMS)


KEYS = {f.__name__: f for f in (orthogonal, equal, correlated, zero_rows, hot, norms)}


def queries(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Bell-shaped; small integers with `hot` keys, the hostile norms with `norms` keys."""
    if case.keys == "hot":
        return stream.integers(shape, -3, 3).astype(np.float64)
    return norms(stream, case, shape) if case.keys == "norms" else stream.bell(shape)


# Gates: natural logarithms <= 0, [B, T, HV] or [B, T, HV, K]; only those of `RAW`, not yet
# activated, are of either sign.


def zero(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """No decay at all."""
    return np.zeros(shape)


def constant(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Every gate exactly -5 * 2**gate_scale."""
    return np.full(shape, np.ldexp(-5.0, case.gate_scale))


def log_uniform(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """A magnitude in [2**-13, 32) per head and channel, times a factor in [1/4, 5/4) per token."""
    return -stream.log_uniform((1, 1, *shape[2:]), -13, 4) * (0.25 + stream.uniform(shape))


def model(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """-A dt as in a new model: A in [0, 16] per head, dt log-uniform in [2**-10, 2**-3)."""
    rate = 16 * stream.uniform((1, 1, shape[2], *(1,) * (len(shape) - 3)))
    return -rate * stream.log_uniform(shape, -10, -4)


def saturated(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Whole chunks of a head, at least one, in [-40, -5]; the other chunks in [-1/16, 0]."""
    chunks = case.chunks()
    deep = _at_least_one(stream, stream.chance((len(chunks), shape[2]), 1, 2))
    where = np.zeros(shape[:3], dtype=bool)
    for (row, start, stop), heads in zip(chunks, deep, strict=True):
        where[row, start:stop] = heads
    where = where.reshape(where.shape + (1,) * (len(shape) - 3))
    share = stream.uniform(shape)
    return np.where(where, -(5 + 35 * share), -share / 16)


def steep_channel(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """-30 in one channel of each head (in one head, for a gate per head), 0 elsewhere."""
    chosen = stream.integers(shape[2:-1], 0, shape[-1] - 1)
    steep = np.arange(shape[-1]) == chosen[..., None]
    return np.broadcast_to(np.where(steep, -30.0, 0.0), shape)


def resets(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """-inf with probability 1/8, at least once; [-1/16, 0] elsewhere."""
    reset = _at_least_one(stream, stream.chance(shape, 1, 8))
    return np.where(reset, -np.inf, -stream.uniform(shape) / 16)


def barely(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Just below zero: magnitudes log-uniform in [2**-24, 2**-12)."""
    return -stream.log_uniform(shape, -24, -13)


def past_88(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """About -5 a token: a full chunk sums past -88, where the inverse decay leaves float32."""
    return -(max(4.0, 96 / case.chunk_size) + 2 * stream.uniform(shape))


def past_700(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """So steep that a full chunk sums past -700, where the inverse decay leaves float64."""
    return -(768 / case.chunk_size + 38 * stream.uniform(shape))


def powers_of_two(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Exact: 0, -inf or -ln 2, with at most two -ln 2 and one -inf per chunk and channel."""
    gates = np.zeros(shape)
    for row, start, stop in case.chunks():
        for value, numerator in ((-LN2, 3), (-LN2, 1), (-np.inf, 1)):
            token = stream.integers((1, *shape[2:]), 0, stop - start - 1)
            present = stream.chance(token.shape, numerator, 4)
            old = np.take_along_axis(gates[row, start:stop], token, 0)
            np.put_along_axis(gates[row, start:stop], token, np.where(present, value, old), 0)
    return gates


def raw(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Input of an in-kernel activation: 4 * bell with -200 and +50 strewn in."""
    special = stream.choose(shape, (-200.0, 50.0))
    return np.where(stream.chance(shape, 1, 8), special, 4 * stream.bell(shape))


def raw_infinite(stream: Stream, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """`raw` with -inf, no decay, and +inf, a reset or the lower bound, strewn in, at least one."""
    infinite = _at_least_one(stream, stream.chance(shape, 1, 8))
    return np.where(infinite, stream.choose(shape, (-np.inf, np.inf)), raw(stream, case, shape))


GATES = {
    f.__name__: f
    for f in (
        zero,
        constant,
        barely,
        model,
        log_uniform,
        saturated,
        steep_channel,
        resets,
        past_88,
        past_700,
    )
} | {"powers_of_two": powers_of_two, "raw": raw, "raw_infinite": raw_infinite}
RAW = ("raw", "raw_infinite")  # profiles of what the kernel activates itself


# Write and erase strengths, per head or per channel, in [0, 2].


def uniform(stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform in (0, 1)."""
    return stream.uniform(shape)


def mixed(stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
    """0, 1, 2 or 2**-20 with probability 1/2, independently for each entry, else uniform."""
    special = stream.choose(shape, (0.0, 1.0, 2.0, 2.0**-20))
    return np.where(stream.chance(shape, 1, 2), special, stream.uniform(shape))


def halves(stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
    """Exact: 0, 1/2, 1 or 2."""
    return stream.choose(shape, (0.0, 0.5, 1.0, 2.0))


BETAS = {
    "uniform": uniform,
    "mixed": mixed,
    "zero": lambda stream, shape: np.zeros(shape),
    "tiny": lambda stream, shape: np.full(shape, 2.0**-20),
    "one": lambda stream, shape: np.ones(shape),
    "two": lambda stream, shape: np.full(shape, 2.0),
    "halves": halves,
}


def logits(stream: Stream, shape: tuple[int, ...], profile: str) -> np.ndarray:
    """Input of a sigmoid in the kernel: 4 * bell, or +-0, +-20, +-100 for special profiles."""
    if profile in LOGITS:
        return stream.choose(shape, LOGITS[profile])
    ordinary = 4 * stream.bell(shape)
    if profile != "mixed":
        return ordinary
    special = stream.choose(shape, (0.0, -0.0, 20.0, -20.0, 100.0, -100.0))
    return np.where(stream.chance(shape, 1, 2), special, ordinary)


# Values: v, do [B, T, HV, V] and h0, dht [N, HV, K, V]; `axis` is the axis of the heads.


def normal(stream: Stream, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Bell-shaped with unit variance."""
    return stream.bell(shape)


def integers(stream: Stream, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Exact: whole numbers from -3 to 3."""
    return stream.integers(shape, -3, 3).astype(np.float64)


def heads(stream: Stream, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Bell-shaped, each head on a scale of its own from 2**-3 to 2**3."""
    scale = stream.integers(tuple(n if i == axis else 1 for i, n in enumerate(shape)), -3, 3)
    return np.ldexp(stream.bell(shape), scale)


VALUES = {f.__name__: f for f in (normal, integers, heads)}
