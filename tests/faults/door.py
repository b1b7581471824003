"""Faults of the door and of memory: bad calls let in, neighbours read, arguments changed."""

from __future__ import annotations

from tests.faults.fault import GATED, PER_CHANNEL, Fault

PROBLEM = "problem.py"
ARGUMENTS = "backends/eager/arguments.py"
GRAPH = "backends/eager/graph.py"
TILING = "backends/eager/tiling.py"
ACTIVATIONS = "backends/eager/activations.py"

FAULTS = (
    Fault(
        "positive-gates-accepted",
        "positive gates",
        PROBLEM,
        'if (check_values or q.device.type == "cpu") and g is not None',
        "if check_values and g is not None",
        ("gated_delta_rule", "kda"),
    ),
    Fault(
        "gates-that-are-not-numbers-accepted",
        "positive gates",
        PROBLEM,
        "    if not bool((g <= 0).all()):",
        "    if bool((g > 0).any()):",
        ("gated_delta_rule", "kda"),
    ),
    Fault(
        "offsets-past-T-accepted",
        "bad offsets",
        PROBLEM,
        "    if starts[-1] != T:\n",
        "    if starts[-1] < T:\n",
        ("delta_rule",),
    ),
    Fault(
        "offsets-short-of-T-accepted",
        "bad offsets",
        PROBLEM,
        "    if starts[-1] != T:\n",
        "    if starts[-1] > T:\n",
        ("delta_rule",),
    ),
    Fault(
        "decreasing-offsets-accepted",
        "bad offsets",
        PROBLEM,
        "        if b < a:\n",
        "        if b < 0 and a < 0:\n",
        ("delta_rule",),
    ),
    Fault(
        "offsets-for-a-batch-accepted",
        "bad offsets",
        PROBLEM,
        "    if B != 1:\n",
        "    if B < 1:\n",
        ("delta_rule",),
    ),
    Fault(
        "narrow-state-accepted",
        "refusal",
        PROBLEM,
        "allowed = (torch.float32, torch.float64) if wide else (torch.float32,)",
        "allowed = FLOATS",
        ("delta_rule",),
    ),
    Fault(
        "unknown-options-ignored",
        "dropped argument",
        PROBLEM,
        "        if value is not None and value is not False:\n",
        "        if value is True:\n",
        ("gated_delta_rule", "kda"),
    ),
    Fault(
        "absent-gate-refused",
        "refusal",
        PROBLEM,
        '    _need_tensor("g", g, optional=True)\n',
        '    _need_tensor("g", g, optional=gates.decay != "channel")\n',
        GATED,
    ),
    Fault(
        "int32-offsets-refused",
        "refusal",
        PROBLEM,
        "if x.dtype not in (torch.int64, torch.int32):",
        "if x.dtype != torch.int64:",
        ("delta_rule",),
    ),
    Fault(
        "square-bias-refused",
        "refusal",
        PROBLEM,
        "(HV * K,), (HV, K))",
        "(HV * K,))",
        PER_CHANNEL,
    ),
    Fault(
        "strides-of-gates-ignored",
        "strides",
        ARGUMENTS,
        "    g = None if x.g is None else wide(x.g)\n",
        "    g = None if x.g is None else wide(\n"
        "        x.g.as_strided(x.g.shape, x.g.new_empty(x.g.shape, device='meta').stride())\n"
        "    )\n",
        GATED,
    ),
    Fault(
        "gate-lanes-unmasked",
        "unmasked lanes",
        ARGUMENTS,
        "    g = None if x.g is None else wide(x.g)\n",
        "    g = None if x.g is None else wide(x.g)\n"
        "    if g is not None and spec.K % 16:\n"
        "        lanes = (*x.g.shape[:-1], -(-spec.K // 16) * 16)\n"
        "        g = g + 0 * wide(x.g.as_strided(lanes, x.g.stride())).sum(-1, keepdim=True)\n",
        PER_CHANNEL,
    ),
    Fault(
        "h0-overwritten",
        "caller's memory",
        TILING,
        "return states.clone(memory_format=torch.contiguous_format)",
        "return states",
    ),
    Fault(
        "norm-in-place",
        "caller's memory",
        ACTIVATIONS,
        "    return x * rstd, rstd\n",
        "    return x.data.mul_(rstd), rstd\n",
        ("delta_rule",),
    ),
    Fault(
        "resets-replaced-in-place",
        "caller's memory",
        ARGUMENTS,
        "    b = wide(x.b)\n",
        "    g = None if g is None else g.data.nan_to_num_(neginf=-1e30)\n    b = wide(x.b)\n",
        ("kda",),
    ),
    Fault(
        "outputs-in-the-compute-type",
        "types",
        GRAPH,
        "    o = o.to(problem.tensors.q.dtype)\n",
        "",
        ("gated_delta_rule",),
    ),
)
