"""Which implementations stand under test, and where."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from properties import session
from properties.case import Case
from properties.implementations import BUILT_IN, TorchOperators, default, find
from properties.law import load_laws


@pytest.mark.parametrize("device", ["cpu", "npu:0", "cuda", "cuda:1"])
def test_defaults_exist_and_kernels_are_where_they_belong(device):
    names = default(device)
    assert set(names) <= set(BUILT_IN)
    assert ("triton" in names) == device.startswith("cuda")


@pytest.mark.parametrize("name", ["eager", "eager-save", "triton", "triton-save"])
def test_the_other_policy_is_the_same_thing_otherwise(name):
    one = BUILT_IN[name]
    other = one.with_other_policy()
    assert type(other) is type(one)
    assert other.backend == one.backend
    assert {one.policy, other.policy} == {"recompute", "save"}


def test_kernels_claim_nothing_that_they_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    triton, case = BUILT_IN["triton"], Case(operator="kda")
    wide = Case(operator="kda", dtype="float64", gate_dtype="float64")
    assert "GPU" in triton.refuses(case, "cpu")
    assert triton.refuses(case, "cuda") is None
    assert "float64" in triton.refuses(wide, "cuda")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton.refuses(case, "cpu") is None


def module(**functions):
    return SimpleNamespace(__name__="theirs", **functions)


def plain(
    q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, chunk_size=64
):
    return None


class Narrow(TorchOperators):
    dtypes = ("bfloat16",)
    chunk_sizes = (64,)
    head_sizes = frozenset({64, 128})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"initial_state": "random"}, None),
        ({"operator": "delta_rule"}, "it has no chunk_delta_rule"),
        ({"packed": True}, "chunk_gated_delta_rule takes no cu_seqlens"),
        ({"state_v_first": True}, "chunk_gated_delta_rule takes no state_v_first"),
        ({"qk_l2norm": True}, "chunk_gated_delta_rule takes no use_qk_l2norm_in_kernel"),
        (
            {"gate_in_kernel": True, "gates": "raw", "dt_bias": True},
            "chunk_gated_delta_rule takes no A_log, dt_bias, use_gate_in_kernel",
        ),
    ],
)
def test_what_functions_do_not_take_is_not_claimed(changes, reason):
    case = Case(**{"operator": "gated_delta_rule", **changes})
    theirs = TorchOperators("theirs", module(chunk_gated_delta_rule=plain))
    assert session.refusal(case, theirs) == reason
    anything = TorchOperators("theirs", module(chunk_gated_delta_rule=lambda **x: None))
    assert (session.refusal(case, anything) is None) == ("operator" not in changes)

    class Renaming(TorchOperators):
        def call(self, case, tensors, options, *, token_by_token):
            options.pop("scale")
            return super().call(case, tensors, options, token_by_token=token_by_token)

    assert session.refusal(case, Renaming("theirs", module())) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"dtype": "float16"}, "float16 is not among its dtypes"),
        ({"chunk_size": 16}, "16 is not among its chunk_sizes"),
        ({"value_size": 3}, "3 is not among its head_sizes"),
    ],
)
def test_what_an_adapter_names_is_all_that_it_claims(changes, reason):
    sizes = {"dtype": "bfloat16", "chunk_size": 64, "head_size": 64, "value_size": 128}
    case = Case(**{"operator": "kda", **sizes, **changes})
    assert session.refusal(case, Narrow("narrow", module(chunk_kda=lambda **x: None))) == reason


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [
        ({"dtypes": ("bf16",)}, r"has dtypes = \('bf16',\), wanted some of \('float32'"),
        ({"dtypes": "bfloat16"}, "has dtypes = 'bfloat16'"),
        ({"chunk_sizes": 64}, "has chunk_sizes = 64, wanted some of"),
        ({"chunk_sizes": (48,)}, r"has chunk_sizes = \(48,\)"),
        ({"head_sizes": ()}, r"has head_sizes = \(\), wanted some of range\(1, 512\)"),
        ({"refuses": None}, "has no method refuses"),
    ],
)
def test_an_adapter_is_looked_at_when_it_is_found(monkeypatch, attributes, complaint):
    adapter = type("Mine", (TorchOperators,), attributes)("mine", module())
    monkeypatch.setitem(sys.modules, "their_kernels", SimpleNamespace(Mine=adapter))
    with pytest.raises(ValueError, match=f"^implementation: 'their_kernels:Mine' {complaint}"):
        find("their_kernels:Mine")


class Careful(BUILT_IN["eager"].__class__):
    """Refuses what several laws make of other cases, and raises where it is called all the same."""

    def refuses(self, case, device):
        if case.T == 0 or case.initial_state != "none" or not case.packed:
            return "not that"
        return None if case.gate_dtype == "bfloat16" else "another gate"

    def call(self, case, *arguments, **options):
        assert self.refuses(case, "cpu") is None, f"{case} was refused"
        return super().call(case, *arguments, **options)


# Of packs; the permutation of a batch is asked of no pack.
@pytest.mark.parametrize(
    "name", sorted(load_laws().keys() - {"batch_permutation_moves_the_results"})
)
def test_no_law_calls_what_was_refused(name):
    law, careful = load_laws()[name], Careful("careful", "eager", "recompute")
    for operator in law.operators:
        case = Case(operator=operator, lengths=(3, 0, 2), packed=True, gate_dtype="bfloat16")
        law.examine(case, careful)
