"""Faults behind what a call seldom has: another call before its backward, arguments that differ in
strides and types, gradients that nobody wants, sizes past the usual.
"""

from __future__ import annotations

from tests.faults.fault import Fault

ARGUMENTS = "backends/eager/arguments.py"
AUTOGRAD = "autograd.py"
GRAPH = "backends/eager/graph.py"
PROBLEM = "problem.py"
SLABS = "backends/eager/slabs.py"

START = "    return tiling.sort(state.to(spec.compute_dtype))\n"
FINISH = (
    "    ht = _finish(problem, h, tiling) if spec.output_final_state else None\n    return o, ht"
)
GRADIENTS = (
    "        return None, None, None, *Gradients.apply(ctx.backend, ctx.spec, do, dht, *saved)\n"
)

FAULTS = (
    Fault(
        "solve-of-the-next-call-in-the-same-memory",
        "calls in flight",
        GRAPH,
        "    A, o = slabs.by_chunk(C, C), slabs.by_token(spec.V)\n",
        "    A, o = slabs.by_chunk(C, C), slabs.by_token(spec.V)\n"
        '    A = globals().setdefault(f"A {A.shape} {A.dtype}", A).data\n',
        ("delta_rule",),
    ),
    Fault(
        "output-of-the-next-call-in-the-same-memory",
        "calls in flight",
        GRAPH,
        "    o = o.to(problem.tensors.q.dtype)\n",
        '    o = globals().setdefault(f"o {o.shape} {o.dtype}", o.clone()).data.copy_(o)\n'
        "    o = o.to(problem.tensors.q.dtype)\n",
        ("delta_rule",),
    ),
    Fault(
        "gradient-of-the-next-call-in-the-same-memory",
        "calls in flight",
        AUTOGRAD,
        GRADIENTS,
        "        found = list(Gradients.apply(ctx.backend, ctx.spec, do, dht, *saved))\n"
        '        name = f"dk {found[1].shape} {found[1].dtype}"\n'
        "        found[1] = globals().setdefault(name, found[1].clone()).copy_(found[1])\n"
        "        return None, None, None, *found\n",
        ("delta_rule",),
    ),
    Fault(
        "gradients-remembered-by-the-graph",
        "calls in flight",
        AUTOGRAD,
        GRADIENTS,
        '        if not hasattr(ctx, "found"):\n'
        "            ctx.found = Gradients.apply(ctx.backend, ctx.spec, do, dht, *saved)\n"
        "        return None, None, None, *ctx.found\n",
        ("delta_rule",),
    ),
    Fault(
        "dk-lost-where-nobody-wants-dq",
        "requests",
        AUTOGRAD,
        GRADIENTS,
        "        found = list(Gradients.apply(ctx.backend, ctx.spec, do, dht, *saved))\n"
        "        if not ctx.needs_input_grad[3]:\n"
        "            found[1] = 0 * found[1]\n"
        "        return None, None, None, *found\n",
        ("delta_rule",),
    ),
    Fault(
        "state-lost-where-nothing-is-trained",
        "requests",
        AUTOGRAD,
        "        problem = Problem(spec, Tensors(*tensors))\n        run = ",
        "        problem = Problem(spec, Tensors(*tensors))\n"
        "        if not any(ctx.needs_input_grad):\n"
        "            problem = Problem(spec, problem.tensors._replace(h0=None))\n"
        "        run = ",
        ("delta_rule",),
    ),
    Fault(
        "state-unread-where-none-is-asked-for",
        "requests",
        GRAPH,
        "            tiling.put(output(from_states, scores, residuals), rows, o)\n",
        "            if not spec.output_final_state and rows.stop == tiling.M:\n"
        "                from_states[-1:] = 0\n"
        "            tiling.put(output(from_states, scores, residuals), rows, o)\n",
        ("delta_rule",),
    ),
    Fault(
        "decoding-overwrites-the-initial-state",
        "changed arguments",
        AUTOGRAD,
        "        ctx.save_for_backward(*tensors, *kept)\n",
        "        h0 = problem.tensors.h0\n"
        "        if token_by_token and None not in (h0, ht) and h0.dtype == ht.dtype:\n"
        "            tensors = [x.clone() if x is h0 else x for x in tensors]\n"
        "            h0.data.copy_(ht)\n"
        "        ctx.save_for_backward(*tensors, *kept)\n",
        ("delta_rule",),
    ),
    Fault(
        "a-neighbour-times-zero-added",
        "packs",
        SLABS,
        "    return Chunks(q, chunks(active.k), chunks(active.v), g, b, w)",
        "    v = chunks(active.v)\n"
        "    if active.v.shape[1]:\n"
        "        v = v + 0 * active.v[:1, :1].to(v.dtype).transpose(1, 2)\n"
        "    return Chunks(q, chunks(active.k), v, g, b, w)",
        ("delta_rule",),
    ),
    Fault(
        "k-by-the-strides-of-q",
        "strides",
        ARGUMENTS,
        "wide(x.q), wide(x.k), None, None",
        "wide(x.q), wide(x.k.as_strided(x.k.shape, x.q.stride())), None, None",
        ("delta_rule",),
    ),
    Fault(
        "A_log-by-a-stride-of-one",
        "strides",
        ARGUMENTS,
        "x.A_log.to(spec.compute_dtype).view(-1, 1)",
        "x.A_log.as_strided(x.A_log.shape, (1,)).to(spec.compute_dtype).view(-1, 1)",
        ("gated_delta_rule", "kda"),
    ),
    Fault(
        "strengths-in-the-gates-type",
        "types",
        ARGUMENTS,
        "    b = wide(x.b)\n    w =",
        "    b = wide(x.b if x.g is None else x.b.to(x.g.dtype))\n    w =",
        ("gated_delta_rule", "kda"),
    ),
    Fault(
        "no-gradient-of-a-narrow-A_log",
        "types",
        ARGUMENTS,
        "            dA_log = dA.sum((0, 1, 3)).to(x.A_log.dtype)\n",
        "            dA_log = dA.sum((0, 1, 3)).to(x.A_log.dtype) * (x.A_log.element_size() > 2)\n",
        ("gated_delta_rule", "kda"),
    ),
    Fault(
        "scale-of-zero-taken-for-none",
        "scale",
        PROBLEM,
        "    if scale is None:\n        scale = K**-0.5",
        "    if not scale:\n        scale = K**-0.5",
        ("delta_rule",),
    ),
    Fault(
        "sign-of-the-scale-lost",
        "scale",
        PROBLEM,
        "starts, float(scale), int(chunk_size)",
        "starts, abs(float(scale)), int(chunk_size)",
        ("delta_rule",),
    ),
    Fault(
        "query-heads-past-the-third-read-the-first",
        "sizes",
        ARGUMENTS,
        "    q, k, q_rstd, k_rstd = wide(x.q), wide(x.k), None, None\n",
        "    q, k, q_rstd, k_rstd = wide(x.q), wide(x.k), None, None\n"
        "    q = q[:, :, [h if h < 3 else 0 for h in range(spec.H)]]\n",
        ("delta_rule", "gated_delta_rule"),
    ),
    Fault(
        "no-initial-state-past-the-sixteenth-sequence",
        "sizes",
        GRAPH,
        START,
        "    keep = torch.arange(spec.N, device=state.device) < 16\n"
        "    return tiling.sort(state.to(spec.compute_dtype) * keep[:, None, None, None])\n",
        ("delta_rule", "gated_delta_rule"),
    ),
    Fault(
        "value-channels-past-128-lost-below-256",
        "sizes",
        GRAPH,
        FINISH,
        "    if 128 < spec.V < 256:\n        o[..., 128:] = 0\n" + FINISH,
    ),
)
