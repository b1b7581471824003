"""Case -> arrays, the same bits on every platform and with every NumPy.

Only the raw output of a bit generator is used (NumPy promises that it never changes, and does not
promise it for distributions), and only operations that IEEE 754 rounds exactly. Rounding to narrow
types is done here, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from properties.case import ARGUMENTS, EXPANDED, Case
from properties.profiles import BETAS, GATES, KEYS, VALUES, logits, queries, square_norm

# Bits of the significand, exponents of the smallest and of the largest normal number.
FORMATS = {"float16": (11, -14, 15), "bfloat16": (8, -126, 127), "float32": (24, -126, 127)}


def round_to(x: np.ndarray, dtype: str, *, toward_zero: bool = False) -> np.ndarray:
    """float64 values rounded to those of `dtype`, to nearest with ties to even, or toward zero.

    Subnormals are kept. Beyond the largest number lies infinity, or that number when toward zero.
    """
    if dtype == "float64":
        return x
    significand, smallest, largest = FORMATS[dtype]
    quantum = np.maximum(np.frexp(x)[1] - significand, smallest - significand + 1)
    units = np.ldexp(x, -quantum)
    rounded = np.ldexp(np.trunc(units) if toward_zero else np.rint(units), quantum)
    limit = (2 - 2.0 ** (1 - significand)) * 2.0**largest
    over = np.isfinite(x) & (np.abs(rounded) > limit)
    return np.where(over, np.copysign(limit if toward_zero else np.inf, x), rounded)


class Stream:
    """Raw bits, keyed by the case's seed and an argument's name: no argument shifts another."""

    def __init__(self, seed: int, name: str) -> None:
        key = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16]
        self._words = np.random.Philox(key=int.from_bytes(key, "little")).random_raw

    def words(self, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform 64-bit words."""
        return np.asarray(
            self._words(int(np.prod(shape, dtype=np.int64))), dtype=np.uint64
        ).reshape(shape)

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform in (0, 1), on the odd multiples of 2**-53."""
        return (self.words(shape) >> np.uint64(12)).astype(np.float64) * 2.0**-52 + 2.0**-53

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
        """Whole numbers from low to high, both included; the range must be far below 2**32."""
        scaled = (self.words(shape) >> np.uint64(32)) * np.uint64(high - low + 1) >> np.uint64(32)
        return scaled.astype(np.int64) + low

    def chance(self, shape: tuple[int, ...], numerator: int, denominator: int) -> np.ndarray:
        """True with probability numerator / denominator."""
        return self.integers(shape, 0, denominator - 1) < numerator

    def choose(self, shape: tuple[int, ...], values: tuple[float, ...]) -> np.ndarray:
        """One of `values`, each as likely as the others."""
        return np.array(values)[self.integers(shape, 0, len(values) - 1)]

    def log_uniform(self, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
        """(1 + f) * 2**e with f uniform in (0, 1) and e a uniform integer from low to high."""
        exponent = self.integers(shape, low, high)
        return np.ldexp(1 + self.uniform(shape), exponent)

    def bell(self, shape: tuple[int, ...]) -> np.ndarray:
        """Sum of four uniforms, centred: bell-shaped in (-3.5, 3.5), mean 0, variance 1.02."""
        first, second, low = self.words(shape), self.words(shape), np.uint64(2**32 - 1)
        total = (
            (first >> np.uint64(32)) + (first & low) + (second >> np.uint64(32)) + (second & low)
        )
        return (total.astype(np.float64) - 2 * (2.0**32 - 1)) * (1.75 * 2.0**-32)


@dataclass(frozen=True, eq=False)
class Inputs(Mapping):
    """The arguments of an operator and the gradients of its results, float64; None where absent.

    The arrays are read-only, shaped as in `Case.shapes`, and hold only values that the argument's
    own type, named in `dtypes`, holds exactly. As a mapping it goes through all of `ARGUMENTS`.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray | None
    beta: np.ndarray | None
    b: np.ndarray | None
    w: np.ndarray | None
    h0: np.ndarray | None
    A_log: np.ndarray | None
    dt_bias: np.ndarray | None
    do: np.ndarray | None
    dht: np.ndarray | None
    dtypes: dict[str, str]

    def __getitem__(self, name: str) -> np.ndarray | None:
        if name not in ARGUMENTS:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(ARGUMENTS)

    def __len__(self) -> int:
        return len(ARGUMENTS)

    def present(self) -> dict[str, np.ndarray]:
        """The arguments that are there, by name."""
        return {name: array for name, array in self.items() if array is not None}

    @cached_property
    def digest(self) -> str:
        """SHA-256 over name, type, shape and little-endian bytes of every present argument."""
        state = hashlib.sha256()
        for name, array in self.present().items():
            state.update(f"{name} {self.dtypes[name]} {array.shape}\n".encode())
            state.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        return state.hexdigest()


def materialize(case: Case) -> Inputs:
    """The arrays that a case stands for.

    beta * |k|**2 <= 2 for every key unless the kernel normalises keys itself (per channel, b <= 2
    and |k| <= 1), and g <= 0 unless it activates g itself.
    """
    dtypes, arrays = case.dtypes(), dict.fromkeys(ARGUMENTS)
    for name in case.shapes():
        values = _argument(case, name)
        # Keys round toward zero, so that no row of norm 1 becomes longer than 1.
        values = round_to(values, dtypes[name], toward_zero=name == "k")
        if name == "g":
            values = values + 0.0  # no -0.0, which some kernels would take for a gate below zero
        arrays[name] = np.ascontiguousarray(values)
    if case.keys == "hot":
        room = np.repeat(square_norm(arrays["k"]), case.groups, axis=2)
        for name in {"beta", "b"} & dtypes.keys():
            rows = room if name == "beta" else room[..., None]
            arrays[name] = np.where(arrays[name] * rows > 2, 1.0, arrays[name])
    for array in arrays.values():
        if array is not None:
            array.setflags(write=False)
    return Inputs(**arrays, dtypes=dtypes)


def _argument(case: Case, name: str) -> np.ndarray:
    stream, shape = Stream(case.seed, name), case.shapes()[name]
    match name:
        case "q":
            return queries(stream, case, shape)
        case "k":
            return KEYS[case.keys](stream, case, shape)
        case "g":
            return GATES[case.gates](stream, case, shape)
        case "beta" | "b" | "w":
            return (
                logits(stream, shape, case.betas)
                if case.beta_sigmoid
                else BETAS[case.betas](stream, shape)
            )
        case "v" | "do":
            if case.layout_of(name) == "expanded" and name in EXPANDED:
                column = VALUES[case.values](stream, (*shape[:-1], 1), 2)
                return np.repeat(column, shape[-1], axis=-1)
            return VALUES[case.values](stream, shape, 2)
        case "h0" | "dht":
            if name == "h0" and case.initial_state == "zeros":
                return np.zeros(shape)
            state = (case.N, case.HV, case.head_size, case.value_size)
            values = VALUES[case.values](stream, state, 1)
            return np.ascontiguousarray(values.swapaxes(-1, -2)) if case.state_v_first else values
        case "A_log":  # exp(100) leaves float32: the activation must not become NaN
            return np.where(stream.chance(shape, 1, 8), 100.0, 7 * stream.uniform(shape) - 4)
        case "dt_bias":
            return stream.bell(shape)
    raise KeyError(name)
