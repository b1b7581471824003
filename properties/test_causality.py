"""A later token never reaches back: prefixes and their gradients keep every bit when the rest
changes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from properties import truth
from properties.case import Case
from properties.editing import TOKENS, with_arrays
from properties.implementations import Implementation
from properties.law import law, run
from properties.strategies import cases
from properties.verdict import judge_bits


@law(partial(cases, packed=False))
def test_suffix_edits_keep_the_prefix_bitwise(case: Case, implementation: Implementation) -> None:
    """Every argument changes from token ``cut`` on; a loss on the prefix alone sees none of it."""
    inputs = truth.inputs_of(case)
    other = truth.inputs_of(replace(case, seed=case.seed ^ 0x5EED))
    prefix = slice(0, case.cut)
    do = np.array(inputs.v) if inputs.do is None else np.array(inputs.do)
    do[:, case.cut :] = 0  # the loss reads the prefix
    dtypes = {**inputs.dtypes, "do": case.dtype}
    base = replace(inputs, do=do, dht=None, dtypes=dtypes)
    edited = {}
    for name in TOKENS[:-1]:
        if inputs[name] is not None:
            edited[name] = np.concatenate([inputs[name][:, prefix], other[name][:, case.cut :]], 1)
    before = run(case, implementation, base)
    after = run(case, implementation, with_arrays(base, **edited))
    names = ["o", *(f"d{name}" for name in edited)]
    judge_bits(
        case,
        {name: after[name][:, prefix] for name in names},
        {name: before[name][:, prefix] for name in names},
        "what they were before a later token changed",
    )
    if "dh0" in before:
        judge_bits(case, {"dh0": after["dh0"]}, {"dh0": before["dh0"]}, "unchanged")
    for name in edited:
        suffix = after[f"d{name}"][:, case.cut :]
        assert not suffix.any(), f"d{name} is not 0 behind the last token of the loss"


@law(partial(cases, packed=True))
def test_packed_neighbours_are_independent(case: Case, implementation: Implementation) -> None:
    """Every argument of all sequences but one changes, or is NaN where it may be; that one keeps
    its bits.
    """
    n = case.seed % case.N
    row, first, end = case.sequences()[n]
    inputs, other = truth.inputs_of(case), truth.inputs_of(replace(case, seed=case.seed ^ 0x5EED))
    edited = {}
    for name in TOKENS:
        if inputs[name] is not None:
            edited[name] = np.array(other[name])
            edited[name][row, first:end] = inputs[name][row, first:end]
    for name in ("h0", "dht"):
        if inputs[name] is not None:
            edited[name] = np.array(other[name])
            edited[name][n] = inputs[name][n]
    poisoned = dict(edited)
    for name in ("q", "k", "v", "do", "h0", "dht"):
        if inputs[name] is not None:
            kept = (n,) if name in ("h0", "dht") else (row, slice(first, end))
            poisoned[name] = np.full_like(edited[name], np.nan)
            poisoned[name][kept] = inputs[name][kept]
    before, after, beside_nan = (
        run(case, implementation, with_arrays(inputs, **changed))
        for changed in ({}, edited, poisoned)
    )

    def own(results: dict) -> dict:
        kept = {"ht": results["ht"][n]}
        if "dh0" in results:
            kept["dh0"] = results["dh0"][n]
        for name in ("o", *(f"d{name}" for name in TOKENS)):
            if name in results:
                kept[name] = results[name][row, first:end]
        return kept

    judge_bits(case, own(after), own(before), "what they were before a neighbour changed")
    judge_bits(case, own(beside_nan), own(before), "what they were before a neighbour was NaN")
