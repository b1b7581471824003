"""Inputs of an operator as leaves of autograd, and a call with them, for the tests beside this."""

from __future__ import annotations

import torch
from torch import Tensor

import rewy

OPERATORS = ("delta_rule", "gated_delta_rule", "kda", "gdn2")
FORMS = ("chunk", "fused_recurrent")


def make_inputs(
    operator: str,
    tokens: int = 37,
    *,
    B: int = 1,
    N: int | None = None,
    heads: int = 1,
    groups: int = 2,
    K: int = 5,
    V: int = 3,
    dtype: torch.dtype = torch.float64,
    raw_gate: bool = False,
    raw_beta: bool = False,
) -> dict[str, Tensor]:
    """Leaves by argument name; ``raw_gate`` with the parameters of the gate's activation.

    ``N`` is the number of states, B unless packed.
    """
    generator = torch.Generator().manual_seed(3)
    HV = heads * groups
    per_channel = operator in ("kda", "gdn2")

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    # |k|^2 well inside 2 / beta, where the recurrence contracts.
    x = {name: normal(B, tokens, heads, K) / (2 * K**0.5) for name in ("q", "k")}
    x["v"] = normal(B, tokens, HV, V)
    if operator != "delta_rule":
        g = normal(B, tokens, HV, *((K,) if per_channel else ()))
        x["g"] = g if raw_gate else -0.02 - g.abs() / 4
    for name, sizes in {"b": (K,), "w": (V,)}.items() if operator == "gdn2" else [("beta", ())]:
        logits = normal(B, tokens, HV, *sizes)
        x[name] = logits if raw_beta else logits.sigmoid()
    x["initial_state"] = normal(B if N is None else N, HV, K, V)
    if raw_gate and operator != "delta_rule":
        x |= {"A_log": normal(HV) / 2, "dt_bias": normal(HV * K if per_channel else HV)}
    return {name: value.requires_grad_() for name, value in x.items()}


def call(operator: str, form: str, x: dict[str, Tensor], **options: object):
    """``(o, ht)`` of an operator in one of its forms."""
    options = {"output_final_state": True, **options}
    return getattr(rewy, f"{form}_{operator}")(**x, **options)
