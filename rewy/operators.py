"""The public operators: chunkwise for training and prefill, token by token for decoding.

Argument names, order, defaults and shapes are those of flash-linear-attention 0.6.0, so that a
model changes one import; options it has for some of the four only are keywords here for all. One
recurrence serves them (state S of a value head, ``[K, V]``; decay comes before the error term):

    S'_t = Diag(exp g_t) S_{t-1}
    r_t  = w_t * v_t - (b_t * k_t)^T S'_t
    S_t  = S'_t + k_t r_t^T
    o_t  = scale S_t^T q_t

================  ===============  ==================  ====================
operator          decay g          erase b             write w
================  ===============  ==================  ====================
delta_rule        none             beta, per head      beta
gated_delta_rule  per head         beta                beta
kda               per key channel  beta                beta
gdn2              per key channel  b, per key channel  w, per value channel
================  ===============  ==================  ====================

Arguments common to all
    q, k: ``[B, T, H, K]``, K from 1 to 256. float64, float32, bfloat16 or float16.
    v: ``[B, T, HV, V]``, q's type. HV is a multiple of H; value head h reads query and key head
        h // (HV / H).
    g (not of delta_rule): log decay, natural, <= 0 (0 keeps the state, -inf forgets it), or None
        for no decay. With ``use_gate_in_kernel`` the raw gate, any value. Gates may be of another
        float type than q.
    beta: ``[B, T, HV]``, usually in [0, 1], up to 2. The recurrence diverges where beta |k|^2 > 2.
    scale: multiplies the outputs, a number that the computing type holds; None for ``K ** -0.5``.
    initial_state: ``[N, HV, K, V]``, float32 (or float64 for float64 inputs); None for zeros.
    output_final_state: also return the states after the last tokens; else None stands for them.
    use_qk_l2norm_in_kernel: ``x / sqrt(sum x^2 + 1e-6)`` on q and k first.
    use_gate_in_kernel (not of delta_rule): g is raw; the decay is ``-exp(A_log) softplus(g +
        dt_bias)``, or with ``lower_bound`` ``lower_bound sigmoid(exp(A_log) (g + dt_bias))``. A_log
        is ``[HV]`` (None with lower_bound: no factor); dt_bias is ``[HV]`` for a gate per head,
        ``[HV * K]`` for one per channel, or None.
    lower_bound: a number below 0.
    safe_gate: with ``use_gate_in_kernel`` it demands a lower_bound in [-5, 0); the arithmetic is
        the same either way, safe for every g <= 0.
    use_beta_sigmoid_in_kernel: beta (b and w) are logits.
    allow_neg_eigval: with ``use_beta_sigmoid_in_kernel``, beta (of gdn2: b alone) is doubled.
    state_v_first: states are ``[N, HV, V, K]``.
    cu_seqlens: ``[N + 1]`` int offsets of N sequences packed into B = 1; empty ones are fine.
    cu_seqlens_cpu (chunkwise forms): the same on the CPU, which saves reading them back.
    disable_recompute (chunkwise forms): keep what the backward would recompute (more memory, less
        time).
    chunk_size (chunkwise forms): 16, 32, 64 or 128; changes time and memory, not results.
    check_values: check values (g <= 0) also on devices, where that means waiting for them; on the
        CPU they are always checked. Shapes, types, devices and options are checked everywhere.
    backend: 'eager', the graph in PyTorch on any device; 'triton', kernels for NVIDIA GPUs (no
        float64; an A100's shared memory or more); 'naive', the seven-product backward, for
        comparison; None: 'triton' on NVIDIA GPUs where it can, else 'eager', with a warning once
        where kernels were to be expected.

Returns ``(o, final_state)``: ``[B, T, HV, V]`` in q's type, ``[N, HV, K, V]`` float32 (float64 for
float64) or None. Every tensor argument gets a gradient, through both results; second derivatives
are an error. Under ``torch.autocast`` nothing is cast: types are those of the arguments.

All raise TypeError for an argument of a wrong kind or type and ValueError for a shape, device,
option or value that does not fit, before any work. Options of flash-linear-attention that are
not here are refused by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rewy import problem as door
from rewy.autograd import DeltaRule
from rewy.backends import select

Results = tuple[Tensor, Tensor | None]


# Options of flash-linear-attention that are not here: refused where they have a value.
REFUSED = (
    "chunk_indices",
    "cp_context",
    "gk",
    "gv",
    "max_num_seqs",
    "return_intermediate_states",
    "use_graph",
)
# What a call without the option means.
ABSENT = {
    "use_gate_in_kernel": False,
    "A_log": None,
    "dt_bias": None,
    "lower_bound": None,
    "safe_gate": False,
    "disable_recompute": False,
    "chunk_size": 64,
    "cu_seqlens_cpu": None,
}


def _run(
    operator: str, gates: door.Gates, call: dict[str, Any], *, token_by_token: bool = False
) -> Results:
    """Check a call, given as its arguments by name, choose a backend and go."""
    call = dict(call)
    door.refuse(operator, {name: call.pop(name) for name in REFUSED if name in call})
    backend = call.pop("backend")
    q, k, v, g = call.pop("q"), call.pop("k"), call.pop("v"), call.pop("g", None)
    if gates.channels:
        b, w = call.pop("b"), call.pop("w")
    else:
        b, w = call.pop("beta"), None
        if b is None and token_by_token:
            if call["use_beta_sigmoid_in_kernel"]:
                raise ValueError(
                    "beta must be given where use_beta_sigmoid_in_kernel=True, got None"
                )
            b = _ones(q, v)
    problem = door.check(gates, q, k, v, g, b, w, **{**ABSENT, **call})
    chosen = select(problem, backend)
    return DeltaRule.apply(chosen, problem.spec, token_by_token, *problem.tensors)


def _ones(q: Tensor, v: Tensor) -> Tensor:
    """The beta of a decoding call without one, which flash-linear-attention takes for 1."""
    for name, x in (("q", q), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    return torch.ones(v.shape[:-1], dtype=q.dtype, device=q.device)


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    disable_recompute: bool = False,
    chunk_size: int = 64,
    check_values: bool = False,
    backend: str | None = None,
) -> Results:
    """DeltaNet, chunkwise: ``S_t = S_{t-1} + k_t (beta_t (v_t - S_{t-1}^T k_t))^T``.

    q, k ``[B, T, H, K]``; v ``[B, T, HV, V]``; beta ``[B, T, HV]``. Everything else, results and
    errors: see :mod:`rewy.operators`. Source: Yang et al., Parallelizing Linear Transformers with
    the Delta Rule, 2024.
    """
    return _run("chunk_delta_rule", door.DELTA_RULE, locals())


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: None = None,
    cp_context: None = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    chunk_size: int = 64,
    check_values: bool = False,
    backend: str | None = None,
) -> Results:
    """Gated DeltaNet, chunkwise: the delta rule on ``exp(g_t) S_{t-1}``, one decay a head.

    q, k ``[B, T, H, K]``; v ``[B, T, HV, V]``; g ``[B, T, HV]`` log decay <= 0 or None; beta ``[B,
    T, HV]``. Everything else, results and errors: see :mod:`rewy.operators`. Source: Yang et al.,
    Gated Delta Networks, 2025.
    """
    return _run("chunk_gated_delta_rule", door.GATED_DELTA_RULE, locals())


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: None = None,
    use_graph: bool = False,
    max_num_seqs: None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 64,
    check_values: bool = False,
    backend: str | None = None,
) -> Results:
    """Kimi Delta Attention, chunkwise: the delta rule on ``Diag(exp g_t) S_{t-1}``, one decay a key
    channel.

    q, k ``[B, T, H, K]``; v ``[B, T, HV, V]``; g ``[B, T, HV, K]`` log decay <= 0 or None; beta
    ``[B, T, HV]``. Everything else, results and errors: see :mod:`rewy.operators`. Source: Kimi
    Team, Kimi Linear, 2025.
    """
    return _run("chunk_kda", door.KDA, locals())


def chunk_gdn2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    b: Tensor,
    w: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cp_context: None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    chunk_size: int = 64,
    check_values: bool = False,
    backend: str | None = None,
) -> Results:
    """Gated DeltaNet-2, chunkwise: erase and write by channel, ``r_t = w_t * v_t - (b_t * k_t)^T
    Diag(exp g_t) S_{t-1}``.

    q, k ``[B, T, H, K]``; v ``[B, T, HV, V]``; g ``[B, T, HV, K]`` log decay <= 0 or None; b ``[B,
    T, HV, K]`` in [0, 2]; w ``[B, T, HV, V]`` in [0, 1]. Everything else, results and errors: see
    :mod:`rewy.operators`. Source: the operator of the same name in flash-linear-attention 0.6.0.
    """
    return _run("chunk_gdn2", door.GDN2, locals())


def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    check_values: bool = False,
    backend: str | None = None,
) -> Results:
    """DeltaNet, token by token; arguments and results as :func:`chunk_delta_rule`, beta None for 1.

    Its backward is the chunkwise one.
    """
    return _run("fused_recurrent_delta_rule", door.DELTA_RULE, locals(), token_by_token=True)


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: None = None,
    gv: None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    check_values: bool = False,
    backend: str | None = None,
) -> Results:
    """Gated DeltaNet, token by token; arguments and results as :func:`chunk_gated_delta_rule`, beta
    None for 1.

    ``gk`` (a decay a key channel: that is :func:`fused_recurrent_kda`) and ``gv`` are refused. Its
    backward is the chunkwise one.
    """
    return _run(
        "fused_recurrent_gated_delta_rule", door.GATED_DELTA_RULE, locals(), token_by_token=True
    )


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    safe_gate: bool = False,
    check_values: bool = False,
    backend: str | None = None,
) -> Results:
    """Kimi Delta Attention, token by token; arguments and results as :func:`chunk_kda`.

    Its backward is the chunkwise one.
    """
    return _run("fused_recurrent_kda", door.KDA, locals(), token_by_token=True)


def fused_recurrent_gdn2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    b: Tensor,
    w: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    safe_gate: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    check_values: bool = False,
    backend: str | None = None,
) -> Results:
    """Gated DeltaNet-2, token by token; arguments and results as :func:`chunk_gdn2`.

    Its backward is the chunkwise one.
    """
    return _run("fused_recurrent_gdn2", door.GDN2, locals(), token_by_token=True)
