"""Nothing is read that nobody wrote, nothing is left unwritten, nothing is touched beside a tensor:
``python -m tests.triton.guards OPERATOR TYPE K V [cpu]``, on the CPU in Triton's interpreter.

Every call is made twice and must give the same bits, finite ones: as it comes, and with NaN in
whatever is handed out uninitialised and around every tensor, the caller's and the backend's, where
it must still stand afterwards. Shared memory is not seen here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.triton.on_device import LAYOUTS, Layout, arguments, results

SMALL = (Layout(1, 2, 20, (0, 17, 17, 20), 16, 1.0),)  # for the interpreter
# Bytes on each side: more than a tile, so that what passes an end lands in them, and a multiple of
# 16, since kernels have other forms, and other sums, for tensors that are not aligned to that.
FENCE = 1 << 17
POST = 0xFF  # a byte; NaN in every float type, and not the NaN that a GPU's arithmetic makes
WITHOUT_VALUES = {
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
}
ZEROS = {torch.ops.aten.zeros, torch.ops.aten.zeros_like, torch.ops.aten.new_zeros}


@contextmanager
def filled() -> Iterator[None]:
    """Torch fills uninitialised tensors with NaN."""
    settings = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        settings.fill_uninitialized_memory = before[1]


def unfilled(device: str) -> list[str]:
    """Where torch does not, a line each."""
    told = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        like = torch.zeros(5, dtype=dtype, device=device)
        makers = {
            "empty": lambda x: torch.empty(5, dtype=x.dtype, device=x.device),
            "empty_like": torch.empty_like,
            "new_empty": lambda x: x.new_empty(5),
            "new_empty_strided": lambda x: x.new_empty_strided((5,), (1,)),
        }
        for name, make in makers.items():
            torch.zeros_like(like)  # freed at once: an allocator that reuses it hands out zeros
            with filled():
                made = make(like)
            if not made.isnan().all():
                told.append(f"torch.{name} of {dtype} is not filled on {device}")
    return told


def _fenced(x: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """A tensor like x between fences, with x's values or NaN; and all of its memory, in bytes."""
    size = x.untyped_storage().nbytes()
    block = torch.full((size + 2 * FENCE,), POST, dtype=torch.uint8, device=x.device)
    inside = block[FENCE : FENCE + size].view(x.dtype)
    inside = inside.as_strided(x.shape, x.stride(), inside.storage_offset())
    return inside.copy_(x) if keep else inside, block


class Fences(TorchDispatchMode):
    """While it is active every tensor made without values, or of zeros, lies between fences.

    Autograd hands the mode on to the threads that run backwards on a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[tuple[str, Tensor]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        x = func(*args, **(kwargs or {}))
        if not isinstance(x, Tensor) or not x.numel():
            return x
        zeros = func.overloadpacket in ZEROS
        if not zeros and func.overloadpacket not in WITHOUT_VALUES:
            return x
        return self.add(f"{func.overloadpacket} {list(x.shape)}", x, keep=zeros)

    def add(self, name: str, x: Tensor, keep: bool = True) -> Tensor:
        """x between fences."""
        x, block = _fenced(x, keep)
        self.blocks.append((name, block))
        return x

    def holds(self, x: Tensor) -> bool:
        """Whether x lies between fences."""
        return any(
            block.data_ptr() + FENCE <= x.data_ptr() <= block.data_ptr() + len(block) - FENCE
            for _, block in self.blocks
        )

    def broken(self) -> list[str]:
        """Who wrote over a fence, a line each."""
        told = []
        for name, block in self.blocks:
            for side, fence in (("before", block[:FENCE]), ("after", block[-FENCE:])):
                if not (fence == POST).all():
                    told.append(f"bytes {side} {name} are overwritten")
        return told


def guarded_results(
    operator: str, x: dict, layout: Layout, adjoints: tuple[Tensor, ...], **options: object
) -> tuple[dict[str, Tensor], list[str]]:
    """Results amid NaN, and where it was overwritten."""
    fences = Fences()
    x = {name: fences.add(name, value.clone()) for name, value in x.items()}
    adjoints = tuple(fences.add(f"adjoint {n}", y.clone()) for n, y in enumerate(adjoints))
    with filled(), fences:
        found = results(operator, x, layout, adjoints, backend="triton", **options)
    told = fences.broken()
    if not fences.holds(found["o"]):
        told.append("the forward's tensors are not fenced")
    if not any(fences.holds(y) for name, y in found.items() if name.startswith("d")):
        told.append("the backward's tensors are not fenced")
    return found, told


def same_bits(x: Tensor, y: Tensor) -> bool:
    """Whether x and y are equal to the bit."""
    return x.dtype == y.dtype and torch.equal(
        *(z.contiguous().flatten().view(torch.uint8) for z in (x, y))
    )


def wrong(
    operator: str,
    dtype: str,
    K: int,
    V: int,
    layouts: Iterable[Layout] = LAYOUTS,
    policies: Iterable[bool] = (False, True),
    device: str = "cuda",
) -> list[str]:
    """What is wrong, a line each; ``policies``: values of disable_recompute."""
    told = unfilled(device)
    for layout in layouts:
        x = arguments(operator, getattr(torch, dtype), K, V, layout)
        adjoints = torch.randn_like(x["v"]), torch.randn_like(x["initial_state"])
        x = {name: value.to(device) for name, value in x.items()}
        adjoints = tuple(y.to(device) for y in adjoints)
        for save in policies:
            call, options = (operator, x, layout, adjoints), {"disable_recompute": save}
            plain = results(*call, backend="triton", **options)
            guarded, told_here = guarded_results(*call, **options)
            for name, right in plain.items():
                if not right.isfinite().all():
                    told_here.append(f"{name} is not finite")
                if not same_bits(right, guarded[name]):
                    told_here.append(f"{name} depends on what nobody wrote or lies outside")
            told += [f"{line}: {options}, {layout}" for line in told_here]
    return told


if __name__ == "__main__":
    operator, dtype, K, V, *cpu = sys.argv[1:]
    reduced = {}
    if cpu:
        import tests.triton.interpreter  # noqa: F401  (before anything imports triton)

        reduced = {"layouts": SMALL, "policies": (False,), "device": "cpu"}
    print(json.dumps(wrong(operator, dtype, int(K), int(V), **reduced)), flush=True)
    os._exit(0)  # torch's threads sometimes abort at an ordinary exit
