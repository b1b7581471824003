"""One operator, type and pair of head sizes on the GPU at hand, against the eager graph in float64:
``python -m tests.triton.on_device OPERATOR TYPE K V``.

A process of its own, because a kernel that Triton compiled wrongly may fault, and a fault ends the
process's use of the GPU.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NamedTuple

import torch
from torch import Tensor

import rewy

# ||error|| / ||truth|| of right kernels on an H200: 0.021, 0.0029 and 0.0000033 at most; of kernels
# compiled wrongly 0.1 and more. A limit is for quantities of which the eager graph in float32 loses
# no more than ORDINARY, and grows with what it loses: the gradient of what is all but forgotten.
ORDINARY = 4e-7
LIMITS = {"bfloat16": 4e-2, "float16": 5e-3, "float32": 2e-5}


class Layout(NamedTuple):
    """Of one batch row: heads, tokens, offsets of a pack or None, chunk size, strength of gates."""

    heads: int
    value_heads: int
    tokens: int
    offsets: tuple[int, ...] | None
    chunk_size: int
    gate_scale: float

    @property
    def sequences(self) -> int:
        return 1 if self.offsets is None else len(self.offsets) - 1


# Between them they take every path of the kernels.
LAYOUTS = (
    Layout(1, 2, 150, None, 64, 0.1),
    Layout(2, 2, 97, (0, 1, 1, 70, 97), 64, 3.0),
    Layout(1, 1, 70, None, 32, 3.0),
    Layout(1, 1, 37, (0, 37), 16, 1.0),
)


def many(V: int) -> Layout:
    """So many heads that each state pass fills a GPU by itself."""
    # Not sooner: tests.triton.interpreter must come before whatever imports triton.
    from rewy.backends.triton.configs import MULTIPROCESSORS
    from rewy.backends.triton.tiles import padded

    heads = MULTIPROCESSORS * 64 // padded(V)
    return Layout(1, heads, 70, None, 64, 0.3)


def arguments(operator: str, dtype: torch.dtype, K: int, V: int, layout: Layout) -> dict:
    """A call's tensors, on the CPU."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def unit(*shape: int) -> Tensor:
        return torch.nn.functional.normalize(normal(*shape), dim=-1)

    H, HV, T = layout.heads, layout.value_heads, layout.tokens
    x = {
        "q": unit(1, T, H, K).to(dtype),
        "k": unit(1, T, H, K).to(dtype),
        "v": normal(1, T, HV, V).to(dtype),
        "initial_state": normal(layout.sequences, HV, K, V).float(),
    }
    # Unit keys of few channels overlap: strengths of 1/2 would leave nothing of h0 but rounding,
    # and one limit for all sizes says nothing of its gradient then. What becomes of strengths near
    # 1 at K = 1 is for the suite, whose budgets know.
    strength = min(1.0, K / 16)
    channels = {"gated_delta_rule": (), "kda": (K,), "gdn2": (K,)}.get(operator)
    if channels is not None:
        g = torch.nn.functional.logsigmoid(normal(1, T, HV, *channels))
        x["g"] = (g * layout.gate_scale).float()
    if operator == "gdn2":
        x["b"] = (strength * normal(1, T, HV, K).sigmoid()).to(dtype)
        x["w"] = normal(1, T, HV, V).sigmoid().to(dtype)
    else:
        x["beta"] = (strength * normal(1, T, HV).sigmoid()).to(dtype)
    return x


def results(
    operator: str, x: dict, layout: Layout, adjoints: tuple[Tensor, Tensor], **options: object
) -> dict[str, Tensor]:
    """o, ht and the gradient of every argument."""
    leaves = {name: value.detach().requires_grad_() for name, value in x.items()}
    if layout.offsets is not None:
        options["cu_seqlens"] = torch.tensor(layout.offsets, device=x["q"].device)
    function = getattr(rewy, f"chunk_{operator}")
    found = function(**leaves, output_final_state=True, chunk_size=layout.chunk_size, **options)
    gradients = torch.autograd.grad(found, list(leaves.values()), adjoints)
    names = ("o", "ht", *(f"d{name}" for name in leaves))
    return dict(zip(names, (*(y.detach() for y in found), *gradients), strict=True))


def wrong(
    operator: str,
    dtype: str,
    K: int,
    V: int,
    device: str = "cuda",
    layouts: tuple[Layout, ...] | None = None,
) -> list[str]:
    """What is wrong, a line each."""
    told = []
    for layout in layouts or (*LAYOUTS, many(V)):
        x = arguments(operator, getattr(torch, dtype), K, V, layout)
        generator = torch.Generator().manual_seed(2)
        adjoints = tuple(
            torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
            for y in (x["v"], x["initial_state"])
        )
        truth, single = (
            results(
                operator,
                {name: value.to(wide) for name, value in x.items()},
                layout,
                tuple(y.to(wide) for y in adjoints),
                backend="eager",
            )
            for wide in (torch.float64, torch.float32)
        )
        there = {name: value.to(device) for name, value in x.items()}
        adjoints = tuple(y.to(device) for y in adjoints)
        found, saved = (
            results(operator, there, layout, adjoints, backend="triton", disable_recompute=save)
            for save in (False, True)
        )
        for name, right in truth.items():
            error, lost = (
                float((y.double().cpu() - right).norm() / right.norm())
                for y in (found[name], single[name])
            )
            if not error <= LIMITS[dtype] * max(1.0, lost / ORDINARY):
                told.append(f"{name}: relative error {error:.2e} in {layout}")
            if not torch.equal(found[name], saved[name]):
                told.append(f"{name}: the policies differ in {layout}")
    return told


if __name__ == "__main__":
    operator, dtype, K, V = sys.argv[1:5]
    print(json.dumps(wrong(operator, dtype, int(K), int(V), *sys.argv[5:])), flush=True)
    os._exit(0)  # torch's threads sometimes abort at an ordinary exit
