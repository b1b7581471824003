"""A Case: the few numbers that describe one experiment completely, to and from JSON.

`properties.materialize` turns a Case into arrays; the same Case is the same bits everywhere, now
and later. The defaults are the simplest experiment: where shrinking leads, and what a corpus file
leaves out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields

from properties.profiles import BETAS, GATES, KEYS, RAW, VALUES

OPERATORS = ("delta_rule", "gated_delta_rule", "kda", "gdn2")
CHANNEL_GATED = ("kda", "gdn2")
ARGUMENTS = ("q", "k", "v", "g", "beta", "b", "w", "h0", "A_log", "dt_bias", "do", "dht")
EXPANDED = ("v", "do")  # arguments whose last axis repeats one value under layout "expanded"

CHOICES = {
    "operator": OPERATORS,
    "chunk_size": (16, 32, 64, 128),
    "dtype": ("float32", "float64", "bfloat16", "float16"),
    "gate_dtype": ("float32", "float64", "bfloat16", "float16"),
    "values": tuple(VALUES),
    "keys": tuple(KEYS),
    "gates": tuple(GATES),
    "betas": tuple(BETAS),
    "initial_state": ("none", "zeros", "random"),
    "through": ("output", "state", "both"),
    "layout": ("contiguous", "strided", "sliced", "expanded", "permuted", "mixed"),
    "beta_dtype": (None, "float32", "bfloat16", "float16"),
    "parameter_dtype": (None, "float32", "bfloat16", "float16"),
}
RANGES = {
    "heads": (1, 64),
    "groups": (1, 4),
    "head_size": (1, 512),
    "value_size": (1, 512),
    "gate_scale": (-24, 5),
    "key_spread": (-13, 0),
    "cut": (0, 2**20),
    "seed": (0, 2**32 - 1),
}
FLAGS = (
    "packed",
    "int32_offsets",
    "state_v_first",
    "qk_l2norm",
    "without_g",
    "gate_in_kernel",
    "dt_bias",
    "dt_bias_2d",
    "without_A_log",
    "beta_sigmoid",
    "neg_eigval",
)
OPTIONAL = ("key_spread", "scale", "lower_bound")


@dataclass(frozen=True, kw_only=True, repr=False)
class Case:
    """One experiment: operator, sizes, value profiles, types, options and a seed.

    lengths: tokens of each sequence. packed: B = 1, T = sum, with offsets; else B = len(lengths)
        and each is T. int32_offsets: the offsets are int32 instead of int64.
    heads, groups, head_size, value_size, chunk_size: H, HV/H, K, V, C.
    dtype: of q, k, v, do; gate_dtype: of g, beta, b, w (float64 goes only with float64);
        beta_dtype: of beta, b and w where it is not that of g. h0 and dht are float32, or float64
        when dtype is, and so are A_log and dt_bias but for parameter_dtype.
    values, keys, gates, betas: names in `properties.profiles`; gate_scale is the exponent of the
        `constant` gate, key_spread the exponent of `correlated` keys and None for others.
    through: what the loss depends on: o, ht or both.
    scale: factor of the queries, None for K**-0.5.
    without_g: None in the place of g, which stands for no decay; gates is "zero" then.
    qk_l2norm, gate_in_kernel, lower_bound, beta_sigmoid, neg_eigval: raw inputs, activated by the
        kernel; gates is one of `properties.profiles.RAW` exactly when gate_in_kernel. dt_bias: with
        that bias, [HV] or [HV * K]; dt_bias_2d: as [HV, K]. without_A_log: lower_bound's activation
        with exp(A_log) = 1.
    state_v_first: h0, ht and their gradients are [N, HV, V, K].
    layout: how arguments lie in memory, offsets among them; under "expanded" v and do repeat one
        value along their last axis; under "mixed" each lies differently (`layout_of`).
    cut: a token index in 0..T for laws that split or edit.
    seed: 32 bits, from which all values are drawn.

    Raises ValueError naming the field that is ill-typed, out of range or at odds with another.
    """

    operator: str
    lengths: tuple[int, ...] = (1,)
    packed: bool = False
    int32_offsets: bool = False
    heads: int = 1
    groups: int = 1
    head_size: int = 1
    value_size: int = 1
    chunk_size: int = 16
    dtype: str = "float32"
    gate_dtype: str = "float32"
    beta_dtype: str | None = None
    parameter_dtype: str | None = None
    values: str = "normal"
    keys: str = "orthogonal"
    gates: str = "zero"
    betas: str = "uniform"
    gate_scale: int = 0
    key_spread: int | None = None
    initial_state: str = "none"
    through: str = "output"
    scale: float | None = None
    qk_l2norm: bool = False
    without_g: bool = False
    gate_in_kernel: bool = False
    dt_bias: bool = False
    dt_bias_2d: bool = False
    without_A_log: bool = False
    lower_bound: float | None = None
    beta_sigmoid: bool = False
    neg_eigval: bool = False
    state_v_first: bool = False
    layout: str = "contiguous"
    cut: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            wanted = f"one of {', '.join(map(str, choices))}"
            self._require(name, _one_of(getattr(self, name), choices), wanted)
        for name in FLAGS:
            self._require(name, type(getattr(self, name)) is bool, "true or false")
        for name, (low, high) in RANGES.items():
            value, optional = getattr(self, name), name in OPTIONAL
            wanted = f"an integer from {low} to {high}" + (" or null" if optional else "")
            self._require(name, (value is None and optional) or _integer(value, low, high), wanted)
        for name in ("scale", "lower_bound"):
            value = getattr(self, name)
            finite = type(value) is float and math.isfinite(value)
            self._require(name, value is None or finite, "a finite float or null")
        lengths = self.lengths
        valid = type(lengths) is tuple and lengths and all(_integer(n, 0, 2**20) for n in lengths)
        self._require("lengths", valid, "a non-empty tuple of integers from 0 to 2**20")
        self._require_agreement()

    def _require(self, name: str, condition: object, wanted: str) -> None:
        if not condition:
            raise ValueError(f"{name}: got {getattr(self, name)!r}, wanted {wanted}")

    def _require_agreement(self) -> None:
        want, gated, raw = self._require, self.has_gate, self.gate_in_kernel
        double, bounded = self.dtype == "float64", self.lower_bound is not None
        correlated, exact = self.keys == "correlated", not (self.qk_l2norm or self.beta_sigmoid)
        want("lengths", self.packed or len(set(self.lengths)) == 1, "equal lengths unless packed")
        want("cut", self.cut <= self.T, f"at most T = {self.T}")
        want("gate_dtype", (self.gate_dtype == "float64") == double, "float64 just when dtype is")
        want("beta_dtype", not (double and self.beta_dtype), "null where dtype is float64")
        want("parameter_dtype", (raw and not double) or not self.parameter_dtype,
             "null unless gate_in_kernel, and where dtype is float64")  # fmt: skip
        want("gates", gated or self.gates == "zero", "zero, because delta_rule has no gate")
        want("gate_in_kernel", gated or not raw, "false, because delta_rule has no gate")
        want("gates", (self.gates in RAW) == raw, "a raw profile exactly when gate_in_kernel")
        want("without_g", gated or not self.without_g, "false, because delta_rule has no gate")
        want("without_g", self.gates == "zero" or not self.without_g, "false unless gates is zero")
        want("int32_offsets", self.packed or not self.int32_offsets, "false unless packed")
        want("gate_scale", self.gates == "constant" or self.gate_scale == 0, "0 unless constant")
        want("key_spread", (self.key_spread is None) != correlated, "a number just for correlated")
        want("keys", self.qk_l2norm or self.keys != "norms", "norms only with qk_l2norm")
        # A hot row with two entries of 1 leaves room for beta <= 1, which a logit cannot promise.
        want("keys", exact or self.keys != "hot", "hot only without qk_l2norm and beta_sigmoid")
        want("dt_bias", raw or not self.dt_bias, "false unless gate_in_kernel")
        flat = not (self.dt_bias and self.gates_per_channel)
        want("dt_bias_2d", not (flat and self.dt_bias_2d), "false unless dt_bias of kda or gdn2")
        want("lower_bound", raw or not bounded, "null unless gate_in_kernel")
        want("lower_bound", not bounded or self.lower_bound < 0, "a negative number")
        want("without_A_log", bounded or not self.without_A_log, "false unless lower_bound")
        want("neg_eigval", self.beta_sigmoid or not self.neg_eigval, "false unless beta_sigmoid")

    @property
    def N(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @property
    def B(self) -> int:
        """Size of the batch axis."""
        return 1 if self.packed else len(self.lengths)

    @property
    def T(self) -> int:
        """Size of the token axis."""
        return sum(self.lengths) if self.packed else self.lengths[0]

    @property
    def HV(self) -> int:
        """Number of value heads."""
        return self.heads * self.groups

    @property
    def tokens(self) -> int:
        """Number of tokens over all sequences."""
        return sum(self.lengths)

    @property
    def has_gate(self) -> bool:
        """Whether the operator decays its state."""
        return self.operator != "delta_rule"

    @property
    def gates_per_channel(self) -> bool:
        """Whether each key channel has a gate of its own."""
        return self.operator in CHANNEL_GATED

    @property
    def offsets(self) -> tuple[int, ...]:
        """[N + 1]: where each sequence starts when laid end to end, and the end of the last."""
        return tuple(sum(self.lengths[:n]) for n in range(self.N + 1))

    def sequences(self) -> tuple[tuple[int, int, int], ...]:
        """(batch row, first token, end token) of each sequence, in order."""
        if self.packed:
            return tuple((0, a, b) for a, b in zip(self.offsets, self.offsets[1:], strict=False))
        return tuple((row, 0, self.T) for row in range(self.B))

    def chunks(self) -> tuple[tuple[int, int, int], ...]:
        """(batch row, first token, end token) of each chunk; a sequence's last may be short."""
        step = self.chunk_size
        return tuple(
            (row, t, min(t + step, b)) for row, a, b in self.sequences() for t in range(a, b, step)
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every argument that this case has, gradients of the results included."""
        tokens, K, V, HV = (self.B, self.T), self.head_size, self.value_size, self.HV
        channels = self.gates_per_channel
        state = (self.N, HV, V, K) if self.state_v_first else (self.N, HV, K, V)
        shapes = dict.fromkeys("qk", (*tokens, self.heads, K)) | {"v": (*tokens, HV, V)}
        if self.has_gate and not self.without_g:
            shapes["g"] = (*tokens, HV, K) if channels else (*tokens, HV)
        if self.operator == "gdn2":
            shapes |= {"b": (*tokens, HV, K), "w": (*tokens, HV, V)}
        else:
            shapes["beta"] = (*tokens, HV)
        if self.initial_state != "none":
            shapes["h0"] = state
        if self.gate_in_kernel and not self.without_A_log:
            shapes["A_log"] = (HV,)
        if self.dt_bias:
            flat = (HV * K,) if channels else (HV,)
            shapes["dt_bias"] = (HV, K) if self.dt_bias_2d else flat
        if self.through != "state":
            shapes["do"] = (*tokens, HV, V)
        if self.through != "output":
            shapes["dht"] = state
        return shapes

    def dtypes(self) -> dict[str, str]:
        """Type name of every argument that this case has."""
        single = "float64" if self.dtype == "float64" else "float32"
        own = dict.fromkeys(("q", "k", "v", "do"), self.dtype)
        own |= dict.fromkeys(("beta", "b", "w"), self.beta_dtype or self.gate_dtype)
        own |= dict.fromkeys(("A_log", "dt_bias"), self.parameter_dtype or single)
        own["g"] = self.gate_dtype
        return {name: own.get(name, single) for name in self.shapes()}

    def layout_of(self, name: str) -> str:
        """How an argument lies in memory. Of a mixed layout k lies otherwise than q, do than v, w
        than b, beta than g, dht than h0.
        """
        if self.layout != "mixed":
            return self.layout
        others = [layout for layout in CHOICES["layout"] if layout != "mixed"]
        return others[(ARGUMENTS.index(name) + self.seed) % len(others)]

    def regimes(self) -> set[str]:
        """Names of the regimes that this case lies in, for statistics and proofs of coverage."""
        K, V, C, lengths = self.head_size, self.value_size, self.chunk_size, self.lengths
        named = "values keys gates betas dtype heads groups through layout".split()
        found = {f"{name}:{getattr(self, name)}" for name in named}
        found |= {f"K:{K}", f"V:{V}", f"chunk:{C}", f"state:{self.initial_state}"}
        found.add("K<V" if K < V else "K>V" if K > V else "K=V")
        found.add("scale:default" if self.scale is None else "scale:given")
        edge = {0: "cut:start", self.T: "cut:end"}
        found.add(edge.get(self.cut, "cut:inside"))
        found |= {name for name in (*FLAGS, "lower_bound") if getattr(self, name)}
        if self.gate_dtype != self.dtype:
            found.add("gate_dtype_differs")
        if (self.beta_dtype or self.gate_dtype) != self.gate_dtype:
            found.add("beta_dtype_differs")
        if self.parameter_dtype not in (None, "float32"):
            found.add("narrow_parameters")
        if self.scale is not None and self.scale <= 0:
            found.add("scale:0" if self.scale == 0 else "scale:negative")
        if self.N > 16:
            found.add("many_sequences")
        if max(lengths) > 8 * C:
            found.add("past_eight_chunks")
        if self.dtype == "bfloat16" and C == 64 and K == V and K in (64, 128):
            found.add("as_models_are")
        marks = {"0": 0, "1": 1, "2": 2, "C-1": C - 1, "C": C, "C+1": C + 1}
        found |= {f"length:{name}" for name, length in marks.items() if length in lengths}
        remainders = {length % C for length in lengths if length > C}
        found |= {f"remainder:{r}" for r in (0, 1, 15, 16, 17) if r in remainders}
        if C - 1 in remainders:
            found.add("remainder:C-1")
        if max(lengths) > 2 * C:
            found.add("many_chunks")
        batch = self.B if self.B <= 4 else "many"
        found |= self._packing_regimes() if self.packed else {f"batch:{batch}"}
        return found | self._gate_regimes()

    def _packing_regimes(self) -> set[str]:
        head, *rest = self.lengths
        places = {"first": [head], "middle": rest[:-1], "last": rest[-1:]}
        found = {f"packed:empty_{place}" for place, members in places.items() if 0 in members}
        found |= {f"packed:one_token_{place}" for place, members in places.items() if 1 in members}
        return found | ({"packed:all_empty"} if self.T == 0 else set())

    def _gate_regimes(self) -> set[str]:
        C, floors = self.chunk_size, {"constant": math.ldexp(5, self.gate_scale)}
        floors |= {"past_88": max(4, 96 / C), "past_700": 768 / C}
        total = floors.get(self.gates, 0) * min(C, max(self.lengths))
        found = {f"sum_past_{limit}" for limit in (88, 700) if total > limit}
        if self.gates == "steep_channel" and self.tokens:
            found.add("channel_-30" if self.gates_per_channel else "head_-30")
        return found

    def to_dict(self, *, short: bool = False) -> dict[str, object]:
        """JSON-able fields by sorted name; `short` leaves out those that have their default."""
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        if short:
            kept = {f.name: kept[f.name] for f in fields(self) if kept[f.name] != f.default}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in sorted(kept.items())}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Case:
        """The inverse of `to_dict`, short or not; raises ValueError naming the field at fault."""
        if not isinstance(data, Mapping):
            raise ValueError(f"case: got {type(data).__name__}, wanted an object")
        known = {f.name: f for f in fields(cls)}
        for name in data:
            if name not in known:
                raise ValueError(f"{name}: not a field of a case")
        for name, field in known.items():
            if field.default is MISSING and name not in data:
                raise ValueError(f"{name}: missing")
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
        for name in ("scale", "lower_bound"):  # JSON writers drop the point of a whole number
            if type(values.get(name)) is int:
                values[name] = float(values[name])
        return cls(**values)

    def to_json(self, *, short: bool = False) -> str:
        """Every field, or as `to_dict` leaves them out, as one line of JSON with sorted keys."""
        return json.dumps(self.to_dict(short=short), sort_keys=True, allow_nan=False)

    def __repr__(self) -> str:
        """As it would be written: without the fields that have their default."""
        given = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Case({', '.join(f'{name}={getattr(self, name)!r}' for name in given)})"

    def _repr_pretty_(self, printer, cycle: bool) -> None:
        """For Hypothesis, which otherwise tells every field of a dataclass, a line each."""
        printer.text(repr(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        """The inverse of `to_json`; raises ValueError naming the field at fault."""
        return cls.from_dict(json.loads(text))


def _integer(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _one_of(value: object, choices: tuple) -> bool:
    return any(type(value) is type(choice) and value == choice for choice in choices)
