"""rewy's operators on a device that is not the CPU. Run by test_npu.py in a process of its own,
since a device is named once and for good.
"""

from __future__ import annotations

from contextlib import nullcontext

import npu as host_npu
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rewy
from properties.case import OPERATORS, Case
from properties.implementations.base import arguments
from properties.implementations.ours import Ours
from properties.implementations.tensors import place
from properties.materialize import Inputs, materialize

RAW = {"qk_l2norm": True, "beta_sigmoid": True, "neg_eigval": True}
RAW_GATE = {"gates": "raw", "gate_in_kernel": True, "dt_bias": True}
FORMS = {
    "recompute": Ours("eager", "eager", "recompute"),
    "save": Ours("eager-save", "eager", "save"),
    "naive": Ours("naive", "naive", "recompute"),
    "decoding": Ours("eager", "eager", "recompute"),
}


def make_case(operator: str, packed: bool, **changes: object) -> Case:
    raw = packed  # the packed case takes the raw options, too
    options = {
        "lengths": (0, 17, 33, 1) if packed else (37, 37),
        "heads": 2,
        "groups": 2,
        "head_size": 9,
        "value_size": 7,
        "gates": "zero" if operator == "delta_rule" else "resets",
        "initial_state": "random",
        "through": "both",
        "state_v_first": packed,
        "seed": 7,
        **(RAW if raw else {}),
        **(RAW_GATE if raw and operator != "delta_rule" else {}),
        **changes,
    }
    return Case(operator=operator, packed=packed, **options)


class Departures(TorchDispatchMode):
    """Notes each operation that reads an npu tensor and answers on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        read = [x for x in tree_leaves((args, kwargs)) if _on_npu(x)]
        if read and (
            func is torch.ops.aten._local_scalar_dense.default
            or any(isinstance(x, Tensor) and not _on_npu(x) for x in tree_leaves(result))
        ):
            self.seen.append((str(func), tuple(read[0].shape)))
        return result


def _on_npu(x: object) -> bool:
    return isinstance(x, Tensor) and x.device.type == "npu"


@pytest.fixture(scope="session", autouse=True)
def device_module(tmp_path_factory):
    if (reason := host_npu.missing()) is not None:
        pytest.skip(reason)
    return host_npu.install(tmp_path_factory.mktemp("npu"))


def evaluate(
    case: Case,
    inputs: Inputs,
    form: str,
    device: str,
    *,
    offsets_on_cpu: bool = False,
    watch: TorchDispatchMode | None = None,
) -> dict[str, Tensor]:
    """Outputs and gradients where they were computed; ``watch`` is on while rewy works."""
    tensors, options = arguments(case, inputs, device)
    if offsets_on_cpu:
        options["cu_seqlens_cpu"] = torch.tensor(case.offsets)
    leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    adjoints = [
        place(inputs[name], name, inputs.dtypes[name], case, device) for name in ("do", "dht")
    ]
    with watch or nullcontext():
        results = FORMS[form].call(case, leaves, options, token_by_token=form == "decoding")
        gradients = torch.autograd.grad(results, list(leaves.values()), adjoints)
    names = ["o", "ht", *(f"d{name}" for name in leaves)]
    return dict(zip(names, (*results, *gradients), strict=True))


@pytest.mark.parametrize("device", ["npu:0", "npu:1"])
@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_results_stay_on_the_device_with_the_cpus_bits(
    operator, form, packed, device, device_module
):
    case = make_case(operator, packed)
    inputs = materialize(case)
    expected = evaluate(case, inputs, form, "cpu")
    # The decoding forms have no cu_seqlens_cpu, as in flash-linear-attention.
    choices = [False, True] if packed and form != "decoding" else [False]
    for offsets_on_cpu in choices:
        other = 1 - torch.device(device).index
        before, watch = device_module.allocations(other), Departures()
        found = evaluate(case, inputs, form, device, offsets_on_cpu=offsets_on_cpu, watch=watch)
        assert device_module.allocations(other) == before
        offsets_read = [("aten._to_copy.default", (case.N + 1,))]
        assert watch.seen == (offsets_read if packed and not offsets_on_cpu else [])
        assert {name: str(x.device) for name, x in found.items()} == dict.fromkeys(expected, device)
        for name, x in found.items():
            np.testing.assert_array_equal(x.detach().cpu(), expected[name].detach(), err_msg=name)


@pytest.mark.parametrize("form", FORMS)
def test_autocast_changes_no_bits(form):
    case = make_case("gdn2", False)
    inputs = materialize(case)
    expected = evaluate(case, inputs, form, "npu:1")
    with torch.autocast("npu", torch.bfloat16):
        x = torch.randn(3, 3, device="npu:1")
        assert (x @ x).dtype == torch.bfloat16  # it is on, and it reaches products
        found = evaluate(case, inputs, form, "npu:1")
    for name, x in found.items():
        assert torch.equal(x.cpu(), expected[name].cpu()), name


ARGUMENTS = ("k", "v", "g", "beta", "initial_state", "A_log", "dt_bias", "cu_seqlens")


@pytest.mark.parametrize("elsewhere", ["cpu", "npu:1"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_tensor_elsewhere_is_refused_by_name(name, elsewhere):
    case = make_case("kda", True)
    tensors, options = arguments(case, materialize(case), "npu:0")
    call = {**tensors, **options}
    call["initial_state"] = call.pop("h0")
    call[name] = call[name].to(elsewhere)
    with pytest.raises(ValueError, match=rf"^{name} must lie on q's device npu:0, got {elsewhere}"):
        rewy.chunk_kda(**call)


def test_cu_seqlens_cpu_on_the_device_is_refused():
    case = make_case("kda", True)
    tensors, options = arguments(case, materialize(case), "npu:0")
    tensors["initial_state"] = tensors.pop("h0")
    with pytest.raises(ValueError, match=r"^cu_seqlens_cpu must lie on the CPU, got npu:0"):
        rewy.chunk_kda(**tensors, **options, cu_seqlens_cpu=options["cu_seqlens"])


def test_values_are_checked_on_request_only():
    q = torch.randn(1, 5, 1, 4, device="npu") / 2
    g, beta = torch.full((1, 5, 1), 0.5, device="npu"), torch.rand(1, 5, 1, device="npu")
    with Departures() as watch:
        rewy.chunk_gated_delta_rule(q, q, q, g, beta)
    assert watch.seen == []
    with pytest.raises(ValueError, match=r"^g must be <= 0"):
        rewy.chunk_gated_delta_rule(q, q, q, g, beta, check_values=True)


class LeavesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, d):
        return (d.cpu() * 2).to(d.device)


def test_departures_are_noticed_forward_and_backward():
    x = torch.randn(3, device="npu", requires_grad=True)
    with Departures() as watch:
        torch.autograd.grad(LeavesInBackward.apply(x).sum(), x)
    assert watch.seen == [("aten._to_copy.default", (3,))]
    with Departures() as watch:
        x.detach().sum().item()
        torch.empty(3).copy_(x.detach())
    assert watch.seen == [("aten._local_scalar_dense.default", ()), ("aten.copy_.default", (3,))]
