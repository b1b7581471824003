"""Examine the kernels in Triton's interpreter: ``python -m tests.triton.interpreted OPERATOR``.

A process of its own, because the interpreter replaces Triton for the whole process. It is slow (a
tenth of a second a chunk), so the cases are small and chosen; the drawn ones are for the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tests.triton.interpreter  # noqa: F401  (before anything imports triton)
from properties import session
from properties.case import Case
from properties.corpus import Entry, entries
from properties.implementations import Implementation, find
from properties.law import Law, load_laws
from rewy.backends.triton import configs

CORPUS = Path(__file__).parents[2] / "corpus"
LAW = "results_are_within_budget"
# Of these a pack, and heads whose sizes are compiled in, must do: they take twice as long.
MORE = ("policies_are_bitwise_equal", "decoding_equals_chunkwise")
SMALL = {"heads": 1, "head_size": 12, "value_size": 9, "chunk_size": 16}


def cases(operator: str) -> list[Case]:
    """Every kernel in its forms: groups, packing, states both ways, gates of every kind, types."""
    gated = operator != "delta_rule"
    raw = {"gate_in_kernel": True, "gates": "raw", "dt_bias": True} if gated else {}

    def case(**changes: object) -> Case:
        return Case(operator=operator, **{**SMALL, **changes})

    def gates(name: str) -> dict[str, str]:
        return {"gates": name} if gated else {}

    return [
        case(
            lengths=(19,), groups=2, qk_l2norm=True, initial_state="random", through="both",
            **gates("log_uniform"),
        ),
        case(
            lengths=(0, 1, 17, 16), packed=True, initial_state="random", through="both",
            state_v_first=True, **gates("resets"),
        ),
        case(lengths=(33,), chunk_size=32, keys="correlated", key_spread=-6, **gates("past_88")),
        case(lengths=(70,), chunk_size=64, head_size=17, through="state", **gates("past_700")),
        case(lengths=(20,), dtype="float16", qk_l2norm=True, beta_sigmoid=True, **raw),
        # One key that is erased again and again: what is left of a state is rounding, and with
        # operands cut off to TF32 would be a thousand times as much.
        case(
            lengths=(127,), dtype="float16", head_size=1, value_size=1, chunk_size=64,
            initial_state="zeros", through="state",
        ),
        case(
            lengths=(65,), dtype="float16", chunk_size=64, initial_state="random", through="both",
            **gates("log_uniform"),
        ),
        case(lengths=(40,), dtype="bfloat16", chunk_size=32, groups=2, **gates("saturated")),
        case(lengths=(65,), dtype="bfloat16", head_size=64, value_size=64, chunk_size=64),
        case(lengths=(1,), head_size=1, value_size=1, **gates("zero")),
        case(lengths=(17,), dtype="float16", without_g=gated, **gates("zero")),
        case(lengths=(0,), initial_state="random", through="both"),
    ]  # fmt: skip


def found_on_gpus(operator: str) -> list[Entry]:
    """What kernels failed at on a GPU, an operator's; the mended interpreter fails at most of it,
    too, where the mended kernels do not.
    """
    found = [x for x in entries(CORPUS) if x.found.implementation.startswith("triton")]
    return [entry for entry in found if entry.case.operator == operator]


@contextmanager
def full_gpu() -> Iterator[None]:
    """As where state passes go one after the other."""
    before, configs.MULTIPROCESSORS = configs.MULTIPROCESSORS, 0
    try:
        yield
    finally:
        configs.MULTIPROCESSORS = before


def fails(law: Law, case: Case, implementation: Implementation) -> bool:
    """Whether a law does not hold, and why, printed."""
    try:
        law.examine(case, implementation)
    except AssertionError as failure:
        print(failure)
        return True
    return False


def main(operator: str) -> int:
    """Print what fails; the exit status is how many did."""
    session.configure(("triton",), "cpu", None, journalling=False)
    laws, triton = load_laws(), find("triton")
    failures = 0
    for case in cases(operator):
        assert triton.refuses(case, "cpu") is None, case
        more = case.packed or case.head_size == 64
        for name in (LAW, *MORE) if more else (LAW,):
            failures += fails(laws[name], case, triton)
        if more:
            with full_gpu():
                failures += fails(laws["policies_are_bitwise_equal"], case, triton)
    for entry in found_on_gpus(operator):
        failures += fails(laws[entry.property], entry.case, find(entry.found.implementation))
    print(f"{operator}: {len(cases(operator))} cases, {failures} failures")
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
