"""Which implementations stand under test, and where."""

from __future__ import annotations

import pytest

from properties.case import Case
from properties.implementations import BUILT_IN, default


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
