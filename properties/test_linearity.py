"""(o, ht) is jointly linear in (v, h0), o in scale, the gradients in (do, dht)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from oracles import Exact, activations
from properties import truth
from properties.case import Case
from properties.editing import with_arrays
from properties.implementations import Implementation
from properties.law import law, run
from properties.materialize import Inputs
from properties.strategies import cases
from properties.verdict import judge, judge_bits

# Powers of two scale without rounding but among the subnormals: a term that underflows can break a
# tie far above it. So every type is wide, the gates' too, which are their gradients'; what is
# doubled stands 2**60 higher than it is drawn; no strength but 0 is below sigmoid(-20) = 2**-29,
# and no decay but 0 below exp(-30) = 2**-43. A float32 term of three such decays on end,
# 2**(60 - 130), then has 2**56 of room above the smallest normal number for strength and keys; the
# largest sums, of 2**20 products of numbers up to 2**70 and 2**10, end at 2**100. Float64 has room
# for decays of exp(-200).
WIDE = ("float32", "float64")
HIGHER = 60
FAINTEST = -20.0  # logit
DEEPEST = {"float32": -30.0, "float64": -200.0}
scalable_cases = partial(cases, dtypes=WIDE)


def _scalable(case: Case, *raised: str) -> tuple[Case, Inputs]:
    """The case in wide types alone, and its inputs, some raised, without what vanishes.

    A head's or channel's gate is made a reset where the sum since its last one would pass DEEPEST;
    a bounded raw gate cannot be one, and its -inf stands for no decay.
    """
    case = replace(case, gate_dtype=case.dtype, beta_dtype=None, parameter_dtype=None)
    inputs = truth.inputs_of(case)
    changed = {name: np.ldexp(inputs[name], HIGHER) for name in raised if inputs[name] is not None}
    if case.beta_sigmoid:
        strengths = {"beta", "b", "w"} & inputs.present().keys()
        changed |= {name: np.maximum(inputs[name], FAINTEST) for name in strengths}
    if inputs.g is not None:
        g, logs = np.array(inputs.g), _log_decays(case, inputs)
        bounded = case.lower_bound is not None
        reset = np.inf if case.gate_in_kernel and not bounded else -np.inf
        for row, first, end in case.sequences():
            total = np.zeros(g.shape[2:])
            for t in range(first, end):
                after = total + logs[row, t]
                deep = after < DEEPEST[case.dtype]
                g[row, t][deep] = reset
                total = np.where(deep, total if bounded else 0, after)
        changed["g"] = g
    return case, with_arrays(inputs, **changed)


def _log_decays(case: Case, inputs: Inputs) -> np.ndarray:
    """g as the kernel activates it, in g's shape."""
    if not case.gate_in_kernel:
        return inputs.g
    shape = (case.HV, -1) if case.gates_per_channel else (case.HV,)
    A_log, dt_bias = (
        None if x is None else x.reshape(shape) for x in (inputs.A_log, inputs.dt_bias)
    )
    with np.errstate(all="ignore"):
        if case.lower_bound is None:
            return activations.gate(inputs.g, A_log, dt_bias)[0]
        bound = case.lower_bound
        return activations.bounded_gate(inputs.g, A_log, dt_bias, bound, Exact())[0]


def _doubled(inputs: Inputs, *names: str) -> Inputs:
    return with_arrays(inputs, **{x: 2 * inputs[x] for x in names if inputs[x] is not None})


def _times(results: dict, **factors: float) -> dict:
    return {name: x * factors.get(name, 1.0) for name, x in results.items()}


@law(scalable_cases)
def test_scale_multiplies_the_output_only(case: Case, implementation: Implementation) -> None:
    """Twice the scale: twice o and dq to the bit, the same state."""
    case, inputs = _scalable(replace(case, through="output"), "v", "h0")
    scale = case.head_size**-0.5 if case.scale is None else case.scale
    once = run(replace(case, scale=scale), implementation, inputs)
    twice = run(replace(case, scale=2 * scale), implementation, inputs)
    kept = ("o", "dq", "ht")
    judge_bits(
        case,
        {name: twice[name] for name in kept},
        _times({name: once[name] for name in kept}, o=2.0, dq=2.0),
        "twice those at half the scale",
        subnormals=False,
    )


@law(scalable_cases)
def test_doubling_values_and_state_doubles_results(
    case: Case, implementation: Implementation
) -> None:
    """v and h0 doubled: o and ht doubled to the bit, and every gradient but theirs."""
    case, inputs = _scalable(case, "v", "h0")
    once = run(case, implementation, inputs)
    twice = run(case, implementation, _doubled(inputs, "v", "h0"))
    factors = {name: 2.0 for name in once if name not in ("dv", "dh0")}
    judge_bits(case, twice, _times(once, **factors), "doubled with v and h0", subnormals=False)


@law(scalable_cases)
def test_doubling_adjoints_doubles_gradients(case: Case, implementation: Implementation) -> None:
    """do and dht doubled: every gradient doubled to the bit."""
    case, inputs = _scalable(case, "do", "dht")
    once = run(case, implementation, inputs)
    twice = run(case, implementation, _doubled(inputs, "do", "dht"))
    factors = {name: 2.0 for name in once if name.startswith("d")}
    judge_bits(case, twice, _times(once, **factors), "doubled with do and dht", subnormals=False)


@law(cases)
def test_negating_values_and_state_negates_results(
    case: Case, implementation: Implementation
) -> None:
    """v and h0 negated: o and ht negated to the bit, and every gradient but theirs.

    In every type and with every gate, since rounding to nearest does not know a number's sign.
    """
    inputs = truth.inputs_of(case)
    negated = {name: -inputs[name] for name in ("v", "h0") if inputs[name] is not None}
    once = run(case, implementation)
    other = run(case, implementation, with_arrays(inputs, **negated))
    factors = {name: -1.0 for name in once if name not in ("dv", "dh0")}
    judge_bits(case, other, _times(once, **factors), "negated with v and h0")


@law(partial(cases, dtypes=WIDE))
def test_joint_linearity_in_values_and_state(case: Case, implementation: Implementation) -> float:
    """(v, 0) and (0, h0) apart add up to (v, h0); each part brings its own budget."""
    case = replace(case, initial_state="random")
    inputs = replace(truth.inputs_of(case), do=None, dht=None)
    precision = implementation.precision(case)
    total: dict[str, np.ndarray] = {}
    expected, noise = truth.budget_of(case, inputs, precision)
    for salt, absent in enumerate(("h0", "v"), 1):
        part = with_arrays(inputs, **{absent: np.zeros_like(inputs[absent])})
        _, spread = truth.budget_of(case, part, precision, salt)
        results = run(case, implementation, part)
        noise = {name: noise[name] + spread[name] for name in expected}
        total = {name: total.get(name, 0.0) + results[name] for name in expected}
    verdict = judge(case, total, expected, noise)
    verdict.check()
    return verdict.score
