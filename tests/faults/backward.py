"""Faults of the backward: correction (both ways), reverse states, contraction, sums, policies."""

from __future__ import annotations

from tests.faults.fault import GATED, Fault

TILING = "backends/eager/tiling.py"
CONTRACTION = "backends/eager/contraction.py"
CORRECTION = "backends/eager/correction.py"
NAIVE = "backends/eager/naive.py"
ARGUMENTS = "backends/eager/arguments.py"
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
        "dK_b = torch.zeros_like(x.k_b)",
    ),
    Fault(
        "later-chunks-do-not-reach-Y",
        "dropped term",
        CORRECTION,
        "incoming = dU[step] + x.k_t[step] @ after",
        "incoming = dU[step]",
    ),
    Fault(
        "reverse-state-not-decayed",
        "dropped term",
        CORRECTION,
        "        if x.total is not None:\n            after *= x.total[step]\n",
        "",
        GATED,
    ),
    Fault(
        "erase-missing-from-the-reverse-state",
        "dropped term",
        CORRECTION,
        "after += x.q[step].mT @ dO[step] - x.k_b[step].mT @ Y[step]",
        "after += x.q[step].mT @ dO[step]",
    ),
    Fault(
        "naive-misses-a-part-of-dA",
        "correction",
        NAIVE,
        "        dA += dW @ x.k_b.mT  # 3\n",
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
        "strict = d.tril(-1)",
        "strict = d.tril()",
        ("delta_rule",),
    ),
    Fault(
        "source-not-decayed",
        "dropped term",
        CONTRACTION,
        "_product(pairs.mT, x_later if per_head else x_later * down)",
        "_product(pairs.mT, x_later)",
        GATED,
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
        "        h = _start(problem, problem.tensors.h0, tiling)\n        for rows",
        "        h = _start(problem, None, tiling)\n        for rows",
    ),
    Fault(
        "scale-ignored-by-the-recomputation",
        "policy",
        GRAPH,
        "_local(x, spec.scale, graph.parts(rows), P[rows]",
        "_local(x, spec.K**-0.5, graph.parts(rows), P[rows]",
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
        "            states(A[rows], x.w * x.v, ends, h, steps, U[rows], S[rows])\n",
        "            R = (x.w * x.v).bfloat16().to(A.dtype)\n"
        "            states(A[rows], R, ends, h, steps, U[rows], S[rows])\n",
    ),
    Fault(
        "inverse-of-decoding-transposed",
        "wrong sign",
        GRAPH,
        "            states(A[rows], x.w * x.v, ends, h, steps, U[rows], S[rows])\n",
        "            if solves:\n"
        "                A[rows] = A[rows].mT.clone()\n"
        "            states(A[rows], x.w * x.v, ends, h, steps, U[rows], S[rows])\n",
        ("delta_rule",),
    ),
    Fault(
        "slabs-not-in-reverse",
        "slabs",
        GRAPH,
        "    for rows, steps in reversed(graph.slabs):\n",
        "    for rows, steps in graph.slabs:\n",
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
        "            states(A[rows], x.w * x.v, ends, h, steps, U[rows], S[rows])\n",
        "            h = _start(problem, problem.tensors.h0, tiling)\n"
        "            states(A[rows], x.w * x.v, ends, h, steps, U[rows], S[rows])\n",
        implementation="naive",
    ),
)
