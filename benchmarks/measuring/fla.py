"""fla-core 0.6.0's low-level functions, called as its autograd functions call them.

- Log gates are given (``use_gate_in_kernel=False``); their sums inside chunks are part of the
  forward, as there. q and k are normalised beforehand.
- 'recompute' is fla's default: the backward computes w, u and the states anew. 'save' is
  ``disable_recompute=True`` where an operator has it (KDA, Gated DeltaNet-2). DeltaNet and Gated
  DeltaNet have no such option; there it is fla's own kernels in fla's order, w, the states and the
  new values kept by the forward and not computed again.
- Its autograd functions then convert the gradients to the inputs' types; that is left out, to
  fla's advantage.
- ``safe_gate`` is a promise that no log gate is below -5 and lets fla multiply whole blocks;
  without it the diagonal blocks are done token by token.
- Where tilelang is installed fla takes some stages from there; :meth:`Fla.used` says which.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from measuring.shapes import Inputs, Shape

CHUNK = 64


def lift_refusal() -> None:
    """Have fla run its gated backward in Triton where it refuses to (Triton 3.4 to 3.7.0 on Hopper,
    fla-org/flash-linear-attention#640). There is no setting for it: this switches its check off.
    """
    from fla.ops.common import chunk_o

    chunk_o.TRITON_ABOVE_3_7_1 = True


class Fla:
    """fla-core; ``safe``: with its safe_gate."""

    def __init__(self, safe: bool):
        self.safe = safe
        self.name = "fla safe_gate" if safe else "fla"

    def refuses(self, operator: str, shape: Shape, policy: str) -> str | None:
        if shape.HV > shape.H and operator in ("delta_rule", "gdn2"):
            return "has no grouped heads"
        return None

    def forward(self, operator: str, x: Inputs) -> tuple[Tensor, Any]:
        common = _common(x)
        if operator in ("kda", "gdn2"):
            return _channel_forward(operator, x, common, self.safe)
        if x.problem.spec.policy == "save":
            return _head_forward_saved(x, common)
        return _head_forward(operator, x, common)

    def backward(self, operator: str, x: Inputs, kept: Any) -> dict[str, Tensor]:
        common = _common(x)
        if operator in ("kda", "gdn2"):
            found = _channel_backward(operator, x, kept, common, self.safe)
        elif x.problem.spec.policy == "save":
            found = _head_backward_saved(x, kept, common)
        else:
            found = _head_backward(operator, x, kept, common)
        if operator != "gdn2":
            found["b"] = found["b"].unsqueeze(-1)
        if operator == "gated_delta_rule":
            found["g"] = found["g"].unsqueeze(-1)
        return {f"d{name}": gradient for name, gradient in found.items()}

    def used(self) -> list[str]:
        from fla import backends

        registries = backends._operation_registries.values()
        logged = {line for registry in registries for line in registry._logged}
        return sorted(line for line in logged if not line.endswith(":fail"))


def _common(x: Inputs) -> dict[str, Any]:
    """Offsets and chunks; fla keeps the latter by the identity of the former."""
    from fla.ops.utils.index import prepare_chunk_indices

    chunks = None if x.cu_seqlens is None else prepare_chunk_indices(x.cu_seqlens, CHUNK)
    return {"cu_seqlens": x.cu_seqlens, "chunk_indices": chunks}


def _qkv(x: Inputs) -> dict[str, Tensor]:
    t = x.problem.tensors
    return {"q": t.q, "k": t.k, "v": t.v}


def _beta(x: Inputs) -> Tensor:
    return x.problem.tensors.b.squeeze(-1)


def _head_forward(operator: str, x: Inputs, common: dict[str, Any]) -> tuple[Tensor, Any]:
    from fla.ops.delta_rule.chunk import chunk_delta_rule_fwd
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_fwd

    arguments = {
        **_qkv(x), "beta": _beta(x), "scale": x.problem.spec.scale, "initial_state": None,
        "output_final_state": False, "chunk_size": CHUNK, **common,
    }  # fmt: skip
    if operator == "delta_rule":
        o, A, _ = chunk_delta_rule_fwd(**arguments)
        return o, (None, A)
    g = x.problem.tensors.g.squeeze(-1)
    g, o, A, _, _, _ = chunk_gated_delta_rule_fwd(g=g, **arguments)
    return o, (g, A)


def _head_backward(
    operator: str, x: Inputs, kept: Any, common: dict[str, Any]
) -> dict[str, Tensor]:
    from fla.ops.delta_rule.chunk import chunk_delta_rule_bwd
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_bwd

    g, A = kept
    arguments = {
        **_qkv(x), "beta": _beta(x), "A": A, "scale": x.problem.spec.scale, "initial_state": None,
        "do": x.do, "dht": None, "chunk_size": CHUNK, **common,
    }  # fmt: skip
    if operator == "delta_rule":
        dq, dk, dv, db, _ = chunk_delta_rule_bwd(**arguments)
        return {"q": dq, "k": dk, "v": dv, "b": db}
    dq, dk, dv, db, dg, _, _, _ = chunk_gated_delta_rule_bwd(g=g, **arguments)
    return {"q": dq, "k": dk, "v": dv, "g": dg, "b": db}


def _head_forward_saved(x: Inputs, common: dict[str, Any]) -> tuple[Tensor, Any]:
    """``chunk_delta_rule_fwd`` or ``chunk_gated_delta_rule_fwd``, keeping what they drop."""
    from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h
    from fla.ops.common.chunk_o import chunk_fwd_o
    from fla.ops.delta_rule.wy_fast import prepare_wy_repr_fwd
    from fla.ops.gated_delta_rule.chunk_fwd import chunk_gated_delta_rule_fwd_intra
    from fla.ops.utils import chunk_local_cumsum
    from fla.ops.utils.constant import RCP_LN2

    spec, t = x.problem
    sized = {"chunk_size": CHUNK, **common}
    if t.g is None:
        g = None
        w, u, A = prepare_wy_repr_fwd(k=t.k, v=t.v, beta=_beta(x), **sized)
    else:
        g = chunk_local_cumsum(t.g.squeeze(-1), scale=RCP_LN2, **sized)
        w, u, A = chunk_gated_delta_rule_fwd_intra(k=t.k, v=t.v, g=g, beta=_beta(x), **sized)
    h, v_new, _ = chunk_gated_delta_rule_fwd_h(
        k=t.k, w=w, u=u, g=g, initial_state=None, output_final_state=False, **sized
    )
    o = chunk_fwd_o(q=t.q, k=t.k, v=v_new, h=h, g=g, scale=spec.scale, **sized)
    return o, (g, A, w, h, v_new)


def _head_backward_saved(x: Inputs, kept: Any, common: dict[str, Any]) -> dict[str, Tensor]:
    """``chunk_delta_rule_bwd`` or ``chunk_gated_delta_rule_bwd`` after their first two steps."""
    from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_bwd_dhu
    from fla.ops.common.chunk_o import chunk_bwd_dqkwg, chunk_bwd_dv_local
    from fla.ops.delta_rule.wy_fast import prepare_wy_repr_bwd as plain
    from fla.ops.gated_delta_rule.wy_fast import prepare_wy_repr_bwd as gated
    from fla.ops.utils import chunk_local_cumsum

    spec, t = x.problem
    g, A, w, h, v_new = kept
    shared = {"q": t.q, "k": t.k, "do": x.do, "g": g, "scale": spec.scale}
    sized = {"chunk_size": CHUNK, **common}
    dv = chunk_bwd_dv_local(**shared, **sized)
    dh, _, dv = chunk_gated_delta_rule_bwd_dhu(w=w, h0=None, dht=None, dv=dv, **shared, **sized)
    dq, dk, dw, dg = chunk_bwd_dqkwg(v=v_new, h=h, w=w, dv=dv, dh=dh, **shared, **sized)
    rest = {"k": t.k, "v": t.v, "beta": _beta(x), "A": A, "dw": dw, "du": dv, **common}
    if g is None:
        dk2, dv, db = plain(**rest)
        dk.add_(dk2)
        return {"q": dq, "k": dk, "v": dv, "b": db}
    dk2, dv, db, dg2 = gated(g=g, **rest)
    dk.add_(dk2)
    dg.add_(dg2)
    dg = chunk_local_cumsum(dg, reverse=True, **sized)
    return {"q": dq, "k": dk, "v": dv, "g": dg, "b": db}


def _channel_gates(operator: str, x: Inputs) -> dict[str, Tensor]:
    t = x.problem.tensors
    return {"beta": _beta(x)} if operator == "kda" else {"b": t.b, "w_gate": t.w}


def _channel_forward(
    operator: str, x: Inputs, common: dict[str, Any], safe: bool
) -> tuple[Tensor, Any]:
    from fla.ops.gdn2.chunk_fwd import chunk_gdn2_fwd
    from fla.ops.kda.chunk_fwd import chunk_kda_fwd

    spec = x.problem.spec
    function = chunk_kda_fwd if operator == "kda" else chunk_gdn2_fwd
    o, _, *kept, _ = function(
        **_qkv(x), g=x.problem.tensors.g, **_channel_gates(operator, x), scale=spec.scale,
        initial_state=None, output_final_state=False, chunk_size=CHUNK, safe_gate=safe,
        disable_recompute=spec.policy == "save", **common,
    )  # fmt: skip
    names = ("g", "Aqk", "Akk", "w", "u", "qg", "kg", "v_new", "h")
    return o, dict(zip(names, kept, strict=True))


def _channel_backward(
    operator: str, x: Inputs, kept: dict[str, Tensor], common: dict[str, Any], safe: bool
) -> dict[str, Tensor]:
    from fla.ops.gdn2.chunk_bwd import chunk_gdn2_bwd
    from fla.ops.kda.chunk_bwd import chunk_kda_bwd

    spec = x.problem.spec
    arguments = {
        **_qkv(x), **_channel_gates(operator, x), "scale": spec.scale, "initial_state": None,
        "do": x.do, "dht": None, "chunk_size": CHUNK, "safe_gate": safe,
        "disable_recompute": spec.policy == "save", **common,
    }  # fmt: skip
    if operator == "kda":
        dq, dk, dv, db, dg, *_ = chunk_kda_bwd(**arguments, **kept)
        return {"q": dq, "k": dk, "v": dv, "g": dg, "b": db}
    other = {{"w": "w_wy", "u": "u_wy"}.get(name, name): y for name, y in kept.items()}
    dq, dk, dv, db, dw, dg, *_ = chunk_gdn2_bwd(**arguments, **other)
    return {"q": dq, "k": dk, "v": dv, "g": dg, "b": db, "w": dw}
