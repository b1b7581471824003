"""Bad calls: one thing wrong at a time, and the argument that the refusal must name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from properties.case import Case

Call = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Spoiler:
    """A way to spoil a call.

    names: one of them must appear in the message. fits: whether the case has what is spoilt. spoil:
        changes (arguments, options) in place.
    """

    name: str
    names: tuple[str, ...]
    fits: Callable[[Case], bool]
    spoil: Callable[[dict, dict], None]


def _always(case: Case) -> bool:
    return True


def _set(name: str, change: Callable[[Any], Any]) -> Callable[[dict, dict], None]:
    def spoil(tensors: dict, options: dict) -> None:
        tensors[name] = change(tensors[name])

    return spoil


def _option(**values: Any) -> Callable[[dict, dict], None]:
    def spoil(tensors: dict, options: dict) -> None:
        options.update(values)

    return spoil


def _offsets(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict, dict], None]:
    def spoil(tensors: dict, options: dict) -> None:
        options["cu_seqlens"] = change(options["cu_seqlens"].clone())

    return spoil


def _edit(index: int, amount: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(offsets: torch.Tensor) -> torch.Tensor:
        offsets[index] += amount
        return offsets

    return change


def _last_gate(value: float) -> Callable[[dict, dict], None]:
    def spoil(tensors: dict, options: dict) -> None:
        g = tensors["g"].clone()
        g[(-1,) * g.dim()] = value
        tensors["g"] = g
        if g.device.type != "cpu":  # values on a device are checked on request
            options["check_values"] = True

    return spoil


def _has_log_decays(case: Case) -> bool:
    return _given(case) and not case.gate_in_kernel and case.tokens > 0


def _widened(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x[..., :1]], -1)


def _packed(tensors: dict, options: dict) -> None:
    T = tensors["q"].shape[1]
    options["cu_seqlens"] = torch.tensor([0, T], device=tensors["q"].device)


def _gated(case: Case) -> bool:
    return case.has_gate


def _given(case: Case) -> bool:
    return case.has_gate and not case.without_g


def _beta(case: Case) -> str:
    return "b" if case.operator == "gdn2" else "beta"


def _spoil_beta(change: Callable) -> Callable[[dict, dict], None]:
    def spoil(tensors: dict, options: dict) -> None:
        name = "b" if "b" in tensors else "beta"
        tensors[name] = change(tensors[name])

    return spoil


SPOILERS = (
    Spoiler("q of rank 3", ("q",), _always, _set("q", lambda x: x[:, :, 0])),
    Spoiler("q of integers", ("q",), _always, _set("q", lambda x: x.to(torch.int32))),
    Spoiler("q as a list", ("q",), _always, _set("q", lambda x: x.tolist())),
    Spoiler("k of another head size", ("k",), _always, _set("k", _widened)),
    Spoiler(
        "k of another type",
        ("q, k and v",),
        _always,
        _set("k", lambda x: x.to(torch.float32 if x.dtype != torch.float32 else torch.bfloat16)),
    ),
    Spoiler(
        "v of another length",
        ("v",),
        _always,
        _set(
            "v",
            lambda x: (
                torch.cat([x, x[:, :1]], 1)
                if x.shape[1]
                else x.new_zeros(x.shape[0], 1, *x.shape[2:])
            ),
        ),
    ),
    Spoiler(
        "v of heads that do not group",
        ("v",),
        lambda case: case.heads > 1,
        _set("v", lambda x: torch.cat([x, x[:, :, :1]], 2)),
    ),
    Spoiler("v missing", ("v",), _always, _set("v", lambda x: None)),
    Spoiler("beta of another rank", ("b", "beta"), _always, _spoil_beta(lambda x: x[..., None])),
    Spoiler("beta of integers", ("b", "beta"), _always, _spoil_beta(lambda x: x.to(torch.int64))),
    Spoiler("w of K channels", ("w",), lambda c: c.operator == "gdn2", _set("w", _widened)),
    Spoiler("g of another shape", ("g",), _given, _set("g", lambda x: x[..., None])),
    Spoiler("g above 0", ("g",), _has_log_decays, _last_gate(0.5)),
    Spoiler("g not a number", ("g",), _has_log_decays, _last_gate(math.nan)),
    Spoiler("no raw gate", ("g",), lambda c: c.gate_in_kernel, _set("g", lambda x: None)),
    Spoiler(
        "dt_bias of another shape", ("dt_bias",), lambda c: c.dt_bias, _set("dt_bias", _widened)
    ),
    Spoiler(
        "dt_bias in a form of rank 3",
        ("dt_bias",),
        lambda c: c.dt_bias,
        _set("dt_bias", lambda x: x.reshape(-1, 1, 1)),
    ),
    Spoiler(
        "no A_log",
        ("A_log",),
        lambda c: c.gate_in_kernel and c.lower_bound is None,
        _set("A_log", lambda x: None),
    ),
    Spoiler(
        "lower_bound without its gate",
        ("lower_bound",),
        lambda c: c.has_gate and not c.gate_in_kernel,
        _option(lower_bound=-5.0),
    ),
    Spoiler(
        "initial_state of another shape",
        ("initial_state",),
        lambda c: c.initial_state != "none",
        _set("h0", _widened),
    ),
    Spoiler(
        "initial_state in bfloat16",
        ("initial_state",),
        lambda c: c.initial_state != "none",
        _set("h0", lambda x: x.to(torch.bfloat16)),
    ),
    Spoiler(
        "initial_state on another device",
        ("initial_state",),
        lambda c: c.initial_state != "none",
        _set("h0", lambda x: x.to("meta")),
    ),
    Spoiler("chunk_size 48", ("chunk_size",), _always, _option(chunk_size=48)),
    Spoiler("chunk_size True", ("chunk_size",), _always, _option(chunk_size=True)),
    Spoiler("scale NaN", ("scale",), _always, _option(scale=float("nan"))),
    Spoiler(
        "scale past float32",
        ("scale",),
        lambda c: c.dtype != "float64",
        _option(scale=1e39),
    ),
    Spoiler("scale as text", ("scale",), _always, _option(scale="0.5")),
    Spoiler(
        "output_final_state 1", ("output_final_state",), _always, _option(output_final_state=1)
    ),
    Spoiler(
        "allow_neg_eigval alone",
        ("allow_neg_eigval",),
        _always,
        _option(allow_neg_eigval=True, use_beta_sigmoid_in_kernel=False),
    ),
    Spoiler(
        "A_log without its gate",
        ("A_log",),
        lambda c: c.has_gate and not c.gate_in_kernel,
        lambda tensors, options: tensors.update(
            A_log=torch.zeros(tensors["v"].shape[2], device=tensors["v"].device)
        ),
    ),
    Spoiler("lower_bound above 0", ("lower_bound",), _gated, _option(lower_bound=1.0)),
    Spoiler("a backend of no such name", ("backend",), _always, _option(backend="quantum")),
    Spoiler("an option nobody knows", ("head_first",), _always, _option(head_first=True)),
    Spoiler("cp_context", ("cp_context",), _gated, _option(cp_context=object())),
    Spoiler("offsets for a batch", ("q", "cu_seqlens"), lambda c: c.B > 1, _packed),
    Spoiler("offsets not from 0", ("cu_seqlens",), lambda c: c.packed, _offsets(_edit(0, 1))),
    Spoiler("offsets not to T", ("cu_seqlens",), lambda c: c.packed, _offsets(_edit(-1, 1))),
    Spoiler(
        "offsets short of T",
        ("cu_seqlens",),
        lambda c: c.packed and c.lengths[-1] > 0,
        _offsets(_edit(-1, -1)),
    ),
    Spoiler(
        "offsets that decrease",
        ("cu_seqlens",),
        lambda c: c.packed and c.N > 1,
        _offsets(_edit(1, -(2**20))),
    ),
    Spoiler(
        "offsets of floats", ("cu_seqlens",), lambda c: c.packed, _offsets(lambda x: x.float())
    ),
    Spoiler("offsets of int16", ("cu_seqlens",), lambda c: c.packed, _offsets(lambda x: x.short())),
    Spoiler("offsets of rank 2", ("cu_seqlens",), lambda c: c.packed, _offsets(lambda x: x[None])),
)
