"""Faults of the backward: correction (both ways), reverse states, contraction, sums, policies."""

from __future__ import annotations

from tests.faults.fault import GATED, PER_CHANNEL, Fault

TILING = "backends/eager/tiling.py"
CONTRACTION = "backends/eager/contraction.py"
CORRECTION = "backends/eager/correction.py"
NAIVE = "backends/eager/naive.py"
ARGUMENTS = "backends/eager/arguments.py"
GATES = "backends/eager/gates.py"
SOLVE = "backends/eager/solve.py"
GRAPH = "backends/eager/graph.py"

FAULTS = (
    Fault(
        "A-not-transposed",
        "correction",
        CORRECTION,
        "torch.matmul(A[step].mT, incoming, out=Y[step])",
        "torch.matmul(A[step], incoming, out=Y[step])",
    ),
    Fault(
        "sign-of-dL",
        "wrong sign",
        CORRECTION,
        "dL = (Y @ system.U.mT).tril_(-1).neg_()",
        "dL = (Y @ system.U.mT).tril_(-1)",
    ),
    Fault(
        "dK_b-dropped",
        "dropped term",
        CORRECTION,
        "dK_b = (Y @ system.S.mT).neg_()",
        "dK_b = torch.zeros_like(x.k_b.x)",
    ),
    Fault(
        "later-chunks-do-not-reach-Y",
        "dropped term",
        CORRECTION,
        "incoming = x.k_t.at(step).read(after).add_(dU[step])",
        "incoming = dU[step]",
    ),
    Fault(
        "reverse-state-not-decayed",
        "dropped term",
        CORRECTION,
        "        advance(after, x.total, step, change, before)\n",
        "        advance(after, None, step, change, before)\n",
        GATED,
    ),
    Fault(
        "erase-missing-from-the-reverse-state",
        "dropped term",
        CORRECTION,
        "x.q.at(step).write(dO[step]).sub_(x.k_b.at(step).write(Y[step]))",
        "x.q.at(step).write(dO[step])",
    ),
    Fault(
        "naive-misses-a-part-of-dA",
        "correction",
        NAIVE,
        "        dA += dW @ K_b.mT  # 3\n",
        "",
        implementation="naive",
    ),
    Fault(
        "naive-multiplies-by-A-untransposed",
        "correction",
        NAIVE,
        "right = dA @ A.mT",
        "right = dA @ A",
        implementation="naive",
    ),
    Fault(
        "naive-mask-takes-the-upper-half",
        "correction",
        NAIVE,
        "dL = -torch.tril(A.mT @ right, -1)",
        "dL = -torch.tril((A.mT @ right).mT, -1)",
        implementation="naive",
    ),
    Fault(
        "diagonal-counted-twice",
        "mask",
        CONTRACTION,
        "dP, dL = dP.tril(-1), dL.tril(-1)",
        "dP, dL = dP.tril(), dL.tril()",
        ("delta_rule",),
    ),
    Fault(
        "source-not-decayed",
        "dropped term",
        CONTRACTION,
        "_product(met.mT, x_later * down)",
        "_product(met.mT, x_later)",
        PER_CHANNEL,
    ),
    Fault(
        "erase-strength-missing-from-the-source",
        "dropped term",
        CONTRACTION,
        "    if erase.by is not None:\n        dL *= erase.by\n",
        "",
        ("delta_rule", "gated_delta_rule"),
    ),
    Fault(
        "pair-decay-missing-from-dL",
        "dropped term",
        CONTRACTION,
        "        dL *= sums.pairs\n",
        "",
        ("gated_delta_rule",),
    ),
    Fault(
        "L-unpacked-untransposed",
        "gate gradient",
        SOLVE,
        "return packed.tril(), packed.mT",
        "return packed.tril(), packed",
        ("gated_delta_rule",),
    ),
    Fault(
        "A-unpacked-with-L",
        "policy",
        SOLVE,
        "return packed.tril(), packed.mT",
        "return packed, packed.mT",
        ("gated_delta_rule",),
    ),
    Fault(
        "row-crosses-its-own-gate",
        "wrong gate row",
        GATES,
        "earlier = crossed.new_ones(C, C).triu(1)",
        "earlier = crossed.new_ones(C, C).triu()",
        ("gated_delta_rule",),
    ),
    Fault(
        "gate-of-a-row-not-owed-by-itself",
        "wrong gate row",
        GATES,
        "to_row.tril().sum(-2, keepdim=True)",
        "to_row.tril(-1).sum(-2, keepdim=True)",
        ("gated_delta_rule",),
    ),
    Fault(
        "scores-leave-no-gate-gradient",
        "dropped term",
        GRAPH,
        "(dP * P).addcmul_(dL, L)",
        "dL * L",
        ("gated_delta_rule",),
    ),
    Fault(
        "diagonal-missing-from-dk",
        "dropped term",
        GRAPH,
        "out.k.add_(Dk_state).addcmul_(on_diagonal, x.q).addcmul_(x.b, Dbk)",
        "out.k.add_(Dk_state).addcmul_(x.b, Dbk)",
    ),
    Fault(
        "erase-missing-from-dk",
        "dropped term",
        GRAPH,
        ".addcmul_(on_diagonal, x.q).addcmul_(x.b, Dbk)",
        ".addcmul_(on_diagonal, x.q)",
    ),
    Fault(
        "scale-missing-from-dq",
        "scale",
        GRAPH,
        "            Dq_state *= scale * sums.from_start\n",
        "            Dq_state *= sums.from_start\n",
    ),
    Fault(
        "dbeta-by-division",
        "gradient edges",
        GRAPH,
        "out.w.copy_(role(x.v, Y, x.w))",
        "out.w.copy_(role(x.v, x.w * Y, x.w) / x.w)",
    ),
    Fault(
        "write-missing-from-dbeta",
        "dropped term",
        ARGUMENTS,
        "db, dw = db + dw, None",
        "db, dw = db, None",
        ("delta_rule", "gated_delta_rule", "kda"),
    ),
    Fault(
        "group-not-summed",
        "heads",
        ARGUMENTS,
        "return d.unflatten(2, (spec.H, -1)).sum(3)",
        "return d.unflatten(2, (spec.H, -1))[:, :, :, 0]",
    ),
    Fault(
        "neighbouring-heads-summed",
        "heads",
        ARGUMENTS,
        "return d.unflatten(2, (spec.H, -1)).sum(3)",
        "return d.unflatten(2, (-1, spec.H)).sum(2)",
    ),
    Fault(
        "group-summed-in-order-of-arrival",
        "compiler, race",
        ARGUMENTS,
        "        return d.unflatten(2, (spec.H, -1)).sum(3)\n",
        "        late = to_arguments.__dict__.setdefault('late', [])\n"
        "        late.append(0)\n"
        "        return d.unflatten(2, (spec.H, -1)).roll(len(late) // 2, 3).sum(3)\n",
        ("delta_rule",),
    ),
    Fault(
        "last-of-many-sequences-a-bit-off",
        "compiler, race",
        ARGUMENTS,
        "    dq, dk = ungroup(d.q), ungroup(d.k)\n",
        "    dq, dk = ungroup(d.q), ungroup(d.k)\n"
        "    if len(dk) > 5:\n"
        "        dk = dk.clone()\n"
        "        dk[-1] = dk[-1].nextafter(2 * dk[-1])\n",
        ("delta_rule",),
    ),
    Fault(
        "dA_log-of-the-first-batch-member",
        "reduction",
        ARGUMENTS,
        "dA_log = dA.sum((0, 1, 3))",
        "dA_log = dA[:1].sum((0, 1, 3))",
        GATED,
    ),
    Fault(
        "ddt_bias-averaged",
        "reduction",
        ARGUMENTS,
        "ddt_bias = dg.sum((0, 1))",
        "ddt_bias = dg.mean(0).sum(0)",
        GATED,
    ),
    Fault(
        "dht-ignored",
        "dropped argument",
        GRAPH,
        "_start(problem, dht, tiling)",
        "_start(problem, None, tiling)",
    ),
    Fault(
        "loss-through-the-state-alone-ignored",
        "dropped argument",
        "autograd.py",
        "if do is None and dht is None:",
        "if do is None:",
    ),
    Fault(
        "h0-ignored-by-the-recomputation",
        "dropped argument",
        GRAPH,
        "        h = _start(problem, problem.tensors.h0, tiling)\n        for n",
        "        h = _start(problem, None, tiling)\n        for n",
    ),
    Fault(
        "scale-ignored-by-the-recomputation",
        "policy",
        GRAPH,
        "_local(x, sums, spec.scale, slabs.parts(rows), scores, None)",
        "_local(x, sums, spec.K**-0.5, slabs.parts(rows), scores, None)",
    ),
    Fault(
        "right-side-saved-for-U",
        "policy",
        GRAPH,
        "            tiling.put(output(from_states, scores, residuals), rows, o)\n",
        "            tiling.put(output(from_states, scores, residuals), rows, o)\n"
        "        residuals.copy_(x.w * x.v)\n",
        implementation="eager-save",
    ),
    Fault(
        "saved-states-overwritten",
        "policy",
        GRAPH,
        "sums.total * role(system.S, dS, sums.total)",
        "role(system.S.mul_(sums.total), dS, sums.total)",
        ("gated_delta_rule",),
        "eager-save",
    ),
    Fault(
        "recomputed-in-bfloat16",
        "policy",
        GRAPH,
        "            states(inverse, x.w, x.v, ends, h, steps, U[n], S[n])\n",
        "            v = x.v.bfloat16().to(A.dtype)\n"
        "            states(inverse, x.w, v, ends, h, steps, U[n], S[n])\n",
    ),
    Fault(
        "inverse-of-decoding-transposed",
        "wrong sign",
        GRAPH,
        "            states(inverse, x.w, x.v, ends, h, steps, U[n], S[n])\n",
        "            if solves:\n"
        "                A[rows] = inverse = A[rows].mT.clone()\n"
        "            states(inverse, x.w, x.v, ends, h, steps, U[n], S[n])\n",
        ("delta_rule",),
    ),
    Fault(
        "slabs-not-in-reverse",
        "slabs",
        GRAPH,
        "    for n, (rows, steps) in reversed(list(enumerate(slabs.all))):\n",
        "    for n, (rows, steps) in enumerate(slabs.all):\n",
        implementation="eager-save",
    ),
    Fault(
        "slab-put-where-the-first-lies",
        "slabs",
        TILING,
        "        some, out = slice(rows.start * self.C, rows.stop * self.C), "
        "out.view(B * T, HV, D)\n",
        "        out = out.view(B * T, HV, D)\n"
        "        some = slice(0, (rows.stop - rows.start) * self.C)\n",
        implementation="eager-save",
    ),
    Fault(
        "slab-recomputed-from-the-first-states",
        "slabs",
        GRAPH,
        "            states(inverse, x.w, x.v, ends, h, steps, U[n], S[n])\n",
        "            h = _start(problem, problem.tensors.h0, tiling)\n"
        "            states(inverse, x.w, x.v, ends, h, steps, U[n], S[n])\n",
        implementation="naive",
    ),
)
