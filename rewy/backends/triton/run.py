"""One problem on its way through the kernels: what every launch needs, and the tensors between."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from rewy.backends.triton.channel import rows_a_program
from rewy.backends.triton.configs import Config, config
from rewy.backends.triton.gates import gate_sums
from rewy.backends.triton.inputs import activate, channel_erase, channel_write, gate_kind
from rewy.backends.triton.remembered import NEVER, name_of, recall
from rewy.backends.triton.start import start
from rewy.backends.triton.tiles import CHUNKS, Tiles
from rewy.problem import Problem

# Compiled in where models are trained: bfloat16, chunks of 64, heads that fill their padding.
# Elsewhere kernels take them as numbers, in smaller tiles: a form of each for every size would
# be thousands, a second's compilation each.
SIZES = ("K", "V", "KP", "VP")


class Run:
    """Attributes:

    problem, spec: as given. active: the inputs as the kernels take them. tiles: where chunks lie.
    gate: NONE, HEAD or CHANNEL. b_channel, w_channel: whether erase and write are per channel.
    operand: what products are made of, 'bf16', 'tf32' or 'ieee' (float32). kept: the type of what
        lies between stages. known: the sizes that are compiled in. G: gate sums, or None.
    """

    def __init__(self, problem: Problem, sums: bool = True, G: Tensor | None = None):
        spec, x = problem
        self.problem, self.spec = problem, spec
        self.active = activate(problem)
        self.tiles = Tiles(spec, x.q.device)
        self.gate = gate_kind(problem)
        self.b_channel, self.w_channel = channel_erase(problem), channel_write(problem)
        self.operand = {torch.bfloat16: "bf16", torch.float16: "tf32"}.get(x.q.dtype, "ieee")
        self.kept = torch.bfloat16 if self.operand == "bf16" else torch.float32
        t = self.tiles
        whole = (t.C, t.KP, t.VP) == (CHUNKS[-1], spec.K, spec.V)
        self.known = SIZES if self.operand == "bf16" and whole else ()
        self.G = G
        if self.gate and sums and G is None:
            wide = self.operand == "ieee"
            self.G = gate_sums(self.active.g, t, spec.HV, spec.T, wide, bool(self.known))

    def config(self, kernel: str) -> Config:
        """The configuration of the kernel of that name for this problem: what tuning remembered, or
        the table's.
        """
        t, columns = self.tiles, self.spec.N * self.spec.HV
        if self.known and kernel not in NEVER:
            name = name_of(kernel, self.gate, self.b_channel, t.KP, t.VP)
            if (found := recall(self.problem.tensors.q.device, name)) is not None:
                return found
        return config(kernel, t.C, t.KP, t.VP, self.operand, self.gate, bool(self.known), columns)

    def by_chunk(self, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised ``[M, HV, *sizes]``."""
        device = self.problem.tensors.q.device
        sizes = (self.tiles.M, self.spec.HV, *sizes)
        return torch.empty(*sizes, dtype=dtype or self.kept, device=device)

    def by_token(self, dtype: torch.dtype, *sizes: int) -> Tensor:
        """An uninitialised ``[B, T, HV, *sizes]``."""
        spec, device = self.spec, self.problem.tensors.q.device
        return torch.empty(spec.B, spec.T, spec.HV, *sizes, dtype=dtype, device=device)

    def state(self) -> Tensor:
        """An uninitialised float32 state in the caller's layout."""
        spec, device = self.spec, self.problem.tensors.q.device
        sizes = (spec.V, spec.K) if spec.state_v_first else (spec.K, spec.V)
        return torch.empty(spec.N, spec.HV, *sizes, dtype=torch.float32, device=device)

    def launch(self, kernel: Any, programs: int, c: Config, *arguments: Any, **constants: Any):
        """Launch a kernel with its own arguments; what all of them share is filled in.

        None stands for a tensor that this form of the kernel never touches, or for a state that a
        flag says is not there: a float32 stands in for it, as states are.
        """
        spec, t = self.spec, self.tiles
        shared = {
            "H": spec.H, "HV": spec.HV, "K": spec.K, "V": spec.V, "C": t.C, "KP": t.KP, "VP": t.VP,
            "BK": c.BK, "BV": c.BV,
            "ONE_V": bool(self.known) and t.VP == c.BV,  # known to have one tile of value channels
            "ROWS": rows_a_program(t.C), "GATE": self.gate,
            "B_CHANNEL": self.b_channel, "W_CHANNEL": self.w_channel,
            "V_FIRST": int(spec.state_v_first),
            "OP": tl.bfloat16 if self.operand == "bf16" else tl.float32,
            "PREC": "ieee" if self.operand == "ieee" else "tf32", "PACKED": int(t.packed),
        } | constants  # fmt: skip
        names = kernel.arg_names[len(arguments) :]
        tensors = [t.nothing if x is None else x for x in arguments]
        known = tuple(name for name in self.known if name in names)
        start(kernel, programs, c, tensors, {name: shared[name] for name in names}, known)
