"""Every kernel, in every configuration that is chosen for these sizes, compiles for each generation
of GPUs and fits it; no GPU is needed.
"""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("triton")

from properties.case import OPERATORS
from properties.hazards import hazards
from tests.triton.compiling import Launch, Usage, compile_for, form, launches, problem, usage

SHARED = {80: 166_912, 90: 232_448, 100: 232_448}  # bytes a program may have
STACK = 256  # bytes a thread that may be spilled registers, in the forms that models are trained in
TUNED = {(90, torch.bfloat16, 128)}

ALWAYS = {"_solve", "_local", "_passes", "_output", "_decode"}
FORMS = [
    # capability, type, K, V, C
    (90, torch.bfloat16, 128, 128, 64),
    (90, torch.bfloat16, 64, 64, 64),
    (90, torch.bfloat16, 256, 256, 64),
    (90, torch.bfloat16, 16, 32, 16),
    (90, torch.bfloat16, 64, 256, 64),
    (90, torch.bfloat16, 100, 60, 64),
    (90, torch.bfloat16, 100, 60, 32),
    (90, torch.float16, 128, 128, 64),
    (90, torch.float32, 128, 128, 64),
    (90, torch.float32, 256, 256, 64),
    (90, torch.float16, 256, 256, 64),
    (80, torch.bfloat16, 128, 128, 64),
    (100, torch.bfloat16, 128, 128, 64),
]


def _name(value: object) -> str:
    return str(value).removeprefix("torch.")


def _fitting(launch: Launch, capability: int) -> Usage:
    """What a launch's code takes, which the GPU has; Hopper's products read nothing overwritten."""
    compiled = compile_for(launch, capability)
    found, who = usage(compiled), (launch.kernel.__name__, launch.config)
    assert found.shared <= SHARED[capability], (*who, found)
    assert capability != 90 or hazards(compiled.asm["ttgir"]) == [], who
    return found


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("capability", "dtype", "K", "V", "C"), FORMS, ids=_name)
def test_every_kernel_compiles_and_fits(operator, capability, dtype, K, V, C, record_property):
    launched = launches(problem(operator, dtype, K, V, C))
    assert {launch.kernel.__name__ for launch in launched} >= ALWAYS
    for launch in launched:
        found = _fitting(launch, capability)
        record_property(launch.kernel.__name__, f"{launch.config} {found}")
        if (capability, dtype, K) in TUNED:
            assert found.stack <= STACK, (launch.kernel.__name__, launch.config, found)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("groups", "side_by_side"), [(2, True), (64, False)])
def test_state_passes_go_side_by_side_unless_either_fills_the_gpu(operator, groups, side_by_side):
    given = problem(operator, torch.bfloat16, 128, 128, 64, groups=groups)
    passes = [x.constants for x in launches(given) if x.kernel.__name__ == "_passes"]
    assert any(x["FORWARD"] and x["REVERSE"] for x in passes) == side_by_side
    assert any(x["REVERSE"] and not x["FORWARD"] for x in passes) != side_by_side


@pytest.mark.parametrize(("K", "apart"), [(128, False), (200, True)])
def test_state_passes_go_apart_beside_float16_where_registers_are_too_few(K, apart):
    given = problem("gated_delta_rule", torch.float16, K, 64, 64)
    passes = [x.constants for x in launches(given) if x.kernel.__name__ == "_passes"]
    assert any(x["FORWARD"] and x["REVERSE"] for x in passes) != apart


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("K", [128, 100])
def test_keys_have_one_factor_a_row_where_their_size_is_compiled_in(operator, K):
    given = problem(operator, torch.bfloat16, K, 128, 64)
    factor = {
        x.constants["FACTOR"]
        for x in launches(given)
        if x.kernel.__name__ == "_passes" and x.constants["REVERSE"]
    }
    assert factor == {K == 128 and operator in ("delta_rule", "gated_delta_rule")}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("capability", "V"), [(80, 128), (90, 128), (80, 60), (90, 60), (80, 256)])
def test_state_passes_of_many_heads_fit(operator, capability, V):
    passes = [
        launch
        for launch in launches(problem(operator, torch.bfloat16, 128, V, 64, groups=64))
        if launch.kernel.__name__ == "_passes"
    ]
    assert {launch.config.BV for launch in passes} == {64}
    for launch in passes:
        _fitting(launch, capability)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=_name)
def test_the_solve_waits_before_blocks_are_overwritten_and_read_again(dtype):
    launched = launches(problem("kda", dtype, 128, 128, 64))
    (solve,) = {form(x): x for x in launched if x.kernel.__name__ == "_solve"}.values()
    code = compile_for(solve, 90).asm["ttgir"]
    order = re.findall(r"\b(?:tt\.load|tt\.store|gpu\.barrier)\b", code)
    short = "".join({"tt.load": "l", "tt.store": "s", "gpu.barrier": "|"}[x] for x in order)
    assert re.match(r"l\|s+\|l", short), short  # the loop over diagonal blocks, and what follows


@pytest.mark.parametrize("operator", OPERATORS)
def test_float32_products_are_summed_before_they_are_added(operator):
    """A product that starts from another rounds each of its terms, not their sum, to the digits of
    that; and Triton makes one of ``x + dot(a, b, 0)``, where the interpreter does not. Of what goes
    on in a loop, the sum over tiles, the start is looked at. The solve's are within one sum.
    """
    launched = launches(problem(operator, torch.float32, 128, 128, 64))
    forms = {form(x): x for x in launched if x.kernel.__name__ != "_solve"}
    starts = {}
    for launch in forms.values():
        name = launch.kernel.__name__
        code = compile_for(launch, 90).asm["ttir"]
        for start in re.findall(r"= tt\.dot %\S+, %\S+, (%[\w#]+)", code):
            (origin,) = re.findall(rf"{re.escape(start)} = (\S+)", code)
            assert origin.startswith(("arith.constant", "%cst")), (name, start, origin)
            starts.setdefault(name, []).append(start)
    assert min(map(len, starts.values())) >= 2
    assert len(starts) == (6 if operator in ("kda", "gdn2") else 5)
    assert sum(map(len, starts.values())) >= 25


@pytest.mark.parametrize("groups", [2, 64])
def test_erasing_by_channel_without_a_gate_compiles_and_fits(groups):
    given = problem("gdn2", torch.bfloat16, 128, 128, 64, groups=groups)
    for launch in launches(given._replace(tensors=given.tensors._replace(g=None))):
        _fitting(launch, 90)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_other_forms_compile_and_fit(operator, lower_bound):
    other = problem(
        operator, torch.bfloat16, 128, 64, 64, packed=True, policy="save", state_v_first=True,
        l2norm=True, gate_activation=operator != "delta_rule", beta_activation=True,
        lower_bound=lower_bound,
    )  # fmt: skip
    for launch in launches(other):
        _fitting(launch, 90)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("dtype", "C"), [(torch.bfloat16, 32), (torch.float32, 64)], ids=_name)
def test_sizes_that_are_not_compiled_in_cost_no_forms(operator, dtype, C):
    def forms(K: int, V: int) -> set[tuple]:
        return {form(launch) for launch in launches(problem(operator, dtype, K, V, C))}

    assert forms(100, 60) == forms(99, 33) == forms(128, 24)


@pytest.mark.parametrize("operator", OPERATORS)
def test_numbers_that_launches_are_remembered_without_are_not_specialised(operator):
    # rewy.backends.triton.start knows an argument by its form: two numbers must not need two codes.
    for launch in launches(problem(operator, torch.bfloat16, 64, 64, 64)):
        numbers = launch.kernel.params[: len(launch.arguments)]
        for parameter, value in zip(numbers, launch.arguments, strict=True):
            if isinstance(value, int | float):
                assert parameter.do_not_specialize, (launch.kernel.__name__, parameter.name)
