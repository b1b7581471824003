"""What a comparison is: two kernels from the same tensors to the same tensors, and their launch.

Chunks of 64 rows lie one after the other, ``[M, C, ...]`` for M chunks and heads; programs, tile
sizes and operands are the same for both, or the best of the same short list for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton.language as tl
from measuring.floors import C
from measuring.shapes import Inputs
from torch import Tensor

from rewy.backends.triton.start import start

Tensors = dict[str, Tensor]


class Tile(NamedTuple):
    """One way to launch a kernel. BK: key channels a tile; UNROLL: pairs of rows taken at once, in
    a loop over pairs.
    """

    BK: int
    warps: int
    stages: int
    UNROLL: int = 1


class Count(NamedTuple):
    """What a side does to one chunk and head, or to all of a call: ``products``, FLOPs of matrix
    products, ``pairs``, FLOPs of sums over pairs one after the other, two for each multiplication
    and addition, and ``decays``, exponentials.
    """

    products: int
    pairs: int = 0
    decays: int = 0

    def times(self, n: int) -> Count:
        return Count(*(n * x for x in self))


class Side(NamedTuple):
    """A kernel, ways to launch it, and what it does at chunks of C and K = V = size."""

    name: str
    kernel: Any
    tiles: tuple[Tile, ...]
    count: Callable[[int, int], Count]


class Comparison(NamedTuple):
    """Attributes:

    operator: whose inputs are taken. make: tensors by name, from these inputs, in a type.
    truth: the results in float64. results: each result and the input whose size and type it has;
    the first is ``[M, C, K]``. naive, ours: the sides. rows: rows of a chunk a program.
    tiled: whether a program has one tile of key channels, else it goes over all.
    """

    name: str
    operator: str
    make: Callable[[Inputs, torch.dtype], Tensors]
    truth: Callable[[Tensors], Tensors]
    results: dict[str, str]
    naive: Side
    ours: Side
    rows: int = C
    tiled: bool = False

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.naive, self.ours

    def empty(self, x: Tensors) -> Tensors:
        """Results full of NaN: what is not written is told."""
        return {name: torch.full_like(x[like], torch.nan) for name, like in self.results.items()}


def chunked(x: Tensor) -> Tensor:
    """``[B, T, H, D]`` as contiguous ``[B * T / C * H, C, D]``."""
    B, T, H, D = x.shape
    return x.reshape(B, T // C, C, H, D).transpose(2, 3).reshape(-1, C, D).contiguous()


def around_scores(inputs: Inputs, dtype: torch.dtype) -> Tensors:
    """Queries, keys and strengths in a type, gate sums inside chunks as exponents of 2 in at least
    float32, and random dP and dL, ``[M, C, C]``, strictly lower.
    """
    t = inputs.problem.tensors
    q, k, b = (chunked(x).to(dtype) for x in (t.q, t.k, t.b))
    G = chunked(t.g).double().cumsum(1) / math.log(2)
    generator = torch.Generator(q.device).manual_seed(1)
    size = 2, len(q), q.shape[1], q.shape[1]
    dP, dL = torch.randn(size, device=q.device, generator=generator).tril_(-1).to(dtype)
    return {"q": q, "k": k, "b": b, "G": G.to(torch.promote_types(dtype, torch.float32)),
            "dP": dP, "dL": dL}  # fmt: skip


def launch(comparison: Comparison, side: Side, tile: Tile, x: Tensors, found: Tensors) -> None:
    """Have a side write its results."""
    start(*prepared(comparison, side, tile, x, found))


def prepared(
    comparison: Comparison, side: Side, tile: Tile, x: Tensors, found: Tensors
) -> tuple[Any, int, Tile, list[Tensor], dict[str, Any]]:
    """What :func:`launch` starts: kernel, programs, tile, tensors and constants in the kernel's
    order.
    """
    M, rows, size = found[next(iter(comparison.results))].shape
    narrow = x[next(iter(x))].dtype == torch.bfloat16
    constants = {
        "C": rows, "K": size, "V": size, "ROWS": comparison.rows, "BK": tile.BK,
        "UNROLL": tile.UNROLL, "OP": tl.bfloat16 if narrow else tl.float32,
        "PREC": "tf32" if narrow else "ieee",
    }  # fmt: skip
    programs = M * (rows // comparison.rows) * (size // tile.BK if comparison.tiled else 1)
    names = side.kernel.arg_names
    tensors = x | found
    arguments = [tensors[name] for name in names if name in tensors]
    constants = {name: constants[name] for name in names[len(arguments) :]}
    return side.kernel, programs, tile, arguments, constants


def moved_bytes(side: Side, x: Tensors, found: Tensors) -> int:
    """Of the tensors that a side takes, each once."""
    return sum(t.nbytes for name, t in (x | found).items() if name in side.kernel.arg_names)
