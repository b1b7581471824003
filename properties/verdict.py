"""Results against truth and budget: the one place where it is decided whether something is right.

    score = ||x - x*|| / (KAPPA * spread + output rounding)

for every quantity, and within it for every head and every chunk of tokens, so that a tail cannot
hide; right means score <= 1. The spread is what the naive algorithm in float64 shows on this very
input when its stored intermediates are perturbed by the implementation's unit roundoffs (see
`oracles.budget`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from properties.case import Case

QUANTITIES = (
    "o",
    "ht",
    "dq",
    "dk",
    "dv",
    "dg",
    "dbeta",
    "db",
    "dw",
    "dh0",
    "dA_log",
    "ddt_bias",
)
STATES = ("ht", "dh0")
PARAMETERS = ("dA_log", "ddt_bias")

# Calibrated: `python -m properties calibrate`, see docs/method.md.
KAPPA = 7.0


@dataclass(frozen=True)
class Format:
    """A type as results are rounded to it; below ``tiny`` rounding is absolute."""

    unit: float
    tiny: float
    largest: float


FORMATS = {
    "float64": Format(2.0**-53, 2.0**-1022, np.finfo(np.float64).max),
    "float32": Format(2.0**-24, 2.0**-126, 2.0**128 * (1 - 2.0**-24)),
    "bfloat16": Format(2.0**-8, 2.0**-126, 2.0**128 * (1 - 2.0**-8)),
    "float16": Format(2.0**-11, 2.0**-24, 65504.0),
}


class Mismatch(AssertionError):
    """An implementation is wrong about a quantity. Subclasses, one a quantity, keep failures apart.

    ``quantity`` and ``score`` say what and how badly; ``implementation`` who, once known.
    """

    quantity = "results"

    def __init__(self, message: str, score: float = float("inf")):
        super().__init__(message)
        self.score = score
        self.implementation: str | None = None


class BrokenBudget(RuntimeError):
    """The suite is at fault: a truth that a result can be compared with has no finite budget.

    No Mismatch, since it says nothing about the implementation, and not recorded in the corpus.
    """


MISMATCHES: dict[str, type[Mismatch]] = {
    name: type(f"{name}Mismatch", (Mismatch,), {"quantity": name, "__module__": __name__})
    for name in QUANTITIES
}


@dataclass
class Verdict:
    """Scores by quantity, and for the worst of each where it is and what stood there."""

    scores: dict[str, float] = field(default_factory=dict)
    worst: dict[str, str] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The largest score."""
        return max(self.scores.values(), default=0.0)

    def check(self) -> None:
        """Raise the mismatch of the worst quantity if any score exceeds 1; the message names them
        all.
        """
        failed = {name: score for name, score in self.scores.items() if not score <= 1}
        if failed:
            name = max(failed, key=failed.get)
            others = ", ".join(f"{other} {failed[other]:.3g}" for other in failed if other != name)
            message = f"{name}: score {failed[name]:.4g} (right is <= 1); {self.worst[name]}"
            raise MISMATCHES[name](message + f"; also wrong: {others}" * bool(others), failed[name])


def output_type(case: Case, quantity: str) -> str:
    """The type a quantity is returned in."""
    dtypes = dict.fromkeys(("beta", "b", "w"), case.beta_dtype or case.gate_dtype)
    dtypes |= {"g": case.gate_dtype, "q": case.dtype, "k": case.dtype, "v": case.dtype}
    if case.parameter_dtype is not None:
        dtypes |= dict.fromkeys(("A_log", "dt_bias"), case.parameter_dtype)
    wide = "float64" if case.dtype == "float64" else "float32"
    return case.dtype if quantity == "o" else dtypes.get(quantity.removeprefix("d"), wide)


def groups(case: Case, quantity: str) -> Iterator[tuple[str, tuple]]:
    """(name, index) of the parts of a quantity that are judged apart: a chunk, a state or a
    parameter of a head.
    """
    if quantity in PARAMETERS:
        flat = quantity == "ddt_bias" and case.gates_per_channel and not case.dt_bias_2d
        per_head = case.head_size if flat else 1
        for head in range(case.HV):
            yield f"head {head}", (slice(head * per_head, (head + 1) * per_head),)
        return
    heads = range(case.heads if quantity in ("dq", "dk") else case.HV)
    if quantity in STATES:
        for n in range(case.N):
            for head in heads:
                yield f"sequence {n}, head {head}", (n, head)
        return
    for row, first, end in case.chunks():
        for head in heads:
            yield (
                f"row {row}, tokens {first}..{end - 1}, head {head}",
                (row, slice(first, end), head),
            )


def judge(
    case: Case,
    results: Mapping[str, np.ndarray],
    truth: Mapping[str, np.ndarray],
    deviations: Mapping[str, np.ndarray],
    *,
    kappa: float | None = None,
) -> Verdict:
    """Score every quantity of the truth.

    Args:
        results: quantity to array, float64 values of the output's type.
        truth: the oracle's.
        deviations: of the Monte-Carlo runs from the truth, a leading axis of samples.

    Raises:
        Mismatch: a quantity is missing, unexpected, or of a wrong shape or kind.
        BrokenBudget: a deviation is not finite where the truth fits the quantity's type.
    """
    kappa = KAPPA if kappa is None else kappa
    _check_form(results, truth)
    verdict = Verdict()
    for name, exact in truth.items():
        form = FORMATS[output_type(case, name)]
        got = np.asarray(results[name], np.float64)
        exact = np.asarray(exact)
        worst = 0.0
        verdict.worst[name] = "exact"
        for where, index in groups(case, name):
            spread = deviations[name][(slice(None), *index)]
            _check_budget(f"{name} in {where}", exact[index], spread, form)
            score = _score(got[index], exact[index], spread, form, kappa)
            if not score <= worst:  # NaN counts as worst
                worst = score
                verdict.worst[name] = _describe(where, got[index], exact[index], form)
        verdict.scores[name] = worst
    return verdict


def judge_bits(
    case: Case, results: Mapping, expected: Mapping, what: str, *, subnormals: bool = True
) -> None:
    """Raise the mismatch of the first quantity that differs in any bit (NaN equals NaN, 0 equals
    -0).

    Without ``subnormals`` differences up to the smallest normal number of the quantity's type are
    let through: below it a law about scaling by two does not hold.
    """
    _check_form(results, expected)
    for name, want in expected.items():
        got, want = np.asarray(results[name]), np.asarray(want)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        if not subnormals:
            same |= np.abs(got - want) <= FORMATS[output_type(case, name)].tiny
        if not same.all():
            index = tuple(int(i) for i in np.argwhere(~same)[0])
            raise MISMATCHES[name](
                f"{name}: {int((~same).sum())} of {same.size} elements are not {what}, "
                f"the first at {list(index)}: {got[index]!r}, wanted {want[index]!r}"
            )


def _check_form(results: Mapping, truth: Mapping) -> None:
    for name, exact in truth.items():
        mismatch = MISMATCHES[name]
        if results.get(name) is None:
            raise mismatch(f"{name}: missing")
        got = results[name]
        if not isinstance(got, np.ndarray) or got.dtype.kind != "f":
            raise mismatch(f"{name}: not an array of floats but {type(got).__name__}")
        if got.shape != np.shape(exact):
            raise mismatch(f"{name}: shape {list(got.shape)}, wanted {list(np.shape(exact))}")
    for name in results:
        if name not in truth:
            raise MISMATCHES.get(name, Mismatch)(f"{name}: nobody asked for it")


def _check_budget(where: str, exact: np.ndarray, deviations: np.ndarray, form: Format) -> None:
    """Raise BrokenBudget where a deviation is not finite though the truth fits the type.

    Where the truth itself is not finite, or larger than the type holds, nothing is compared, and
    the deviation may be anything.
    """
    with np.errstate(all="ignore"):
        broken = (np.abs(exact) < form.largest) & ~np.isfinite(deviations).all(axis=0)
    if broken.any():
        place = tuple(int(i) for i in np.argwhere(broken)[0])
        raise BrokenBudget(
            f"{where}: the budget is not finite at {int(broken.sum())} of {broken.size} elements, "
            f"the first at {list(place)}: truth {float(exact[place]):.9g}, "
            f"deviations {deviations[(slice(None), *place)].tolist()}"
        )


def _score(
    got: np.ndarray, exact: np.ndarray, deviations: np.ndarray, form: Format, kappa: float
) -> float:
    """The score of one part; inf where it is not finite though the truth fits the type."""
    if got.size == 0:
        return 0.0
    with np.errstate(all="ignore"):
        # What the type cannot hold has no right answer; everything else must be finite.
        fits = np.abs(exact) + kappa * np.abs(deviations).max(0) < form.largest
        if not fits.any():
            return 0.0
        if not np.isfinite(got[fits]).all():
            return float("inf")
        error = _norm(np.where(fits, got - exact, 0))
        spread = _norm(np.where(fits, deviations, 0)) / np.sqrt(len(deviations))
        rounding = _norm(np.where(fits, form.unit * np.abs(exact) + form.tiny, 0))
        return float(error / (kappa * spread + rounding))


def _norm(x: np.ndarray) -> float:
    """Euclidean norm, scaled so that squares of the smallest numbers do not vanish."""
    x = np.asarray(x, np.float64)
    largest = np.abs(x).max()
    return float(largest * np.sqrt(((x / largest) ** 2).sum())) if largest else 0.0


def _describe(where: str, got: np.ndarray, exact: np.ndarray, form: Format) -> str:
    with np.errstate(all="ignore"):
        error = np.abs(np.asarray(got - exact, np.float64))
        error[~(np.abs(exact) < form.largest)] = 0  # not judged
    index = np.unravel_index(int(np.argmax(np.where(np.isnan(error), np.inf, error))), error.shape)
    place = [int(i) for i in index]
    return (
        f"worst in {where} at {place}: got {float(got[index]):.9g}, truth {float(exact[index]):.9g}"
    )
