"""What the suite asks of a thing under test, and the adapter for operators in
flash-linear-attention's form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch

from oracles import Precision
from properties.case import Case
from properties.implementations.tensors import place, to_array
from properties.materialize import Inputs

Results = dict[str, np.ndarray]
GRADIENTS = ("q", "k", "v", "g", "beta", "b", "w", "h0", "A_log", "dt_bias")


class Implementation(Protocol):
    """An adapter: one thing under test."""

    name: str
    checks_arguments: bool  # whether it promises to refuse bad input by name, as rewy does

    def decodes(self, case: Case) -> bool:
        """Whether it has a token-by-token form for this case."""

    def refuses(self, case: Case, device: str) -> str | None:
        """Why it makes no claim for this case on this device; None where it does."""

    def precision(self, case: Case) -> Precision:
        """Its rounding points for this case."""

    def run(
        self, case: Case, inputs: Inputs, device: str, *, token_by_token: bool = False
    ) -> Results:
        """o, ht and the gradients of every argument that is there, as float64 arrays by quantity
        name.

        Gradients are those of ``sum(o * do) + sum(ht * dht)``, absent with both. ``token_by_token``
        asks for the decoding form.
        """

    def versions(self) -> Mapping[str, str]:
        """Of what it is made of, for the corpus."""

    def with_other_policy(self) -> Implementation | None:
        """The same, saving what this one recomputes or the other way round; None if there is no
        choice.
        """


def arguments(case: Case, inputs: Inputs, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tensors by argument name, options) of a call in flash-linear-attention's names."""
    tensors = {
        name: place(array, name, inputs.dtypes[name], case, device)
        for name, array in inputs.present().items()
        if name in GRADIENTS
    }
    options: dict[str, Any] = {
        "scale": case.scale,
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": case.qk_l2norm,
    }
    if case.packed:
        kind = torch.int32 if case.int32_offsets else torch.int64
        options["cu_seqlens"] = torch.tensor(case.offsets, dtype=kind, device=device)
    if case.without_g:
        options["g"] = None
    for option, value in {
        "use_gate_in_kernel": case.gate_in_kernel,
        "lower_bound": case.lower_bound,
        "use_beta_sigmoid_in_kernel": case.beta_sigmoid,
        "allow_neg_eigval": case.neg_eigval,
        "state_v_first": case.state_v_first,
    }.items():
        if value:
            options[option] = value
    return tensors, options


class TorchOperators:
    """Operators called and differentiated as flash-linear-attention's are: ``chunk_<operator>(q, k,
    v, ...)``.

    Subclasses name the module that holds the functions and say what they claim and where they
    round. ``options`` go to every chunkwise call. dtypes, chunk_sizes, head_sizes (K and V): what
    the search keeps to, so that most cases are claimed; None for any.
    """

    checks_arguments = False
    dtypes: Collection[str] | None = None
    chunk_sizes: Collection[int] | None = None
    head_sizes: Collection[int] | None = None

    def __init__(self, name: str, module: ModuleType, **options: Any):
        self.name = name
        self.module = module
        self.options = options

    def refuses(self, case: Case, device: str) -> str | None:
        return None

    def decodes(self, case: Case) -> bool:
        return hasattr(self.module, f"fused_recurrent_{case.operator}")

    def precision(self, case: Case) -> Precision:
        return Precision.float64() if case.dtype == "float64" else Precision.float32()

    def versions(self) -> dict[str, str]:
        return {
            "torch": str(torch.__version__),
            getattr(self.module, "__name__", self.name): str(
                getattr(self.module, "__version__", "unknown")
            ),
        }

    def run(
        self, case: Case, inputs: Inputs, device: str, *, token_by_token: bool = False
    ) -> Results:
        tensors, options = arguments(case, inputs, device)
        leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
        o, ht = self.call(case, leaves, options, token_by_token=token_by_token)
        state_type = torch.float64 if case.dtype == "float64" else torch.float32
        for name, x, kind in (("o", o, tensors["q"].dtype), ("ht", ht, state_type)):
            if x.dtype != kind:
                raise AssertionError(f"{name} is {x.dtype}, not {kind}")
        results = {"o": to_array(o), "ht": to_array(ht)}
        adjoints = [
            (y, place(inputs[name], name, inputs.dtypes[name], case, device))
            for y, name in ((o, "do"), (ht, "dht"))
            if inputs[name] is not None
        ]
        if adjoints and o.requires_grad:
            outputs, seeds = zip(*adjoints, strict=True)
            found = torch.autograd.grad(outputs, list(leaves.values()), seeds, allow_unused=True)
            for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
                zero = torch.zeros_like(leaf) if gradient is None else gradient
                self._check_gradient(name, leaf, zero)
                results[quantity(name)] = to_array(zero)
        return results

    def call(
        self, case: Case, tensors: dict[str, Any], options: dict[str, Any], *, token_by_token: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One forward."""
        if token_by_token:
            function = getattr(self.module, f"fused_recurrent_{case.operator}")
            options = {**self.shared_options(), **options}
        else:
            function = getattr(self.module, f"chunk_{case.operator}")
            options = {"chunk_size": case.chunk_size, **self.options, **options}
        renamed = {"initial_state" if name == "h0" else name: x for name, x in tensors.items()}
        return function(**renamed, **options)

    def with_other_policy(self) -> Implementation | None:
        return None

    def shared_options(self) -> dict[str, Any]:
        """Options that the decoding form takes, too."""
        return {}

    @staticmethod
    def _check_gradient(name: str, leaf: torch.Tensor, gradient: torch.Tensor) -> None:
        if gradient.shape != leaf.shape or gradient.dtype != leaf.dtype:
            raise AssertionError(
                f"the gradient of {name} is {list(gradient.shape)} {gradient.dtype}, "
                f"its argument {list(leaf.shape)} {leaf.dtype}"
            )


def quantity(argument: str) -> str:
    """The name of an argument's gradient: dq, dk, ..., dA_log."""
    return f"d{argument}"
