"""The ReWY compute graph as kernels: forward, backward and decoding of all four operators.

Stage names are those of docs/method.md. Matrix units are fed bfloat16 where the inputs are
bfloat16, TF32 where they are float16 (as many digits, and float32's range for what lies between the
stages), and float32 where they are float32. L, the solve, gate sums and the states' accumulators
are float32 or better throughout.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from rewy.backends.triton.channel import _channel_contraction, _channel_scores
from rewy.backends.triton.configs import Config, config
from rewy.backends.triton.contraction import _contraction
from rewy.backends.triton.correction import _correction
from rewy.backends.triton.decode import _decode
from rewy.backends.triton.gates import gate_reduction, gate_sums
from rewy.backends.triton.inputs import (
    Active,
    activate,
    channel_erase,
    channel_write,
    finish,
    gate_kind,
    gradient_type,
)
from rewy.backends.triton.local import _local, _local_adjoint
from rewy.backends.triton.output import _output
from rewy.backends.triton.start import start
from rewy.backends.triton.states import _passes
from rewy.backends.triton.tiles import Tiles, padded
from rewy.problem import Problem, Tensors


class Saved(NamedTuple):
    """Kept beside the inputs: A under both policies, the rest under 'save' alone."""

    A: Tensor | None
    P: Tensor | None
    U: Tensor | None
    S: Tensor | None


class Local(NamedTuple):
    """What :func:`_local` leaves, by chunk."""

    A: Tensor
    P: Tensor
    W_hat: Tensor
    U_hat: Tensor
    K_t: Tensor | None


class _Run:
    """One problem on its way through the kernels."""

    def __init__(self, problem: Problem):
        spec, x = problem
        self.problem, self.spec = problem, spec
        self.tiles = Tiles(spec, x.q.device)
        self.active = activate(problem)
        self.gate = gate_kind(problem)
        self.b_channel, self.w_channel = channel_erase(problem), channel_write(problem)
        self.stored = self.gate == 2 or self.b_channel
        self.wide = x.q.dtype != torch.bfloat16
        self.kept = torch.float32 if self.wide else torch.bfloat16
        self.OP = tl.float32 if self.wide else tl.bfloat16
        self.PREC = "ieee" if x.q.dtype == torch.float32 else "tf32"
        self.operand = self.PREC if self.wide else "bf16"
        self.G = None
        if self.gate and self.tiles.M:
            wide = x.q.dtype == torch.float32
            self.G = gate_sums(self.active.g, self.tiles, spec.HV, spec.T, wide)

    def config(self, kernel: str) -> Config:
        t = self.tiles
        return config(kernel, t.C, t.KP, t.VP, self.operand, self.gate)

    def by_chunk(self, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised ``[M, HV, *sizes]``."""
        return torch.empty(
            self.tiles.M, self.spec.HV, *sizes,
            dtype=dtype or self.kept, device=self.problem.tensors.q.device,
        )  # fmt: skip

    def state(self) -> Tensor:
        """An uninitialised float32 state in the caller's layout."""
        spec = self.spec
        sizes = (spec.V, spec.K) if spec.state_v_first else (spec.K, spec.V)
        q = self.problem.tensors.q
        return torch.empty(spec.N, spec.HV, *sizes, dtype=torch.float32, device=q.device)

    def launch(self, kernel: Any, programs: int, c: Config, *arguments: Any, **constants: Any):
        """Launch with None in place of a tensor standing for one that is never touched."""
        nothing = self.tiles.table
        arguments = [nothing if x is None else x for x in arguments]
        start(kernel, programs, c, arguments, constants)

    def sizes(self, c: Config) -> dict[str, Any]:
        s, t = self.spec, self.tiles
        return {
            "H": s.H, "HV": s.HV, "K": s.K, "V": s.V, "C": t.C, "KP": t.KP, "VP": t.VP,
            "BK": c.BK, "BV": c.BV, "GATE": self.gate, "OP": self.OP, "PREC": self.PREC,
            "PACKED": t.packed,
        }  # fmt: skip

    def local(self, A: Tensor | None) -> Local:
        """Scores, solve and the halves of the residual system; A only where it is None."""
        x, t, c = self.active, self.tiles, self.config("local")
        solve = A is None
        out = Local(
            A=self.by_chunk(t.C, t.C) if solve else A,
            P=self.by_chunk(t.C, t.C),
            W_hat=self.by_chunk(t.C, t.KP),
            U_hat=self.by_chunk(t.C, t.VP),
            K_t=self.by_chunk(t.C, t.KP) if self.gate == 2 else None,
        )
        L = self.channel_scores(out.P, solve) if self.gate == 2 else None
        self.launch(
            _local, t.M * self.spec.HV, c,
            x.q, x.k, x.v, x.b, x.w, self.G, L, out.A, out.P, out.W_hat, out.U_hat, out.K_t,
            t.table, self.spec.scale, self.spec.T, t.NT,
            B_CHANNEL=self.b_channel, W_CHANNEL=self.w_channel, SOLVE=solve,
            SOLVE_PREC="ieee" if self.PREC == "ieee" else "tf32x3", **self.sizes(c),
        )  # fmt: skip
        return out

    def channel_scores(self, P: Tensor, solve: bool) -> Tensor | None:
        """Fill P; L, too, where it is wanted."""
        x, t, c = self.active, self.tiles, self.config("channel_scores")
        L = self.by_chunk(t.C, t.C, dtype=torch.float32) if solve else None
        sizes = self.sizes(c)
        for name in ("V", "VP", "BV", "GATE"):
            sizes.pop(name)
        self.launch(
            _channel_scores, t.M * self.spec.HV * (t.C // 16), c,
            x.q, x.k, x.b, self.G, P, L, t.table, self.spec.scale, self.spec.T, t.NT,
            B_CHANNEL=self.b_channel, SOLVE=solve, **sizes,
        )  # fmt: skip
        return L

    def channel_contraction(self, dP: Tensor, dL: Tensor) -> Tensor:
        """``[3, M, HV, C, KP]``: what q, b * k and k as the source get from pairs of rows."""
        x, t, c = self.active, self.tiles, self.config("channel_contraction")
        sizes = self.sizes(c)
        for name in ("V", "VP", "BV", "GATE"):
            sizes.pop(name)
        D = torch.empty(
            3, t.M, self.spec.HV, t.C, t.KP, dtype=torch.float32, device=dP.device
        )
        self.launch(
            _channel_contraction, t.M * self.spec.HV * (t.C // 16) * (t.KP // c.BK), c,
            x.q, x.k, x.b, self.G, dP, dL, *D, t.table, self.spec.T, t.NT,
            B_CHANNEL=self.b_channel, **sizes,
        )  # fmt: skip
        return D

    def passes(self, forward: dict[str, Tensor] | None, reverse: dict[str, Tensor] | None) -> None:
        """The state passes asked for, by the tensors they read and write."""
        x, t, s, c = self.active, self.tiles, self.spec, self.config("passes")
        f, r = forward or {}, reverse or {}
        both = 1 + (forward is not None and reverse is not None)
        h0 = self.problem.tensors.h0
        sizes = self.sizes(c)
        sizes.pop("BK")
        self.launch(
            _passes, both * s.N * s.HV * (t.VP // c.BV), c,
            x.q, x.k, x.b, r.get("do"), self.G, f.get("W_hat"), f.get("U_hat"),
            f.get("K_t"), None if h0 is None else h0.contiguous(), f.get("S"), f.get("U"),
            f.get("ht"), r.get("Y_hat"), r.get("K_hat"), r.get("Q_g"), r.get("K_b"), r.get("dht"),
            r.get("dS"), r.get("Y"), r.get("dh0"), t.table, t.firsts, s.scale, s.T, t.NT,
            STORED=self.stored, FORWARD=forward is not None, REVERSE=reverse is not None,
            HAS_STATE=h0 is not None, FINAL="ht" in f, HAS_DHT=r.get("dht") is not None,
            V_FIRST=s.state_v_first, **sizes,
        )  # fmt: skip

    def states(self, local: Local) -> dict[str, Tensor | None]:
        """Inputs and outputs of the forward pass."""
        t = self.tiles
        return {
            "W_hat": local.W_hat, "U_hat": local.U_hat, "K_t": local.K_t,
            "S": self.by_chunk(t.KP, t.VP), "U": self.by_chunk(t.C, t.VP),
        }  # fmt: skip


def forward(problem: Problem) -> tuple[Tensor, Tensor | None, Saved]:
    """Outputs ``[B, T, HV, V]`` in q's type, final states or None, and what is kept."""
    run = _Run(problem)
    spec, t, x = run.spec, run.tiles, run.active
    local = run.local(None)
    states = run.states(local)
    ht = run.state() if spec.output_final_state else None
    if ht is not None:
        states["ht"] = ht
    run.passes(states, None)
    o = torch.empty_like(x.v)
    c = run.config("output")
    run.launch(
        _output, t.M * spec.HV * (t.VP // c.BV), c,
        x.q, run.G, local.P, states["S"], states["U"], o, t.table, spec.scale, spec.T, t.NT,
        **run.sizes(c),
    )  # fmt: skip
    if spec.policy == "save":
        return o, ht, Saved(local.A, local.P, states["U"], states["S"])
    return o, ht, Saved(local.A, None, None, None)


def backward(problem: Problem, saved: Saved, do: Tensor | None, dht: Tensor | None) -> Tensors:
    """Gradients of every tensor of the problem, each in its tensor's shape and type."""
    run = _Run(problem)
    x, t = run.active, run.tiles
    A, P, U, S = saved
    do = torch.zeros_like(x.v) if do is None else do.contiguous()
    dht = None if dht is None else dht.contiguous()
    states = None
    if A is None:
        local = run.local(None)
        A = local.A
    if U is None:
        local = run.local(A)
        states = run.states(local)
        P, U, S = local.P, states["U"], states["S"]
    reverse = _local_adjoint_stage(run, A, P, do)

    dh0 = None if problem.tensors.h0 is None else run.state()
    reverse |= {
        "do": do, "dht": dht, "dh0": dh0,
        "dS": run.by_chunk(t.KP, t.VP), "Y": run.by_chunk(t.C, t.VP),
    }  # fmt: skip
    run.passes(states, reverse)
    return finish(problem, x, _gradients(run, do, U, S, reverse["Y"], reverse["dS"], dh0))


def _local_adjoint_stage(run: _Run, A: Tensor, P: Tensor, do: Tensor) -> dict[str, Any]:
    x, t, c = run.active, run.tiles, run.config("local_adjoint")
    keys = (t.C, t.KP)
    out = {"Y_hat": run.by_chunk(t.C, t.VP), "K_hat": run.by_chunk(*keys)}
    if run.stored:
        out |= {"Q_g": run.by_chunk(*keys), "K_b": run.by_chunk(*keys)}
    run.launch(
        _local_adjoint, t.M * run.spec.HV, c,
        x.q, x.k, x.b, do, run.G, A, P, out["Y_hat"], out["K_hat"], out.get("Q_g"),
        out.get("K_b"), t.table, run.spec.scale, run.spec.T, t.NT,
        B_CHANNEL=run.b_channel, STORED=run.stored, **run.sizes(c),
    )  # fmt: skip
    return out


def _gradients(
    run: _Run, do: Tensor, U: Tensor, S: Tensor, Y: Tensor, dS: Tensor, dh0: Tensor | None
) -> Tensors:
    problem, spec, t, x = run.problem, run.spec, run.tiles, run.active
    device, HV = do.device, spec.HV

    def tokens(name: str, *sizes: int) -> Tensor:
        dtype = gradient_type(problem, name)
        return torch.empty(spec.B, spec.T, HV, *sizes, dtype=dtype, device=device)

    def rows(*parts: int) -> Tensor:
        return torch.empty(*parts, t.M, HV, t.C, dtype=torch.float32, device=device)

    dP, dL, on_diagonal = run.by_chunk(t.C, t.C), run.by_chunk(t.C, t.C), rows()
    dv = torch.empty_like(x.v)
    dw = tokens("w", spec.V) if run.w_channel else None
    db_write = None if run.w_channel else rows()
    c = run.config("correction")
    sizes = run.sizes(c)
    for name in ("H", "K", "KP", "BK"):
        sizes.pop(name)
    run.launch(
        _correction, t.M * HV, c,
        x.v, x.b, x.w, do, run.G, U, Y, dP, dL, on_diagonal, dv, dw, db_write, t.table,
        spec.scale, spec.T, t.NT, W_CHANNEL=run.w_channel, **sizes,
    )  # fmt: skip

    D = run.channel_contraction(dP, dL) if run.gate == 2 else None
    c = run.config("contraction")
    parts = t.KP // c.BK
    dq, dk = tokens("q", spec.K), tokens("k", spec.K)
    dg = None if not run.gate else tokens("g", spec.K if run.gate == 2 else 1)
    db = tokens("b", x.b.shape[-1])
    dG = rows(parts) if run.gate == 1 else None
    db_erase = None if run.b_channel else rows(parts)
    run.launch(
        _contraction, t.M * HV * parts, c,
        x.q, x.k, x.b, do, run.G, U, Y, S, dS, dP, dL, D, on_diagonal, dq, dk, dg, db, dG,
        db_erase, t.table, spec.scale, spec.T, t.NT, t.M * HV * t.C,
        0 if D is None else D[0].numel(), B_CHANNEL=run.b_channel,
        **run.sizes(c),
    )  # fmt: skip
    if t.M:
        gate_reduction(dG, db_erase, db_write, dg, db, t, HV, spec.T)
    return Tensors(dq, dk, dv, dg, db, dw, dh0, None, None)


def decode(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """The recurrence token by token; results as :func:`forward`'s."""
    spec = problem.spec
    x: Active = activate(problem)
    o = torch.empty_like(x.v)
    run_state = spec.output_final_state
    sizes = (spec.V, spec.K) if spec.state_v_first else (spec.K, spec.V)
    ht = None
    if run_state:
        ht = torch.empty(spec.N, spec.HV, *sizes, dtype=torch.float32, device=o.device)
    packed = spec.sequence_starts != tuple(range(0, spec.B * spec.T + 1, max(spec.T, 1)))
    starts = torch.tensor(spec.sequence_starts if packed else [0], device=o.device)
    KP, VP = padded(spec.K), padded(spec.V)
    BV = min(VP, max(16, 4096 // KP))
    h0 = problem.tensors.h0
    h0 = None if h0 is None else h0.contiguous()
    arguments = [x.q, x.k, x.v, x.g, x.b, x.w, h0, o, ht, starts]
    start(
        _decode, spec.N * spec.HV * (VP // BV), Config(0, BV, 4, 2),
        [*(starts if y is None else y for y in arguments), spec.scale, spec.T],
        {
            "H": spec.H, "HV": spec.HV, "K": spec.K, "V": spec.V, "KP": KP, "VP": VP, "BV": BV,
            "GATE": gate_kind(problem), "B_CHANNEL": channel_erase(problem),
            "W_CHANNEL": channel_write(problem), "HAS_STATE": h0 is not None,
            "V_FIRST": spec.state_v_first, "FINAL": run_state, "PACKED": packed,
        },
    )  # fmt: skip
    return o, ht
