"""Faults of the forward: tiling and packing, local scores, solve, states, output, decoding."""

from __future__ import annotations

from tests.faults.fault import GATED, Fault

TILING = "backends/eager/tiling.py"
CONTRACTION = "backends/eager/contraction.py"
SOLVE = "backends/eager/solve.py"
STATES = "backends/eager/states.py"
GRAPH = "backends/eager/graph.py"

FAULTS = (
    Fault(
        "padding-of-ones",
        "tails",
        TILING,
        "x.masked_fill_((token < 0)[:, None, None], 0)",
        "x.masked_fill_((token < 0)[:, None, None], 1)",
    ),
    Fault(
        "gate-activated-after-padding",
        "tails",
        GRAPH,
        "    g = None if active.g is None else chunks(active.g)\n",
        "    g = None if active.g is None else chunks(problem.tensors.g)\n"
        "    if problem.spec.gate_activation:\n"
        "        from .arguments import _gate_parameters, activations\n"
        "        parameters = [p if p is None else p[:, None] for p in _gate_parameters(problem)]\n"
        "        g = activations.gate(g, *parameters, problem.spec.lower_bound)\n",
        GATED,
    ),
    Fault(
        "group-repeats-heads-in-turn",
        "heads",
        TILING,
        "x.view(-1, self.C, H, 1, D).expand(-1, -1, -1, n, -1)",
        "x.view(-1, self.C, 1, H, D).expand(-1, -1, n, -1, -1)",
    ),
    Fault(
        "gates-of-the-first-head",
        "context parallel",
        GRAPH,
        "g = None if active.g is None else chunks(active.g)",
        "g = None if active.g is None else chunks(active.g[:, :, :1].expand_as(active.g))",
        GATED,
    ),
    Fault(
        "final-states-left-sorted",
        "packing",
        TILING,
        "return states if self._rank is None else states.index_select(0, self._rank)",
        "return states",
    ),
    Fault(
        "states-sorted-by-the-inverse",
        "packing",
        TILING,
        "states.index_select(0, self._order)",
        "states.index_select(0, self._rank)",
    ),
    Fault(
        "slots-in-the-callers-order",
        "packing",
        TILING,
        "(begin[position // self.C] + rank[sequence])",
        "(begin[position // self.C] + sequence)",
    ),
    Fault(
        "empty-sequences-not-counted",
        "packing",
        TILING,
        "        sequence = "
        'torch.repeat_interleave(torch.arange(len(lengths), device="cpu"), lengths)\n',
        "        first = torch.zeros(int(starts[-1]) + 1, dtype=torch.int64)\n"
        "        first[starts[1:-1]] = 1\n"
        "        sequence = first.cumsum(0)[:-1]\n",
    ),
    Fault(
        "mask-one-diagonal-too-far",
        "future leaks in",
        CONTRACTION,
        "return [(x @ k.mT).tril_(-1) for x in rows]",
        "return [(x @ k.mT).tril_(1) for x in rows]",
        ("delta_rule",),
    ),
    Fault(
        "diagonal-of-P-dropped",
        "dropped term",
        GRAPH,
        "    P.diagonal(dim1=-2, dim2=-1).copy_((x.q * x.k).sum(-1))\n",
        "",
    ),
    Fault(
        "scale-applied-twice",
        "scale",
        GRAPH,
        "return P.mul_(scale), L[0]",
        "return P.mul_(scale).mul_(scale), L[0]",
    ),
    Fault(
        "one-operand-in-bfloat16",
        "precision",
        CONTRACTION,
        "_pairs(out, s).copy_((halves(x, s)[1] * down) @ source.mT)",
        "_pairs(out, s).copy_((halves(x, s)[1] * down).bfloat16().to(x.dtype) @ source.mT)",
        GATED,
    ),
    Fault(
        "float64-computed-in-float32",
        "precision",
        "problem.py",
        "compute_dtype=computed",
        "compute_dtype=torch.float32",
    ),
    Fault(
        "solve-by-doubling",
        "solve",
        SOLVE,
        "    C = L.shape[-1]\n",
        "    C = L.shape[-1]\n"
        "    one = torch.eye(C, dtype=L.dtype, device=L.device)\n"
        "    A, power = one - L, L @ L\n"
        "    for _ in range(2, C.bit_length()):\n"
        "        A, power = A @ (one + power), power @ power\n"
        "    return A\n",
    ),
    Fault(
        "block-inverse-in-float16",
        "solve",
        SOLVE,
        "A[..., rows, rows] = inverse[..., n, :, :]",
        "A[..., rows, rows] = inverse[..., n, :, :].half().to(A.dtype)",
    ),
    Fault(
        "substitution-stops-a-row-early",
        "solve",
        SOLVE,
        "for i in range(1, size):",
        "for i in range(1, size - 1):",
    ),
    Fault(
        "sign-between-blocks",
        "solve",
        SOLVE,
        "A[..., rows, :start] = -(inverse[..., n, :, :] @ above)",
        "A[..., rows, :start] = inverse[..., n, :, :] @ above",
    ),
    Fault(
        "last-block-of-64-unsolved",
        "compiler, race",
        SOLVE,
        "        if start:\n",
        "        if start and not (C == 64 and start == 48):\n",
    ),
    Fault(
        "channels-past-64-dropped",
        "compiler, race",
        STATES,
        "                torch.matmul(x.q[step], before, out=O[step])\n",
        "                q = x.q[step]\n"
        "                K = q.shape[-1] - (q.shape[-1] % 64 if q.shape[-1] > 64 else 0)\n"
        "                torch.matmul(q[..., :K], before[..., :K, :], out=O[step])\n",
    ),
    Fault(
        "keys-decayed-from-the-start",
        "wrong gate row",
        STATES,
        "k_t=x.k * sums.to_end,",
        "k_t=x.k * sums.from_start,",
        GATED,
    ),
    Fault(
        "decay-after-the-write",
        "order of decay",
        STATES,
        "                before *= x.total[step]\n",
        "                before += x.k_t[step].mT @ U[step]\n"
        "                before *= x.total[step]\n"
        "                continue\n",
        GATED,
    ),
    Fault(
        "erase-added",
        "wrong sign",
        STATES,
        "R[step] - x.k_b[step] @ before",
        "R[step] + x.k_b[step] @ before",
    ),
    Fault(
        "decoding-decays-after-the-error",
        "order of decay",
        GRAPH,
        "        if decay is not None:\n"
        "            S *= decay[step]\n"
        "        S += x.k[step].mT @ (R[step] - erase[step] @ S)\n",
        "        error = R[step] - erase[step] @ S\n"
        "        if decay is not None:\n"
        "            S *= decay[step]\n"
        "        S += x.k[step].mT @ error\n",
        ("gated_delta_rule",),
    ),
    Fault(
        "final-state-reshaped",
        "layout",
        GRAPH,
        "return state.mT.contiguous() if problem.spec.state_v_first else state",
        "N, HV, K, V = state.shape\n"
        "    return state.reshape(N, HV, V, K) if problem.spec.state_v_first else state",
    ),
    Fault(
        "initial-state-reshaped",
        "layout",
        GRAPH,
        "    state = state.mT if spec.state_v_first else state\n",
        "    state = state.reshape(spec.N, spec.HV, spec.K, spec.V)\n",
    ),
    Fault(
        "zero-states-kept-between-calls",
        "state left behind",
        GRAPH,
        "        return v.new_zeros(spec.N, spec.HV, spec.K, spec.V, dtype=spec.compute_dtype)\n",
        "        shape = (spec.N, spec.HV, spec.K, spec.V, spec.compute_dtype)\n"
        "        zeros = v.new_zeros(shape[:-1], dtype=shape[-1])\n"
        "        return _start.__dict__.setdefault(shape, zeros)\n",
    ),
    Fault(
        "tiling-remembered-by-sizes",
        "state left behind",
        GRAPH,
        "    return Tiling(problem.spec, problem.tensors.q.device)\n",
        "    spec = problem.spec\n"
        "    sizes = (spec.B, spec.T, spec.N, spec.HV, spec.chunk_size)\n"
        "    tiling = Tiling(spec, problem.tensors.q.device)\n"
        "    return _tiling.__dict__.setdefault(sizes, tiling)\n",
        ("delta_rule",),
    ),
)
