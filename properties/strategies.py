"""Hypothesis strategies that draw a Case: structure, profile names and a seed, never arrays.

Every bound holds by construction. Each table is sorted from the simplest choice to the most
complicated one, with repeats for weight, so that shrinking one index simplifies one field.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import product

from hypothesis import strategies as st

from properties import session
from properties.case import CHANNEL_GATED, CHOICES, Case
from properties.profiles import BETAS, GATES, KEYS, RAW, VALUES

BUDGET = 60_000  # tokens * HV * max(K, V): keeps a draw within tens of milliseconds of oracle
STATE_BUDGET = 300_000  # N * HV * K * V, for the same reason
MAX_TOKENS = 700
EXACT_SCALES = (1.0, 0.5, 0.25, 2.0)
SIZES = (1, 2, 3, 16, 32, 48, 60, 64, 80, 96, 100, 128, 160, 192, 256)
SIZE_TABLE = (
    *(1, 1, 2, 2, 3, 3, *(16,) * 4, 32, 32, 32, 48, 48, 60, 64, 64, 80, 96, 100, 128),
    *(160, 192, 256),
)
MODEL_SIZES = (64, 128)  # K = V of trained models, for which kernels have forms of their own
MEMBERS = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 17)
CHUNK_WEIGHTS = {16: 6, 32: 3, 64: 2, 128: 2}
BETA_TABLE = (
    "uniform",
    "uniform",
    "mixed",
    "mixed",
    "mixed",
    "zero",
    "tiny",
    "one",
    "two",
    "halves",
)
LOWER_BOUNDS = (None, -1.0, -5.0, -40.0)  # the last one beyond what `safe_gate` would take


@cache
def length_table(chunk_size: int, tiny: int = 6) -> tuple[int, ...]:
    """Every length up to half a chunk and those that matter, by weight; `tiny` is that of 0 and 1.

    It begins with 1 and ascends. One sorted table, and not a union of strategies, lets shrinking
    walk from any length to any shorter one.
    """
    C = chunk_size
    marks = {0: tiny, 1: tiny, 2: 3, C - 1: 6, C: 6, C + 1: 6, 2 * C: 4, 2 * C + 1: 2}
    marks |= {C + r: 5 for r in (15, 16, 17, C - 1)}
    marks |= {2 * C + r: 3 for r in (15, 16, 17, C - 1)}
    marks |= {4 * C + 15: 2, 6 * C: 2, 9 * C + 1: 1}
    weights = dict.fromkeys(range(C // 2), 1) | marks
    order = sorted(weights, key=lambda length: (length != 1, length))
    return tuple(length for length in order for _ in range(weights[length]))


def _among(values: Sequence, allowed: Collection | None, what: str = "") -> st.SearchStrategy:
    """Those of the values that are allowed and that implementations keep to; if there are none,
    nobody claims such a case, whatever it is.
    """
    kept = session.kept_to(what) if what else None
    found = [value for value in values if allowed is None or value in allowed]
    return st.sampled_from([x for x in found if kept is None or x in kept] or found)


def _claimed(value: object, allowed: Collection | None, what: str) -> bool:
    """Whether a value is allowed and somebody under test keeps to it."""
    kept = session.kept_to(what)
    return all(some is None or value in some for some in (allowed, kept))


def _at_most(values: Sequence[int], limit: int, what: str = "") -> st.SearchStrategy:
    # The tables begin with 1 and shrinking a limit cuts their end only: an index keeps its meaning.
    return _among([value for value in values if value <= max(limit, 1)], None, what)


@st.composite
def _lengths(draw, chunk_size: int, packed: bool, most: int) -> tuple[int, ...]:
    # The first two draws mean the same either way, so that a packed failure can shrink to a batch.
    members = draw(st.sampled_from(MEMBERS))
    length = draw(_at_most(length_table(chunk_size), most))
    if not packed:
        return (length,) * min(members, max(1, most // max(length, 1)))
    lengths = [length]
    for _ in range(members - 1):
        another = draw(st.sampled_from(length_table(chunk_size, tiny=20)))
        lengths.append(min(another, most - sum(lengths)))
    return tuple(lengths)


@st.composite
def _structure(
    draw, *, packed: bool | None, most: int, chunk_sizes: Collection[int] | None, model: bool
) -> dict:
    weighted = [size for size, weight in CHUNK_WEIGHTS.items() for _ in range(weight)]
    chunk_size = draw(_among(weighted, chunk_sizes, "chunk_sizes"))
    chunk_size = 64 if model else chunk_size  # drawn all the same, see `_types`
    packed = draw(st.booleans()) if packed is None else packed
    lengths = draw(_lengths(chunk_size, packed, most))
    tokens, members = max(sum(lengths), 1), len(lengths)
    head_size = draw(_at_most(SIZE_TABLE, BUDGET // tokens, "head_sizes"))
    value_limit = min(BUDGET // tokens, STATE_BUDGET // (members * head_size))
    value_size = draw(_at_most(SIZE_TABLE, value_limit, "head_sizes"))
    if model:
        sizes = [x for x in MODEL_SIZES if _claimed(x, None, "head_sizes")]
        if fitting := [x for x in sizes if tokens * x <= BUDGET]:
            head_size = value_size = fitting[-1 if head_size >= 64 else 0]
    room = BUDGET // (tokens * max(head_size, value_size))
    room = min(room, STATE_BUDGET // (members * head_size * value_size))
    heads = draw(_at_most((1, 1, 1, 2, 2, 2, 3, 3, 5), room))
    groups = draw(_at_most((1, 1, 2, 3, 4), room // heads))
    return {
        "lengths": lengths,
        "packed": packed,
        "heads": heads,
        "groups": groups,
        "head_size": head_size,
        "value_size": value_size,
        "chunk_size": chunk_size,
        "initial_state": draw(st.sampled_from(CHOICES["initial_state"])),
        "through": draw(st.sampled_from(("output", "state", "both", "both"))),
        "state_v_first": draw(st.sampled_from((False, False, True))),
        "cut": draw(st.integers(0, sum(lengths) if packed else lengths[0])),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "int32_offsets": draw(st.booleans()) if packed else False,
    }


@st.composite
def _types(draw, dtypes: Collection[str] | None, *, model: bool) -> dict:
    every = ("float32", "float32", "float64", "bfloat16", "float16")
    dtype = draw(_among(every, dtypes, "dtypes"))
    dtype = "bfloat16" if model else dtype
    # Drawn in any case: shrinking prefers fewer draws, and would prefer float64 to float32.
    narrow = draw(st.sampled_from(("float32", "float32", "bfloat16", "float16")))
    strength = draw(st.sampled_from((None, None, "float32", "bfloat16", "float16")))
    if dtype == "float64":
        narrow, strength = "float64", None
    return {"dtype": dtype, "gate_dtype": narrow, "beta_dtype": strength}


@st.composite
def _options(draw, operator: str, gates: str) -> dict:
    options = {}
    if draw(st.sampled_from((False, False, True))):
        options["qk_l2norm"] = draw(st.booleans())
        options["beta_sigmoid"] = draw(st.booleans())
        if options["beta_sigmoid"]:
            options["neg_eigval"] = draw(st.booleans())
    if gates in RAW:
        options |= {"gate_in_kernel": True, "dt_bias": draw(st.booleans())}
        if options["dt_bias"] and operator in CHANNEL_GATED:
            options["dt_bias_2d"] = draw(st.booleans())
        options["lower_bound"] = draw(st.sampled_from(LOWER_BOUNDS))
        if options["lower_bound"] is not None:
            options["without_A_log"] = draw(st.booleans())
        options["parameter_dtype"] = draw(st.sampled_from((None, None, "bfloat16", "float16")))
    return options


@st.composite
def cases(
    draw,
    operator: str,
    *,
    dtypes: Collection[str] | None = None,
    max_tokens: int | None = None,
    packed: bool | None = None,
    plain: bool = False,
    layouts: Collection[str] | None = None,
    chunk_sizes: Collection[int] | None = None,
    gates: Collection[str] | None = None,
) -> Case:
    """Any case of an operator; it shrinks towards `Case(operator=operator)`.

    dtypes, layouts, chunk_sizes, gates: only these. max_tokens: tokens over all sequences.
    packed: only packed cases, or only unpacked ones. plain: no option that has the kernel activate
    raw inputs. The operator delta_rule has no gates, whatever `gates` says.
    """
    most = MAX_TOKENS if max_tokens is None else max_tokens
    # "zero" twice, since it may also be no gate at all; raw gates once more, since many options go
    # with them.
    names = ["zero", *(name for name in GATES if not (plain and name in RAW))]
    names += [] if plain else RAW
    profile = draw(_among(names, gates)) if operator != "delta_rule" else "zero"
    options = {} if plain else draw(_options(operator, profile))
    if operator != "delta_rule":
        # Drawn in any case: shrinking prefers fewer draws, and would prefer another gate to "zero".
        options["without_g"] = draw(st.booleans()) and profile == "zero"
    normalised, raw_beta = options.get("qk_l2norm", False), options.get("beta_sigmoid", False)
    unfit = set() if normalised else {"norms"}
    unfit |= {"hot"} if normalised or raw_beta else set()
    keys = draw(st.sampled_from([name for name in KEYS if name not in unfit]))
    model = draw(st.sampled_from((False,) * 7 + (True,)))
    if not (
        _claimed("bfloat16", dtypes, "dtypes")
        and _claimed(64, chunk_sizes, "chunk_sizes")
        and any(_claimed(size, None, "head_sizes") for size in MODEL_SIZES)
    ):
        model = False
    structure = draw(_structure(packed=packed, most=most, chunk_sizes=chunk_sizes, model=model))
    types = draw(_types(dtypes, model=model))
    if types["dtype"] == "float64":
        options.pop("parameter_dtype", None)
    return Case(
        operator=operator,
        **structure,
        **types,
        **options,
        values=draw(st.sampled_from(tuple(VALUES))),
        keys=keys,
        key_spread=draw(st.integers(-13, 0)) if keys == "correlated" else None,
        gates=profile,
        gate_scale=draw(st.integers(-13, 4)) if profile == "constant" else 0,
        betas=draw(st.sampled_from(BETA_TABLE)),
        scale=draw(st.sampled_from((None, None, None, 1.0, 0.5, 0.3, -0.5, 0.0))),
        layout=draw(_among(("contiguous", *CHOICES["layout"]), layouts)),
    )


@st.composite
def exact_cases(
    draw,
    operator: str,
    *,
    dtypes: Collection[str] | None = None,
    max_tokens: int | None = None,
    chunk_sizes: Collection[int] | None = None,
) -> Case:
    """A case whose inputs are short binary fractions, so that small kernels make no rounding error.

    Hot keys, whole numbers for q, v, do and the states, beta in {0, 1/2, 1, 2}, decays 0, 1/2 and
    1, and a power of two for `scale`. Whether every intermediate fits its type is for the caller.
    """
    most = MAX_TOKENS if max_tokens is None else max_tokens
    gated = operator != "delta_rule"
    gates = draw(st.sampled_from(("zero", *("powers_of_two",) * 2 * gated)))
    without_g = gated and draw(st.booleans())
    return Case(
        operator=operator,
        **draw(_structure(packed=None, most=most, chunk_sizes=chunk_sizes, model=False)),
        **draw(_types(dtypes, model=False)),
        values="integers",
        keys="hot",
        gates=gates,
        without_g=without_g and gates == "zero",
        betas="halves",
        scale=draw(st.sampled_from(EXACT_SCALES)),
        layout=draw(st.sampled_from(CHOICES["layout"])),
    )


def all_regimes(operator: str) -> set[str]:
    """Every regime that `cases(operator)` must reach, by the names of `Case.regimes`."""
    gated, channels = operator != "delta_rule", operator in CHANNEL_GATED
    axes = {
        "values": VALUES,
        "keys": KEYS,
        "gates": GATES if gated else ("zero",),
        "betas": BETAS,
        "dtype": CHOICES["dtype"],
        "heads": (1, 2, 3, 5),
        "groups": (1, 2, 3, 4),
        "batch": (1, 2, 3, 4, "many"),
        "through": CHOICES["through"],
        "layout": CHOICES["layout"],
        "state": CHOICES["initial_state"],
        "K": SIZES,
        "V": SIZES,
        "chunk": CHOICES["chunk_size"],
        "scale": ("default", "given", "0", "negative"),
        "cut": ("start", "inside", "end"),
        "length": ("0", "1", "2", "C-1", "C", "C+1"),
        "remainder": (0, 1, 15, 16, 17, "C-1"),
    }
    regimes = {f"{axis}:{value}" for axis, values in axes.items() for value in values}
    places = product(("empty", "one_token"), ("first", "middle", "last"))
    regimes |= {f"packed:{what}_{place}" for what, place in places} | {"packed:all_empty", "packed"}
    regimes |= {"K<V", "K=V", "K>V", "gate_dtype_differs", "many_chunks", "state_v_first"}
    regimes |= {"beta_dtype_differs", "many_sequences", "past_eight_chunks", "as_models_are"}
    regimes |= {"qk_l2norm", "beta_sigmoid", "neg_eigval", "int32_offsets"}
    if gated:
        regimes |= {"without_g", "gate_in_kernel", "dt_bias", "lower_bound", "without_A_log"}
        regimes |= {"sum_past_88", "sum_past_700", "narrow_parameters"}
        regimes |= {"channel_-30", "dt_bias_2d"} if channels else {"head_-30"}
    return regimes
