"""Faults of the forward: tiling and packing, local scores, solve, states, output, decoding."""

from __future__ import annotations

from tests.faults.fault import GATED, PER_CHANNEL, Fault

TILING = "backends/eager/tiling.py"
CONTRACTION = "backends/eager/contraction.py"
SOLVE = "backends/eager/solve.py"
STATES = "backends/eager/states.py"
GRAPH = "backends/eager/graph.py"
SLABS = "backends/eager/slabs.py"

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
        SLABS,
        "    g = None if active.g is None else chunks(active.g)\n",
        "    g = None if active.g is None else chunks(problem.tensors.g)\n"
        "    if problem.spec.gate_activation:\n"
        "        from .arguments import _gate_parameters, activations\n"
        "        parameters = [p if p is None else p[:, None] for p in _gate_parameters(problem)]\n"
        "        g = activations.gate(g, *parameters, problem.spec.lower_bound)\n",
        PER_CHANNEL,
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
        SLABS,
        "g = None if active.g is None else chunks(active.g)",
        "g = None if active.g is None else chunks(active.g[:, :, :1].expand_as(active.g))",
        PER_CHANNEL,
    ),
    Fault(
        "head-gate-of-the-first-head",
        "context parallel",
        SLABS,
        "self.tiling.chunks(self.active.g,",
        "self.tiling.chunks(self.active.g[:, :, :1].expand_as(self.active.g),",
        ("gated_delta_rule",),
    ),
    Fault(
        "gate-sums-of-the-first-slab",
        "slabs",
        SLABS,
        "some_of(rows, self._head_sums())",
        "some_of(slice(0, rows.stop - rows.start), self._head_sums())",
        ("gated_delta_rule",),
        "eager-save",
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
        "(q @ k.mT).tril_()",
        "(q @ k.mT).tril_(1)",
        ("delta_rule",),
    ),
    Fault(
        "diagonal-of-P-dropped",
        "dropped term",
        CONTRACTION,
        "(q @ k.mT).tril_()",
        "(q @ k.mT).tril_(-1)",
        ("delta_rule", "gated_delta_rule"),
    ),
    Fault(
        "diagonal-of-P-dropped-beside-a-channel-gate",
        "dropped term",
        CONTRACTION,
        "            P.diagonal(dim1=-2, dim2=-1).copy_((q * k).sum(-1))\n",
        "            pass\n",
        PER_CHANNEL,
    ),
    Fault(
        "scale-applied-twice",
        "scale",
        GRAPH,
        "torch.mul(scores, scale, out=P[rows])",
        "torch.mul(scores, scale * scale, out=P[rows])",
    ),
    Fault(
        "one-operand-in-bfloat16",
        "precision",
        CONTRACTION,
        "pairs(out, s).copy_((halves(x, s)[1] * down) @ source.mT)",
        "pairs(out, s).copy_((halves(x, s)[1] * down).bfloat16().to(x.dtype) @ source.mT)",
        PER_CHANNEL,
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
        "    A = L.new_ones(*L.shape[:-1], 1, 1)",
        "    C = L.shape[-1]\n"
        "    one = torch.eye(C, dtype=L.dtype, device=L.device)\n"
        "    A, power = one - L, L @ L\n"
        "    for _ in range(2, C.bit_length()):\n"
        "        A, power = A @ (one + power), power @ power\n"
        "    return A\n"
        "    A = L.new_ones(*L.shape[:-1], 1, 1)",
    ),
    Fault(
        "block-inverse-in-float16",
        "solve",
        SOLVE,
        "A[..., :s, :s] = earlier",
        "A[..., :s, :s] = earlier.half().to(L.dtype)",
    ),
    Fault(
        "later-block-not-multiplied",
        "solve",
        SOLVE,
        "torch.neg(later @ (pair @ earlier) if s > 1 else pair",
        "torch.neg(pair @ earlier if s > 1 else pair",
    ),
    Fault(
        "sign-between-blocks",
        "solve",
        SOLVE,
        "torch.neg(later @ (pair @ earlier) if s > 1 else pair, out=A[..., s:, :s])",
        "A[..., s:, :s] = later @ (pair @ earlier) if s > 1 else -pair",
    ),
    Fault(
        "last-block-of-64-unsolved",
        "compiler, race",
        SOLVE,
        "        A[..., s:, s:] = later\n",
        "        A[..., s:, s:] = later\n"
        "        if L.shape[-1] == 64 and s == 16:\n"
        "            pair = pair.clone()\n"
        "            pair[..., 1, :, :] = 0\n",
    ),
    Fault(
        "channels-past-64-dropped",
        "compiler, race",
        STATES,
        "        found = torch.matmul(self.x, S, out=out)\n",
        "        x = self.x\n"
        "        K = x.shape[-1] - (x.shape[-1] % 64 if x.shape[-1] > 64 else 0)\n"
        "        found = torch.matmul(x[..., :K], S[..., :K, :], out=out)\n",
    ),
    Fault(
        "keys-decayed-from-the-start",
        "wrong gate row",
        STATES,
        "k_t=scaled(x.k, sums.to_end),",
        "k_t=scaled(x.k, sums.from_start),",
        GATED,
    ),
    Fault(
        "decay-after-the-write",
        "order of decay",
        STATES,
        "torch.addcmul(change, before, total[step], out=after)",
        "torch.mul(before + change, total[step], out=after)",
        GATED,
    ),
    Fault(
        "erase-added",
        "wrong sign",
        STATES,
        "torch.mul(w[step], v[step]).sub_(",
        "torch.mul(w[step], v[step]).add_(",
    ),
    Fault(
        "place-of-the-next-step-taken-where-a-sequence-ends",
        "packing",
        STATES,
        "ready = following is not None and kept[following].shape == before.shape",
        "ready = following is not None",
    ),
    Fault(
        "states-not-handed-to-the-next-slab",
        "slabs",
        STATES,
        "            after = kept[following] if ready else after\n",
        "            after = kept[following] if ready else before.clone()\n",
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
        SLABS,
        "    return Tiling(problem.spec, problem.tensors.q.device)\n",
        "    spec = problem.spec\n"
        "    sizes = (spec.B, spec.T, spec.N, spec.HV, spec.chunk_size)\n"
        "    tiling = Tiling(spec, problem.tensors.q.device)\n"
        "    return _tiling.__dict__.setdefault(sizes, tiling)\n",
        ("delta_rule",),
    ),
)
