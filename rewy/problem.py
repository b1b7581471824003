"""The door: arguments are checked and made uniform here, and nowhere else.

Whatever is refused is refused before any work, by a ``ValueError`` or ``TypeError`` that names the
argument, what it got and what it wants. Behind the door a backend sees one kind of problem: a
:class:`Spec` without tensors and :class:`Tensors` with gates of rank 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_SIZES = (16, 32, 64, 128)
MAX_HEAD_SIZE = 256
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Tensors(NamedTuple):
    """The tensors of a problem, or their gradients.

    q, k: ``[B, T, H, K]``; v: ``[B, T, HV, V]``; g: ``[B, T, HV, 1 or K]`` or None; b (erase gate,
        or the beta that erases and writes): ``[B, T, HV, 1 or K]``; w (write gate): ``[B, T, HV,
        V]``, None where beta writes;
    h0: ``[N, HV, K, V]`` (or V first) or None; A_log: ``[HV]`` or None; dt_bias: ``[HV]``, ``[HV *
        K]``, ``[HV, K]`` or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    b: Tensor
    w: Tensor | None
    h0: Tensor | None
    A_log: Tensor | None
    dt_bias: Tensor | None


@dataclass(frozen=True)
class Spec:
    """Everything about a problem that is not a tensor.

    ``sequence_starts`` are the N + 1 offsets of the sequences among the B * T tokens, packed or
    not; ``policy`` is 'recompute' (the forward keeps A and little else) or 'save'.
    """

    B: int
    T: int
    H: int
    HV: int
    K: int
    V: int
    sequence_starts: tuple[int, ...]
    scale: float
    chunk_size: int
    policy: str
    output_final_state: bool
    state_v_first: bool
    l2norm: bool
    gate_activation: bool
    lower_bound: float | None
    beta_activation: bool
    neg_eigval: bool
    compute_dtype: torch.dtype

    @property
    def N(self) -> int:
        """Sequences: B, or as many as are packed."""
        return len(self.sequence_starts) - 1


class Problem(NamedTuple):
    """One call of an operator, checked."""

    spec: Spec
    tensors: Tensors


@dataclass(frozen=True)
class Gates:
    """Which gates an operator has, for the checks.

    ``decay``: 'none', 'head' or 'channel'; ``channels``: erase and write are per channel (b, w) and
    not one beta a head.
    """

    decay: str
    channels: bool = False


DELTA_RULE = Gates("none")
GATED_DELTA_RULE = Gates("head")
KDA = Gates("channel")
GDN2 = Gates("channel", channels=True)


def _describe(x: object) -> str:
    if isinstance(x, Tensor):
        return f"a tensor of shape {list(x.shape)} and {x.dtype}"
    return f"{x!r} ({type(x).__name__})"


def _need_tensor(name: str, x: object, optional: bool = False) -> None:
    if x is None and optional:
        return
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor{' or None' * optional}, got {_describe(x)}")
    if x.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}")


def _need_shape(name: str, x: Tensor, letters: str, *shapes: tuple[int, ...]) -> None:
    if tuple(x.shape) not in shapes:
        wanted = " or ".join(str(list(s)) for s in shapes)
        raise ValueError(f"{name} must be {letters} = {wanted}, got {list(x.shape)}")


def _need_dtype(name: str, x: Tensor, allowed: tuple[torch.dtype, ...], why: str = "") -> None:
    if x.dtype not in allowed:
        wanted = ", ".join(str(d).removeprefix("torch.") for d in allowed)
        raise TypeError(f"{name} must be {wanted}{why}, got {str(x.dtype).removeprefix('torch.')}")


def _finite(name: str, x: object, computed: torch.dtype) -> float:
    """x as a number that the type which everything is computed in can hold."""
    if isinstance(x, bool) or not isinstance(x, Real):
        raise TypeError(f"{name} must be a number or None, got {_describe(x)}")
    try:
        value = float(x)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    largest = torch.finfo(computed).max
    if abs(value) > largest:
        kind = str(computed).removeprefix("torch.")
        raise ValueError(f"{name} must be within +-{largest:g} ({kind}), got {value:g}")
    return value


def need_bool(name: str, x: object) -> None:
    """Raise TypeError unless ``x`` is True or False."""
    if not isinstance(x, bool):
        raise TypeError(f"{name} must be True or False, got {_describe(x)}")


def refuse(operator: str, options: dict[str, Any]) -> None:
    """Raise ValueError for every option that has a value: rewy does not have it and will not ignore
    it.
    """
    for name, value in options.items():
        if value is not None and value is not False:
            raise ValueError(
                f"{name} is not supported by {operator}: got {_describe(value)}, wants "
                f"{'False' if isinstance(value, bool) else 'None'}"
            )


def check(
    gates: Gates,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    b: Tensor,
    w: Tensor | None,
    *,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
    use_gate_in_kernel: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    safe_gate: bool,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    state_v_first: bool,
    disable_recompute: bool,
    chunk_size: int,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    check_values: bool,
) -> Problem:
    """Check one call and make it uniform; see :mod:`rewy.operators` for what each argument means.

    Raises:
        TypeError: an argument of the wrong kind or type.
        ValueError: a shape, device, option or value that does not fit.
    """
    for name, flag in (
        ("output_final_state", output_final_state),
        ("use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel),
        ("use_gate_in_kernel", use_gate_in_kernel),
        ("safe_gate", safe_gate),
        ("use_beta_sigmoid_in_kernel", use_beta_sigmoid_in_kernel),
        ("allow_neg_eigval", allow_neg_eigval),
        ("state_v_first", state_v_first),
        ("disable_recompute", disable_recompute),
        ("check_values", check_values),
    ):
        need_bool(name, flag)
    B, T, H, HV, K, V = _check_qkv(q, k, v)
    beta_name = "b" if gates.channels else "beta"
    _check_gates(gates, beta_name, g, b, w, (B, T, HV, K, V))
    _need_tensor("A_log", A_log, optional=True)
    _need_tensor("dt_bias", dt_bias, optional=True)
    wide = q.dtype == torch.float64
    computed = torch.float64 if wide else torch.float32
    for name, x in (("g", g), (beta_name, b), ("w", w), ("A_log", A_log), ("dt_bias", dt_bias)):
        if x is not None:
            allowed = FLOATS if wide else FLOATS[1:]
            _need_dtype(name, x, allowed, f" where q is {str(q.dtype).removeprefix('torch.')}")
    _check_options(
        gates, g, A_log, dt_bias, lower_bound, safe_gate, use_gate_in_kernel, HV, K, computed
    )
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError(
            "allow_neg_eigval=True needs use_beta_sigmoid_in_kernel=True, got False "
            "(a beta that is passed ready may reach 2 by itself)"
        )
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, Integral):
        raise TypeError(f"chunk_size must be one of {CHUNK_SIZES}, got {_describe(chunk_size)}")
    if chunk_size not in CHUNK_SIZES:
        raise ValueError(f"chunk_size must be one of {CHUNK_SIZES}, got {_describe(chunk_size)}")
    if scale is None:
        scale = K**-0.5
    else:
        scale = _finite("scale", scale, computed)

    _need_tensor("cu_seqlens", cu_seqlens, optional=True)
    _need_tensor("cu_seqlens_cpu", cu_seqlens_cpu, optional=True)
    N = B if cu_seqlens is None else _check_packing(B, cu_seqlens, cu_seqlens_cpu)
    _need_tensor("initial_state", initial_state, optional=True)
    if initial_state is not None:
        shape, letters = (
            ((N, HV, V, K), "[N, HV, V, K]") if state_v_first else ((N, HV, K, V), "[N, HV, K, V]")
        )
        _need_shape("initial_state", initial_state, letters, shape)
        allowed = (torch.float32, torch.float64) if wide else (torch.float32,)
        _need_dtype("initial_state", initial_state, allowed)
    _check_devices(
        q,
        k=k,
        v=v,
        g=g,
        **{beta_name: b},
        w=w,
        initial_state=initial_state,
        A_log=A_log,
        dt_bias=dt_bias,
        cu_seqlens=cu_seqlens,
    )
    starts = _sequence_starts(B, T, cu_seqlens, cu_seqlens_cpu)
    if (check_values or q.device.type == "cpu") and g is not None and not use_gate_in_kernel:
        _check_decay(g)

    spec = Spec(
        B, T, H, HV, K, V, starts, float(scale), int(chunk_size),
        policy="save" if disable_recompute else "recompute",
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        l2norm=use_qk_l2norm_in_kernel,
        gate_activation=use_gate_in_kernel,
        lower_bound=None if lower_bound is None else float(lower_bound),
        beta_activation=use_beta_sigmoid_in_kernel,
        neg_eigval=allow_neg_eigval,
        compute_dtype=computed,
    )  # fmt: skip
    if g is not None and g.dim() == 3:
        g = g.unsqueeze(-1)
    b = b if gates.channels else b.unsqueeze(-1)
    return Problem(spec, Tensors(q, k, v, g, b, w, initial_state, A_log, dt_bias))


def _check_qkv(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int, int, int, int]:
    for name, x in (("q", q), ("k", k), ("v", v)):
        _need_tensor(name, x)
        _need_dtype(name, x, FLOATS)
        if x.dim() != 4:
            wanted = "[B, T, HV, V]" if name == "v" else "[B, T, H, K]"
            raise ValueError(f"{name} must be {wanted}, got {list(x.shape)}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have one type, got {q.dtype}, {k.dtype} and {v.dtype}")
    B, T, H, K = q.shape
    _need_shape("k", k, "[B, T, H, K] like q", (B, T, H, K))
    HV, V = v.shape[2:]
    if v.shape[:2] != (B, T):
        raise ValueError(
            f"v must be [B, T, HV, V] with B, T = {B}, {T} like q, got {list(v.shape)}"
        )
    if H == 0 or HV == 0 or HV % H:
        raise ValueError(f"v must have HV heads, a multiple of q's H = {H}, got HV = {HV}")
    if not 1 <= K <= MAX_HEAD_SIZE:
        raise ValueError(f"q must have a head size K from 1 to {MAX_HEAD_SIZE}, got K = {K}")
    if V < 1:
        raise ValueError(f"v must have a head size V of at least 1, got V = {V}")
    return B, T, H, HV, K, V


def _check_gates(
    gates: Gates,
    beta_name: str,
    g: Tensor | None,
    b: Tensor,
    w: Tensor | None,
    sizes: tuple[int, int, int, int, int],
) -> None:
    B, T, HV, K, V = sizes
    _need_tensor("g", g, optional=True)
    if g is not None:
        if gates.decay == "head":
            _need_shape("g", g, "[B, T, HV]", (B, T, HV))
        else:
            _need_shape("g", g, "[B, T, HV, K]", (B, T, HV, K))
    _need_tensor(beta_name, b)
    if gates.channels:
        _need_shape("b", b, "[B, T, HV, K]", (B, T, HV, K))
        _need_tensor("w", w)
        _need_shape("w", w, "[B, T, HV, V]", (B, T, HV, V))
    else:
        _need_shape("beta", b, "[B, T, HV]", (B, T, HV))


def _check_options(
    gates: Gates,
    g: Tensor | None,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    safe_gate: bool,
    use_gate_in_kernel: bool,
    HV: int,
    K: int,
    computed: torch.dtype,
) -> None:
    """The gate's activation: which of its arguments go together."""
    if lower_bound is not None:
        if not _finite("lower_bound", lower_bound, computed) < 0:
            raise ValueError(f"lower_bound must be below 0, got {lower_bound}")
    if not use_gate_in_kernel:
        given = {"A_log": A_log, "dt_bias": dt_bias, "lower_bound": lower_bound}
        for name, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{name} needs use_gate_in_kernel=True, got {_describe(value)} without it"
                )
        return
    if g is None:
        raise ValueError("g must be the raw gate where use_gate_in_kernel=True, got None")
    if A_log is None and lower_bound is None:
        raise ValueError(
            "A_log must be given where use_gate_in_kernel=True and lower_bound is None, got None"
        )
    if safe_gate and (lower_bound is None or lower_bound < -5):
        raise ValueError(
            "lower_bound must be in [-5, 0) where safe_gate=True and use_gate_in_kernel=True, "
            f"got {lower_bound}"
        )
    if A_log is not None:
        _need_shape("A_log", A_log, "[HV]", (HV,))
    if dt_bias is not None and gates.decay == "head":
        _need_shape("dt_bias", dt_bias, "[HV]", (HV,))
    elif dt_bias is not None:
        _need_shape("dt_bias", dt_bias, "[HV * K] or [HV, K]", (HV * K,), (HV, K))


def _check_packing(B: int, cu_seqlens: Tensor, cu_seqlens_cpu: Tensor | None) -> int:
    """Shapes and types of packed offsets; their values come later, with the devices known."""
    if B != 1:
        raise ValueError(f"q must have B = 1 where cu_seqlens is given, got B = {B}")
    for name, x in (("cu_seqlens", cu_seqlens), ("cu_seqlens_cpu", cu_seqlens_cpu)):
        if x is None:
            continue
        if x.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"{name} must be int64 or int32, got {x.dtype}")
        if x.dim() != 1 or x.numel() < 1:
            raise ValueError(f"{name} must be [N + 1], got {list(x.shape)}")
    if cu_seqlens_cpu is not None:
        if cu_seqlens_cpu.device.type != "cpu":
            raise ValueError(f"cu_seqlens_cpu must lie on the CPU, got {cu_seqlens_cpu.device}")
        _need_shape(
            "cu_seqlens_cpu", cu_seqlens_cpu, "[N + 1] like cu_seqlens", tuple(cu_seqlens.shape)
        )
    return cu_seqlens.numel() - 1


def _check_devices(q: Tensor, **others: Tensor | None) -> None:
    if q.device.type == "meta":
        raise ValueError("q must lie on a device that computes, got meta")
    for name, x in others.items():
        if x is not None and x.device != q.device:
            hint = " (offsets on the CPU go beside it, as cu_seqlens_cpu)" * (name == "cu_seqlens")
            raise ValueError(f"{name} must lie on q's device {q.device}, got {x.device}{hint}")


def _sequence_starts(
    B: int, T: int, cu_seqlens: Tensor | None, cu_seqlens_cpu: Tensor | None
) -> tuple[int, ...]:
    """The offsets as integers; reading them from a device synchronises unless cu_seqlens_cpu is
    given.
    """
    if cu_seqlens is None:
        if cu_seqlens_cpu is not None:
            raise ValueError("cu_seqlens_cpu needs cu_seqlens, got None")
        return tuple(range(0, B * T + 1, T)) if T else (0,) * (B + 1)
    starts = (cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu).tolist()
    if (
        cu_seqlens_cpu is not None
        and cu_seqlens.device.type == "cpu"
        and cu_seqlens.tolist() != starts
    ):
        raise ValueError(
            f"cu_seqlens_cpu must equal cu_seqlens, got {starts} beside {cu_seqlens.tolist()}"
        )
    if starts[0] != 0:
        raise ValueError(f"cu_seqlens must start at 0, got {starts[0]}")
    if starts[-1] != T:
        raise ValueError(f"cu_seqlens must end at T = {T}, got {starts[-1]}")
    for n, (a, b) in enumerate(pairwise(starts)):
        if b < a:
            raise ValueError(f"cu_seqlens must not decrease, got {a} then {b} at index {n + 1}")
    return tuple(starts)


def _check_decay(g: Tensor) -> None:
    if not bool((g <= 0).all()):  # which NaN is not
        raise ValueError(f"g must be <= 0 (a log decay), got up to {g.max().item():g}")
