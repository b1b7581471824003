"""What the suite asks of a thing under test, and the adapter for operators in
flash-linear-attention's form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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
        """Whether it has a token-by-token form for this case, whose results have gradients."""

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
        **_flags(case),
    }
    if case.packed:
        kind = torch.int32 if case.int32_offsets else torch.int64
        step = 2 if case.layout in ("strided", "mixed") else 1
        offsets = torch.zeros(step * (case.N + 1), dtype=kind, device=device)[::step]
        options["cu_seqlens"] = offsets.copy_(torch.tensor(case.offsets, dtype=kind))
    if case.without_g:
        options["g"] = None
    return tensors, options


def _flags(case: Case) -> dict[str, Any]:
    """The options that are given only where a case has them."""
    flags = {
        "use_qk_l2norm_in_kernel": case.qk_l2norm,
        "use_gate_in_kernel": case.gate_in_kernel,
        "lower_bound": case.lower_bound,
        "use_beta_sigmoid_in_kernel": case.beta_sigmoid,
        "allow_neg_eigval": case.neg_eigval,
        "state_v_first": case.state_v_first,
    }
    return {name: value for name, value in flags.items() if value}


@dataclass(frozen=True)
class Graph:
    """A forward that was made, whose backward is still to come.

    leaves: the arguments, of which some require gradients. o, ht: what was returned. adjoints: do
    and dht, those that there are. within: what a call runs in, `TorchOperators.within`.
    """

    leaves: dict[str, torch.Tensor]
    o: torch.Tensor
    ht: torch.Tensor | None
    adjoints: dict[str, torch.Tensor]
    within: Callable[[], AbstractContextManager] = nullcontext

    def results(self) -> Results:
        """o, ht if it was asked for, and the gradients of what requires them."""
        return self.outputs() | self.gradients(self.adjoints)

    def outputs(self) -> Results:
        """o, and ht if it was asked for."""
        returned = {"o": self.o, "ht": self.ht}
        return {name: to_array(x) for name, x in returned.items() if x is not None}

    def gradients(self, adjoints: Mapping[str, torch.Tensor], keep: bool = False) -> Results:
        """As :meth:`backward`, in arrays."""
        return {name: to_array(x) for name, x in self.backward(adjoints, keep).items()}

    def backward(
        self, adjoints: Mapping[str, torch.Tensor], keep: bool = False
    ) -> dict[str, torch.Tensor]:
        """Gradients from do and dht, as far as they are there; ``keep``: not the last backward.

        Zeros of what the results do not depend on; none at all where they depend on nothing, unless
        there is no token.

        Raises:
            AssertionError: a gradient has not the shape and type of its argument.
        """
        pairs = [(y, adjoints.get(name)) for y, name in ((self.o, "do"), (self.ht, "dht"))]
        pairs = [(y, x) for y, x in pairs if x is not None and y is not None]
        wanted = {name: x for name, x in self.leaves.items() if x.requires_grad}
        if not (pairs and wanted):
            return {}
        found = [None] * len(wanted)
        pairs = [(y, x) for y, x in pairs if y.requires_grad]
        if not pairs and self.o.numel():
            return {}
        if pairs:
            outputs, seeds = zip(*pairs, strict=True)
            with self.within():
                found = torch.autograd.grad(
                    outputs, list(wanted.values()), seeds, allow_unused=True, retain_graph=keep
                )
        results = {}
        for (name, leaf), gradient in zip(wanted.items(), found, strict=True):
            zero = torch.zeros_like(leaf) if gradient is None else gradient
            if zero.shape != leaf.shape or zero.dtype != leaf.dtype:
                raise AssertionError(
                    f"the gradient of {name} is {list(zero.shape)} {zero.dtype}, "
                    f"its argument {list(leaf.shape)} {leaf.dtype}"
                )
            results[quantity(name)] = zero
        return results


class TorchOperators:
    """Operators called and differentiated as flash-linear-attention's are: ``chunk_<operator>(q, k,
    v, ...)``.

    Subclasses name the module that holds the functions and say what they claim and where they
    round. ``options`` go to every chunkwise call. dtypes, chunk_sizes, head_sizes (K and V): what
    is claimed, and the search keeps to; None for any.
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

    def lacks(self, case: Case) -> str | None:
        """What the case asks for that is not claimed: a size or type beside those that are named,
        an operator that the module has not, an argument that its function does not take. Functions
        are not looked at where ``call`` is overridden, which may rename and drop; one with
        ``**kwargs`` is taken to take all.
        """
        sizes = (("head_sizes", case.head_size), ("head_sizes", case.value_size))
        for what, value in (("dtypes", case.dtype), ("chunk_sizes", case.chunk_size), *sizes):
            kept = getattr(self, what)
            if kept is not None and value not in kept:
                return f"{value} is not among its {what}"
        if type(self).call is not TorchOperators.call:
            return None
        return self._not_taken(f"chunk_{case.operator}", {"chunk_size"}, case)

    def _not_taken(self, name: str, more: set[str], case: Case) -> str | None:
        """What a function of the module does not take of the case's arguments and ``more``."""
        function = getattr(self.module, name, None)
        if function is None:
            return f"it has no {name}"
        try:
            taken = inspect.signature(function).parameters
        except (TypeError, ValueError):  # of what is not written in Python
            return None
        if any(x.kind is inspect.Parameter.VAR_KEYWORD for x in taken.values()):
            return None
        given = {*_flags(case), *_renamed(case.shapes()), *more} - {"do", "dht"}
        given |= {"cu_seqlens"} if case.packed else set()
        if missing := sorted(given - taken.keys()):
            return f"{name} takes no {', '.join(missing)}"
        return None

    def decodes(self, case: Case) -> bool:
        name = f"fused_recurrent_{case.operator}"
        if type(self).call is not TorchOperators.call:
            return hasattr(self.module, name)
        return self._not_taken(name, set(), case) is None

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
        return self.forward(case, inputs, device, token_by_token=token_by_token).results()

    def forward(
        self,
        case: Case,
        inputs: Inputs,
        device: str,
        *,
        token_by_token: bool = False,
        differentiated: Collection[str] = GRADIENTS,
        final_state: bool = True,
    ) -> Graph:
        """One forward, and what its backward needs. ``differentiated``: the arguments that require
        gradients. ``final_state``: whether ht is asked for.
        """
        tensors, options = arguments(case, inputs, device)
        options["output_final_state"] = final_state
        leaves = {
            name: x.detach().requires_grad_(name in differentiated) for name, x in tensors.items()
        }
        with self.within():
            o, ht = self.call(case, leaves, options, token_by_token=token_by_token)
        state_type = torch.float64 if case.dtype == "float64" else torch.float32
        for name, x, kind in (("o", o, tensors["q"].dtype), ("ht", ht, state_type)):
            if x is None and (final_state or name == "o"):
                raise AssertionError(f"{name} is missing")
            if x is not None and x.dtype != kind:
                raise AssertionError(f"{name} is {x.dtype}, not {kind}")
        adjoints = {
            name: place(inputs[name], name, inputs.dtypes[name], case, device)
            for name in ("do", "dht")
            if inputs[name] is not None
        }
        return Graph(leaves, o, ht, adjoints, self.within)

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
        return function(**_renamed(tensors), **options)

    def with_other_policy(self) -> Implementation | None:
        return None

    def within(self) -> AbstractContextManager:
        """What a forward and a backward run in."""
        return nullcontext()

    def shared_options(self) -> dict[str, Any]:
        """Options that the decoding form takes, too."""
        return {}


def _renamed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """By the names that flash-linear-attention has."""
    return {"initial_state" if name == "h0" else name: x for name, x in arguments.items()}


def quantity(argument: str) -> str:
    """The name of an argument's gradient: dq, dk, ..., dA_log."""
    return f"d{argument}"
