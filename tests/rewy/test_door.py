"""Refusals that name the argument.

Bad tensors of every kind are the business of properties/test_refusals.py; here are the options, the
parameters of the gate, and packing.
"""

import re

import pytest
import torch

import rewy

T, H, HV, K, V = 6, 2, 4, 3, 5
GATED = ("gated_delta_rule", "kda", "gdn2")


def make_call(operator, **changes):
    """Arguments that pass, and changes."""
    per_channel = operator in ("kda", "gdn2")
    x = {"q": torch.rand(1, T, H, K) / 2, "k": torch.rand(1, T, H, K) / 2}
    x["v"] = torch.rand(1, T, HV, V)
    if operator != "delta_rule":
        x["g"] = -torch.rand(1, T, HV, *((K,) if per_channel else ()))
    if operator == "gdn2":
        x |= {"b": torch.rand(1, T, HV, K), "w": torch.rand(1, T, HV, V)}
    else:
        x["beta"] = torch.rand(1, T, HV)
    return {**x, **changes}


def assert_refused(function, call, error, *words):
    """The error is of that kind, starts with the argument's name and contains the other words."""
    with pytest.raises(error) as raised:
        getattr(rewy, function)(**call)
    message = str(raised.value)
    assert re.match(rf"{words[0]}\b", message), message
    for word in words[1:]:
        assert str(word) in message, f"{word!r} is not in {message!r}"


OFFSETS = torch.tensor([0, 2, T])


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"cu_seqlens_cpu": OFFSETS, "cu_seqlens": None}, ValueError, ["needs cu_seqlens"]),
        ({"cu_seqlens_cpu": [0, 2, T]}, TypeError, ["torch.Tensor", "list"]),
        ({"cu_seqlens_cpu": OFFSETS.float()}, TypeError, ["int64", "float32"]),
        ({"cu_seqlens_cpu": OFFSETS[None]}, ValueError, ["[N + 1]", "[1, 3]"]),
        ({"cu_seqlens_cpu": OFFSETS[:2]}, ValueError, ["[N + 1]", "[2]"]),
        ({"cu_seqlens_cpu": OFFSETS.to("meta")}, ValueError, ["on the CPU", "meta"]),
        (
            {"cu_seqlens_cpu": torch.tensor([0, 3, T])},
            ValueError,
            ["equal cu_seqlens", "[0, 3, 6]"],
        ),
    ],
)
@pytest.mark.parametrize("operator", ["delta_rule", *GATED])
def test_offsets_on_the_cpu_are_checked(operator, changes, error, words):
    call = make_call(operator, **{"cu_seqlens": OFFSETS, **changes})
    assert_refused(f"chunk_{operator}", call, error, "cu_seqlens_cpu", *words)


@pytest.mark.parametrize(
    ("cu_seqlens", "error", "words"),
    [
        ([0, T], TypeError, ["torch.Tensor", "list"]),
        (torch.tensor([]).long(), ValueError, ["[N + 1]", "[0]"]),
        (torch.tensor(0), ValueError, ["[N + 1]", "[]"]),
        (torch.tensor([0, T], dtype=torch.int16), TypeError, ["int16"]),
        (torch.tensor([0, T - 1]), ValueError, ["end at T = 6", "got 5"]),
        (torch.tensor([0, T + 1]), ValueError, ["end at T = 6", "got 7"]),
        (torch.tensor([1, T]), ValueError, ["start at 0", "got 1"]),
        (torch.tensor([0, 4, 3, T]), ValueError, ["not decrease", "4 then 3", "index 2"]),
        (torch.tensor([0]), ValueError, ["end at T = 6", "got 0"]),
        (OFFSETS.to("meta"), ValueError, ["device cpu", "meta", "cu_seqlens_cpu"]),
    ],
)
@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
def test_offsets_are_checked(form, cu_seqlens, error, words):
    call = make_call("kda", cu_seqlens=cu_seqlens)
    assert_refused(f"{form}_kda", call, error, "cu_seqlens", *words)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_offsets_of_either_type_pass(dtype):
    results = [
        rewy.chunk_delta_rule(**make_call("delta_rule", **x), cu_seqlens=OFFSETS.to(dtype))[0]
        for x in ({}, {"cu_seqlens_cpu": OFFSETS})
    ]
    assert all(o.shape == (1, T, HV, V) for o in results)


UNSUPPORTED = {
    "chunk_gated_delta_rule": {"chunk_indices": OFFSETS, "cp_context": object()},
    "chunk_kda": {
        "return_intermediate_states": True,
        "cp_context": object(),
        "use_graph": True,
        "max_num_seqs": 3,
    },
    "chunk_gdn2": {"return_intermediate_states": True, "cp_context": object()},
    "fused_recurrent_gated_delta_rule": {"gk": torch.zeros(1), "gv": torch.zeros(1)},
}


@pytest.mark.parametrize(
    ("function", "option", "value"),
    [(f, name, value) for f, options in UNSUPPORTED.items() for name, value in options.items()],
)
def test_an_option_of_fla_that_is_not_here_is_refused_by_name(function, option, value):
    call = make_call(function.partition("_")[2].removeprefix("recurrent_"))
    assert_refused(function, {**call, option: value}, ValueError, option, "not supported", function)


@pytest.mark.parametrize("function", rewy.__all__)
def test_an_option_that_nobody_has_is_refused_by_name(function):
    call = make_call(function.partition("_")[2].removeprefix("recurrent_"))
    with pytest.raises(TypeError, match="head_first"):
        getattr(rewy, function)(**call, head_first=True)


RAW = {"use_gate_in_kernel": True, "A_log": torch.zeros(HV)}


@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("operator", GATED)
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"A_log": None}, ValueError, ["A_log", "use_gate_in_kernel=True", "lower_bound"]),
        ({"A_log": torch.zeros(HV + 1)}, ValueError, ["A_log", "[HV]", "[4]", "[5]"]),
        ({"A_log": torch.zeros(1, HV)}, ValueError, ["A_log", "[HV]", "[1, 4]"]),
        ({"A_log": torch.zeros(HV).double()}, TypeError, ["A_log", "float64"]),
        ({"A_log": 0.0}, TypeError, ["A_log", "torch.Tensor", "float"]),
        ({"A_log": torch.zeros(HV, device="meta")}, ValueError, ["A_log", "cpu", "meta"]),
        ({"dt_bias": torch.zeros(HV, K, 1)}, ValueError, ["dt_bias", "[4, 3, 1]"]),
        ({"dt_bias": torch.zeros(K)}, ValueError, ["dt_bias", "[3]"]),
        ({"dt_bias": torch.zeros(HV).long()}, TypeError, ["dt_bias", "int64"]),
        ({"lower_bound": 0.0}, ValueError, ["lower_bound", "below 0", "0.0"]),
        ({"lower_bound": float("-inf")}, ValueError, ["lower_bound", "finite", "-inf"]),
        ({"lower_bound": -1e39}, ValueError, ["lower_bound", "float32", "-1e+39"]),
        ({"lower_bound": float("nan")}, ValueError, ["lower_bound", "nan"]),
        ({"lower_bound": "-5"}, TypeError, ["lower_bound", "number", "-5"]),
        ({"lower_bound": True}, TypeError, ["lower_bound", "number", "True"]),
        ({"safe_gate": True}, ValueError, ["lower_bound", "[-5, 0)", "safe_gate", "None"]),
        ({"safe_gate": True, "lower_bound": -5.5}, ValueError, ["lower_bound", "-5.5"]),
        ({"safe_gate": 1}, TypeError, ["safe_gate", "True or False"]),
        ({"use_gate_in_kernel": 1}, TypeError, ["use_gate_in_kernel", "True or False"]),
        ({"g": None}, ValueError, ["g", "raw gate", "None"]),
    ],
)  # fmt: skip
def test_the_activation_of_the_gate_is_checked(operator, form, changes, error, words):
    call = make_call(operator, **{**RAW, **changes})
    assert_refused(f"{form}_{operator}", call, error, *words)


@pytest.mark.parametrize("operator", GATED)
@pytest.mark.parametrize("name", ["A_log", "dt_bias", "lower_bound"])
def test_what_belongs_to_the_activation_needs_it(operator, name):
    value = -1.0 if name == "lower_bound" else torch.zeros(HV)
    call = make_call(operator, **{name: value})
    assert_refused(f"chunk_{operator}", call, ValueError, name, "needs use_gate_in_kernel=True")


def test_dt_bias_is_per_head_or_per_channel_as_the_gate_is():
    per_head, per_channel = torch.zeros(HV), torch.zeros(HV * K)
    rewy.chunk_gated_delta_rule(**make_call("gated_delta_rule", **RAW, dt_bias=per_head))
    call = make_call("gated_delta_rule", **RAW, dt_bias=per_channel)
    assert_refused("chunk_gated_delta_rule", call, ValueError, "dt_bias", "[HV]", "[4]", "[12]")
    for bias in (per_channel, per_channel.view(HV, K)):
        rewy.chunk_kda(**make_call("kda", **RAW, dt_bias=bias))
    call = make_call("kda", **RAW, dt_bias=per_head)
    assert_refused("chunk_kda", call, ValueError, "dt_bias", "[12] or [4, 3]", "[4]")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_states_are_float32_beside_narrower_types(dtype):
    call = make_call("delta_rule", initial_state=torch.zeros(1, HV, K, V, dtype=dtype))
    assert_refused("chunk_delta_rule", call, TypeError, "initial_state", "float32", str(dtype)[6:])


def test_states_are_of_the_layout_asked_for():
    state = torch.zeros(1, HV, K, V)
    call = make_call("kda", initial_state=state, state_v_first=True)
    words = ("[N, HV, V, K] = [1, 4, 5, 3]", "[1, 4, 3, 5]")
    assert_refused("chunk_kda", call, ValueError, "initial_state", *words)
    call = make_call("kda", initial_state=state.mT)
    assert_refused("chunk_kda", call, ValueError, "initial_state", "[N, HV, K, V]")
    call = make_call("kda", initial_state=state, cu_seqlens=OFFSETS)
    assert_refused("chunk_kda", call, ValueError, "initial_state", "[2, 4, 3, 5]")


@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
def test_head_sizes_have_bounds(form):
    for size, wanted in ((257, "K from 1 to 256"), (0, "K from 1 to 256")):
        call = make_call("delta_rule", q=torch.zeros(1, T, H, size), k=torch.zeros(1, T, H, size))
        assert_refused(f"{form}_delta_rule", call, ValueError, "q", wanted, f"K = {size}")
    call = make_call("delta_rule", v=torch.zeros(1, T, HV, 0))
    assert_refused(f"{form}_delta_rule", call, ValueError, "v", "at least 1", "V = 0")
    for heads in (3, 0):
        call = make_call("delta_rule", v=torch.zeros(1, T, heads, V))
        assert_refused(f"{form}_delta_rule", call, ValueError, "v", "H = 2", f"HV = {heads}")


@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("operator", ["delta_rule", *GATED])
def test_every_tensor_lies_where_q_does(operator, form):
    state = torch.zeros(1, HV, K, V)
    for name in set(make_call(operator, initial_state=state)) - {"q"}:
        call = make_call(operator, initial_state=state)
        call[name] = call[name].to("meta")
        assert_refused(f"{form}_{operator}", call, ValueError, name, "q's device cpu", "meta")


@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("operator", GATED)
@pytest.mark.parametrize("check_values", [False, True])
def test_gates_above_zero_are_refused_on_the_cpu(operator, form, check_values):
    call = make_call(operator, check_values=check_values)
    call["g"][0, 3, 1] = 1e-3
    assert_refused(f"{form}_{operator}", call, ValueError, "g", "<= 0", "0.001")
    raw = {**call, "use_gate_in_kernel": True, "A_log": torch.zeros(HV)}
    getattr(rewy, f"{form}_{operator}")(**raw)  # a raw gate may be anything


@pytest.mark.parametrize(
    "option",
    ["output_final_state", "use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel",
     "allow_neg_eigval", "state_v_first", "disable_recompute", "check_values"],
)  # fmt: skip
def test_flags_are_booleans(option):
    for value in (1, None, "yes", torch.tensor(True)):
        call = make_call("kda", **{option: value})
        assert_refused("chunk_kda", call, TypeError, option, "True or False")


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("chunk_size", 0, ValueError),
        ("chunk_size", 256, ValueError),
        ("chunk_size", "64", TypeError),
        ("scale", float("inf"), ValueError),
        ("scale", 1e39, ValueError),  # no float32, and 0 times its infinity is NaN
        ("scale", True, TypeError),
        ("scale", torch.tensor(1.0), TypeError),
        ("backend", "cuda", ValueError),
    ],
)
def test_numbers_and_names_are_checked(option, value, error):
    assert_refused("chunk_kda", make_call("kda", **{option: value}), error, option)


def test_a_scale_of_zero_or_below_is_a_scale():
    call = make_call("kda")
    one, *_ = rewy.chunk_kda(**call, scale=1)
    assert torch.equal(rewy.chunk_kda(**call, scale=-1)[0], -one)
    assert not rewy.chunk_kda(**call, scale=0)[0].any()


def test_a_float64_scale_may_be_what_float32_cannot_hold():
    call = {
        name: x.double() if isinstance(x, torch.Tensor) else x
        for name, x in make_call("kda").items()
    }
    assert rewy.chunk_kda(**call, scale=1e39)[0].isfinite().all()
