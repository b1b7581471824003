"""The sides that are measured: a forward that says what it keeps, and a backward from that.

Both are the low-level functions, below autograd. ``gradients`` are named after the arguments, each
in the shape of its argument; types are the side's own.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

from torch import Tensor

from measuring.fla import Fla
from measuring.shapes import CHANNEL, Inputs, Shape

Results = dict[str, Tensor]


class Side(Protocol):
    """One implementation, as it is called."""

    name: str

    def refuses(self, operator: str, shape: Shape, policy: str) -> str | None:
        """Why it cannot do this, if it says so beforehand."""

    def forward(self, operator: str, x: Inputs) -> tuple[Tensor, Any]:
        """o and what is kept under the problem's policy."""

    def backward(self, operator: str, x: Inputs, kept: Any) -> Results:
        """Gradients by name."""

    def used(self) -> list[str]:
        """What of other packages it has called so far."""


class Rewy:
    """This repository's kernels."""

    name = "rewy"

    def refuses(self, operator: str, shape: Shape, policy: str) -> str | None:
        return None

    def forward(self, operator: str, x: Inputs) -> tuple[Tensor, Any]:
        from rewy.backends.triton import triton

        o, _, kept = triton.forward(x.problem)
        return o, kept

    def backward(self, operator: str, x: Inputs, kept: Any) -> Results:
        from rewy.backends.triton import triton

        return named(triton.backward(x.problem, kept, x.do, None)._asdict())

    def used(self) -> list[str]:
        return []


class FlashQLA:
    """FlashQLA's Gated DeltaNet, splitting long sequences inside the card as it decides itself.

    Its backward computes the states anew; there is no saved form.
    """

    name = "flash-qla"

    def refuses(self, operator: str, shape: Shape, policy: str) -> str | None:
        if policy == "save":
            return "has no saved form"
        return None if shape.size == 128 else f"has K = V = 128 only, not {shape.size}"

    def forward(self, operator: str, x: Inputs) -> tuple[Tensor, Any]:
        from flash_qla.ops.gated_delta_rule import chunk

        spec, t = x.problem
        context = chunk._auto_intra_cp_context(
            t.k, t.v, x.cu_seqlens, chunk.CHUNK_SIZE, auto_cp=True, is_train=True
        )
        g, A, o, _, _, cache = chunk.chunk_gated_delta_rule_fwd(
            q=t.q, k=t.k, v=t.v, g=t.g.squeeze(-1), beta=t.b.squeeze(-1), scale=spec.scale,
            cu_seqlens=x.cu_seqlens, output_final_state=False, enable_fwd_cp_cache=True,
            cp_context=context, is_train=True,
        )  # fmt: skip
        return o, (g, A, cache, context)

    def backward(self, operator: str, x: Inputs, kept: Any) -> Results:
        from flash_qla.ops.gated_delta_rule import chunk

        spec, t = x.problem
        g, A, cache, context = kept
        dq, dk, dv, db, dg, _ = chunk.chunk_gated_delta_rule_bwd(
            q=t.q, k=t.k, v=t.v, g=g, beta=t.b.squeeze(-1), A=A, do=x.do, scale=spec.scale,
            cu_seqlens=x.cu_seqlens, cp_cache=cache, cp_context=context,
        )  # fmt: skip
        return named({"q": dq, "k": dk, "v": dv, "g": dg.unsqueeze(-1), "b": db.unsqueeze(-1)})

    def used(self) -> list[str]:
        return []


def named(gradients: dict[str, Tensor | None]) -> Results:
    """With a d before each name, without those that are None."""
    return {f"d{name}": x for name, x in gradients.items() if x is not None}


def missing(package: str) -> bool:
    """Whether a package is not installed."""
    return importlib.util.find_spec(package) is None


def sides_of(operator: str, ours_only: bool) -> list[Side]:
    """Ours first, then all that have the operator and are installed."""
    sides: list[Side] = [Rewy()]
    if ours_only:
        return sides
    if not missing("fla"):
        sides += [Fla(safe) for safe in (False, True) if not safe or operator in CHANNEL]
    if operator == "gated_delta_rule" and not missing("flash_qla"):
        sides.append(FlashQLA())
    return sides
