"""What must not matter: chunk size, the order of heads and batch members, padding, and packing.

The order of heads and of batch members does not matter to the bit where
``editing.place_is_nothing`` says so; elsewhere the budget alone judges.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from properties import session, truth
from properties.case import CHOICES, Case
from properties.editing import (
    PER_HEAD,
    TOKENS,
    map_tokens,
    packed_as,
    place_is_nothing,
    unpack,
    with_arrays,
)
from properties.implementations import Implementation
from properties.law import law, run
from properties.strategies import cases
from properties.verdict import STATES, judge, judge_bits


def _judge_moved(case: Case, implementation: Implementation, found: dict[str, np.ndarray]) -> None:
    """Results moved back to where they were, judged by those of the unmoved call, or by the truth
    and budget of it.
    """
    if place_is_nothing(case):
        judge_bits(case, found, run(case, implementation), "those of the first order")
    judge(case, found, *truth.budget(case, implementation.precision(case))).check()


@law(cases)
def test_chunk_size_changes_nothing(case: Case, implementation: Implementation) -> None:
    """Any other chunk size on this one's inputs, judged by the truth and its own budget."""
    inputs = truth.inputs_of(case)
    sizes = [size for size in CHOICES["chunk_size"] if size != case.chunk_size]
    other = replace(case, chunk_size=sizes[case.seed % len(sizes)])
    if session.refusal(other, implementation) is None:
        expected = truth.budget_of(other, inputs, implementation.precision(other))
        judge(other, run(other, implementation, inputs), *expected).check()


@law(cases)
def test_head_permutation_moves_the_results(case: Case, implementation: Implementation) -> None:
    """Groups of value heads moved with their query and key head, judged as they were unmoved."""
    heads = np.random.RandomState(case.seed).permutation(case.heads)
    value_heads = (heads[:, None] * case.groups + np.arange(case.groups)).ravel()
    inputs = truth.inputs_of(case)
    moved = {}
    for name, x in inputs.present().items():
        if name in PER_HEAD:
            moved[name] = x.reshape(case.HV, -1)[value_heads].reshape(x.shape)
        elif name in ("h0", "dht"):
            moved[name] = x[:, value_heads]
        else:
            moved[name] = x[:, :, heads if name in ("q", "k") else value_heads]
    found = run(case, implementation, with_arrays(inputs, **moved))
    for name, x in found.items():
        argument = name.removeprefix("d")
        if argument in PER_HEAD:
            back = np.empty_like(x).reshape(case.HV, -1)
            back[value_heads] = x.reshape(case.HV, -1)
            found[name] = back.reshape(x.shape)
            continue
        back = np.empty_like(x)
        if name in STATES:
            back[:, value_heads] = x
        else:
            back[:, :, heads if argument in ("q", "k") else value_heads] = x
        found[name] = back
    _judge_moved(case, implementation, found)


@law(partial(cases, packed=False))
def test_batch_permutation_moves_the_results(case: Case, implementation: Implementation) -> None:
    """Batch members in another order, judged as in the first order."""
    order = np.random.RandomState(case.seed).permutation(case.B)
    inputs = truth.inputs_of(case)
    moved = {name: x[order] for name, x in inputs.present().items() if name not in PER_HEAD}
    found = run(case, implementation, with_arrays(inputs, **moved))
    for name, x in found.items():
        if name.removeprefix("d") not in PER_HEAD:
            found[name] = np.empty_like(x)
            found[name][order] = x
    _judge_moved(case, implementation, found)


@law(partial(cases, packed=True))
def test_packed_equals_separate(case: Case, implementation: Implementation) -> None:
    """Each member of a pack alone, joined again, judged by the pack's truth and budget."""
    # Parameters' gradients are sums of the parts': narrow ones would carry a rounding a part.
    case = replace(case, parameter_dtype=None)
    inputs = truth.inputs_of(case)
    results = [run(*_swap(unpack(case, inputs, n), implementation)) for n in range(case.N)]
    joined = {}
    for name in results[0]:
        parts = [result[name] for result in results]
        if name.removeprefix("d") in PER_HEAD:
            joined[name] = sum(parts)
        else:
            joined[name] = np.concatenate(parts, axis=0 if name in STATES else 1)
    judge(case, joined, *truth.budget(case, implementation.precision(case))).check()


def _swap(pair: tuple, implementation: Implementation) -> tuple:
    return pair[0], implementation, pair[1]


@law(partial(cases, plain=True))
def test_padding_is_inert(case: Case, implementation: Implementation) -> None:
    """Tokens with k = v = beta = 0 and g = 0 behind every sequence change neither results nor
    state.
    """
    inputs = truth.inputs_of(case)
    pad = 1 + case.seed % (case.chunk_size + 1)
    tokens = map_tokens(inputs, lambda x: _pad(case, x, pad))
    tokens["q"] = _pad(case, inputs.q, pad, fill=1.0)  # a query only reads
    lengths = tuple(n + pad for n in case.lengths)
    padded = replace(case, lengths=lengths, cut=0)
    if session.refusal(padded, implementation) is not None:
        return
    found = run(padded, implementation, with_arrays(inputs, **tokens))
    found = {name: x if name in STATES else _unpad(case, x, pad) for name, x in found.items()}
    judge(case, found, *truth.budget(case, implementation.precision(case))).check()


def _pad(case: Case, x: np.ndarray, pad: int, fill: float = 0.0) -> np.ndarray:
    """``pad`` tokens of ``fill`` behind every sequence."""
    blank = np.full((x.shape[0], pad, *x.shape[2:]), fill)
    if not case.packed:
        return np.concatenate([x, blank], axis=1)
    parts = [p for _, a, b in case.sequences() for p in (x[:, a:b], blank)]
    return np.concatenate(parts, axis=1)


def _unpad(case: Case, x: np.ndarray, pad: int) -> np.ndarray:
    if not case.packed:
        return x[:, : case.T]
    starts = [a + n * pad for n, (_, a, _) in enumerate(case.sequences())]
    lengths = case.lengths
    return np.concatenate([x[:, a : a + n] for a, n in zip(starts, lengths, strict=True)], axis=1)


@law(partial(cases, packed=False))
def test_batch_equals_packed(case: Case, implementation: Implementation) -> None:
    """A batch laid end to end and packed is the same batch."""
    inputs = truth.inputs_of(case)
    flat = map_tokens(inputs, lambda x: x.reshape(1, case.B * case.T, *x.shape[2:]))
    packed = packed_as(case, case.lengths)
    found = run(packed, implementation, with_arrays(inputs, **flat))
    per_token = {"o"} | {f"d{name}" for name in TOKENS}
    found = {
        name: x.reshape(case.B, case.T, *x.shape[2:]) if name in per_token else x
        for name, x in found.items()
    }
    judge(case, found, *truth.budget(case, implementation.precision(case))).check()
