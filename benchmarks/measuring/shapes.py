"""The shapes that are measured, and inputs for them."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from rewy.problem import Problem, Spec, Tensors

OPERATORS = ("delta_rule", "gated_delta_rule", "kda", "gdn2")
POLICIES = ("recompute", "save")
DTYPES = ("bfloat16", "float16")  # of two bytes: floors count those
CHANNEL = ("kda", "gdn2")  # a decay for each key channel
# fla's safe_gate wants no gate below it. All sides get the same inputs, so it holds for all.
LOWEST_GATE = -5.0


class Shape(NamedTuple):
    """``lengths`` of sequences: packed into one row where they differ, else a batch."""

    name: str
    lengths: tuple[int, ...]
    H: int = 16
    HV: int = 16
    size: int = 128  # K = V

    @property
    def packed(self) -> bool:
        return len(set(self.lengths)) > 1

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def B(self) -> int:
        return 1 if self.packed else len(self.lengths)

    @property
    def chunks(self) -> int:
        """Chunks of 64 in all sequences."""
        return sum(-(-length // 64) for length in self.lengths)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("b1-t8192", (8192,)),
        Shape("b1-t32768", (32768,)),
        Shape("b8-t2048", 8 * (2048,)),
        Shape("b4-t8192", 4 * (8192,)),
        Shape("packed-t16384", (4099, 131, 2777, 1024, 3583, 517, 2049, 2204)),
        Shape("b4-t4096-k64", 4 * (4096,), size=64),
        Shape("gva-b1-t8192", (8192,), HV=32),
    )
}
SIX = tuple(SHAPES)[:6]  # what geometric means are taken over


def small(shape: Shape) -> Shape:
    """So few tokens that float64 is cheap; everything that compiled code depends on is kept."""
    lengths = (150, 1, 64, 35) if shape.packed else shape.B * (250,)
    return shape._replace(name=f"small {shape.name}", lengths=lengths)


def gates_of(operator: str) -> tuple[str, ...]:
    """The kinds of gates that an operator is measured with."""
    return ("none",) if operator == "delta_rule" else ("initial", "strong")


class Inputs(NamedTuple):
    """A problem, the adjoint of its outputs, and its offsets as fla takes them."""

    problem: Problem
    do: Tensor
    cu_seqlens: Tensor | None

    def under(self, policy: str) -> Inputs:
        """The same under a policy."""
        spec, tensors = self.problem
        return self._replace(problem=Problem(replace(spec, policy=policy), tensors))


def _gates(kind: str, shape: Shape, channels: int, generator: torch.Generator) -> Tensor:
    """Log decays ``[HV, channels]`` a token: a model's at initialisation, or strong ones.

    At initialisation ``g = -A softplus(x + bias)``: A uniform in [0, 16] for each head, softplus(
    bias) log-uniform in [1e-3, 0.1] for each head or channel, x the projection's noise.
    """
    size = (shape.B, shape.tokens // shape.B, shape.HV, channels)
    device = generator.device

    def uniform(*sizes: int) -> Tensor:
        return torch.rand(*sizes, device=device, generator=generator)

    if kind == "strong":
        return -1 - 4 * uniform(*size)
    A = 16 * uniform(shape.HV, 1)
    dt = 1e-3 * 100 ** uniform(shape.HV, channels)
    bias = dt + torch.log(-torch.expm1(-dt))  # softplus(bias) = dt
    noise = 0.5 * torch.randn(*size, device=device, generator=generator)
    return (-A * softplus(noise + bias)).clamp(min=LOWEST_GATE)


def make_inputs(
    operator: str, shape: Shape, gates: str, device: str = "cuda", dtype: str = DTYPES[0]
) -> Inputs:
    """A training step's in ``dtype`` under policy 'recompute': unit keys, gates in float32."""
    generator = torch.Generator(device).manual_seed(0)
    narrow = getattr(torch, dtype)
    H, HV, size, B = shape.H, shape.HV, shape.size, shape.B
    T = shape.tokens // B

    def normal(*sizes: int) -> Tensor:
        return torch.randn(B, T, *sizes, device=device, generator=generator)

    q, k = (normalize(normal(H, size), dim=-1).to(narrow) for _ in range(2))
    v, do = (normal(HV, size).to(narrow) for _ in range(2))
    channels = size if operator in CHANNEL else 1
    two = operator == "gdn2"  # erase and write gates
    tensors = Tensors(
        q=q,
        k=k,
        v=v,
        g=None if gates == "none" else _gates(gates, shape, channels, generator),
        b=normal(HV, size if two else 1).sigmoid().to(narrow),
        w=normal(HV, size).sigmoid().to(narrow) if two else None,
        h0=None,
        A_log=None,
        dt_bias=None,
    )
    starts = (0, *accumulate(shape.lengths))
    spec = Spec(
        B, T, H, HV, size, size, starts, size**-0.5, 64, "recompute",
        output_final_state=False, state_v_first=False, l2norm=False, gate_activation=False,
        lower_bound=None, beta_activation=False, neg_eigval=False, compute_dtype=torch.float32,
    )  # fmt: skip
    offsets = torch.tensor(starts, device=device) if shape.packed else None
    return Inputs(Problem(spec, tensors), do, offsets)
