"""Other people's operators, where they are installed. Imports happen on first use."""

from __future__ import annotations

import importlib
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from oracles import Precision
from properties.case import Case
from properties.implementations.base import TorchOperators

HOMES = {
    "delta_rule": "fla.ops.delta_rule",
    "gated_delta_rule": "fla.ops.gated_delta_rule",
    "kda": "fla.ops.kda",
    "gdn2": "fla.ops.gdn2",
}


class FlashLinearAttention(TorchOperators):
    """flash-linear-attention's Triton operators (fla-core 0.6.0), for the cases its own checks let
    through.
    """

    dtypes = ("float32", "bfloat16", "float16")
    chunk_sizes = (16, 32, 64)

    def __init__(self) -> None:
        super().__init__("fla", SimpleNamespace(__name__="fla"))

    @cached_property
    def _functions(self) -> ModuleType:
        found = SimpleNamespace(
            __name__="fla", __version__=importlib.import_module("fla").__version__
        )
        for operator, home in HOMES.items():
            module = importlib.import_module(home)
            for form in ("chunk", "fused_recurrent"):
                setattr(found, f"{form}_{operator}", getattr(module, f"{form}_{operator}"))
        return found

    def refuses(self, case: Case, device: str) -> str | None:
        if torch.device(device).type == "cpu":
            return "its kernels need an accelerator"
        if case.dtype == "float64" or (case.operator == "delta_rule" and case.dtype == "float32"):
            return f"no {case.dtype}"
        if case.chunk_size > 64 or (case.operator in ("kda", "gdn2") and case.chunk_size != 64):
            return f"no chunk size {case.chunk_size}"
        if case.groups > 1 and case.operator in ("delta_rule", "gdn2"):
            return "no grouped heads"
        if case.operator == "delta_rule" and (case.state_v_first or case.beta_sigmoid):
            return "an option it lacks"
        if case.operator == "gdn2" and case.beta_sigmoid:
            return "an option it lacks"
        if case.operator == "gated_delta_rule" and case.lower_bound is not None:
            return "an option it lacks"
        if case.without_g or case.dt_bias_2d or case.int32_offsets or case.parameter_dtype:
            return "an argument in a form that it does not name"
        if case.T == 0:
            return "no empty input"
        return None

    def decodes(self, case: Case) -> bool:
        return True

    def precision(self, case: Case) -> Precision:
        return {
            "bfloat16": Precision.bfloat16().on_tensor_cores(),
            "float16": Precision.float16().on_tensor_cores(),
            "float32": Precision.tensor_float32().on_tensor_cores(cuts=True),
        }[case.dtype]

    def call(self, case: Case, tensors: dict, options: dict, *, token_by_token: bool) -> Any:
        self.module = self._functions
        if case.operator == "gdn2":
            options = {name: value for name, value in options.items() if name != "allow_neg_eigval"}
        return super().call(case, tensors, options, token_by_token=token_by_token)
