"""Signatures that are flash-linear-attention's, so that a model changes one import."""

import inspect

import pytest

import rewy

# The positional parameters of fla-core 0.6.0, in its order; "=" and a default where it has one.
# From fla/ops/{delta_rule,gated_delta_rule,kda,gdn2}/{chunk,fused_recurrent}.py of its wheel.
SIGNATURES = {
    "chunk_delta_rule": """q k v beta scale=None initial_state=None output_final_state=False
        use_qk_l2norm_in_kernel=False cu_seqlens=None cu_seqlens_cpu=None""",
    "chunk_gated_delta_rule": """q k v g beta scale=None initial_state=None
        output_final_state=False use_qk_l2norm_in_kernel=False use_beta_sigmoid_in_kernel=False
        allow_neg_eigval=False state_v_first=False cu_seqlens=None cu_seqlens_cpu=None
        chunk_indices=None cp_context=None""",
    "chunk_kda": """q k v g beta scale=None initial_state=None output_final_state=False
        use_qk_l2norm_in_kernel=False use_gate_in_kernel=False use_beta_sigmoid_in_kernel=False
        allow_neg_eigval=False safe_gate=False lower_bound=None disable_recompute=False
        return_intermediate_states=False state_v_first=False cu_seqlens=None cu_seqlens_cpu=None
        cp_context=None use_graph=False max_num_seqs=None""",
    "chunk_gdn2": """q k v g b w scale=None initial_state=None output_final_state=False
        use_qk_l2norm_in_kernel=False use_gate_in_kernel=False cu_seqlens=None cu_seqlens_cpu=None
        safe_gate=False lower_bound=None disable_recompute=False return_intermediate_states=False
        state_v_first=False cp_context=None""",
    "fused_recurrent_delta_rule": """q k v beta=None scale=None initial_state=None
        output_final_state=False use_qk_l2norm_in_kernel=False cu_seqlens=None""",
    "fused_recurrent_gated_delta_rule": """q k v g=None gk=None gv=None beta=None scale=None
        initial_state=None output_final_state=False use_qk_l2norm_in_kernel=False
        use_gate_in_kernel=False A_log=None dt_bias=None use_beta_sigmoid_in_kernel=False
        allow_neg_eigval=False state_v_first=False cu_seqlens=None""",
    "fused_recurrent_kda": """q k v g beta A_log=None dt_bias=None scale=None initial_state=None
        output_final_state=False use_qk_l2norm_in_kernel=False use_gate_in_kernel=False
        use_beta_sigmoid_in_kernel=False allow_neg_eigval=False lower_bound=None
        state_v_first=False cu_seqlens=None""",
    "fused_recurrent_gdn2": """q k v g b w A_log=None dt_bias=None scale=None initial_state=None
        output_final_state=False use_qk_l2norm_in_kernel=False use_gate_in_kernel=False
        lower_bound=None state_v_first=False cu_seqlens=None""",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_positional_parameters_are_those_of_fla(name):
    parameters = inspect.signature(getattr(rewy, name)).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    found = [p.name + ("" if p.default is p.empty else f"={p.default}") for p in positional]
    assert found == SIGNATURES[name].split()
    others = [p for p in parameters if p not in positional]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in others)


def test_every_public_function_is_in_the_table():
    assert sorted(rewy.__all__) == sorted(SIGNATURES)
