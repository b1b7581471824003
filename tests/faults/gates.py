"""Faults of gates: sums, the range of exponents, the gradient; and of the activations."""

from __future__ import annotations

from tests.faults.fault import GATED, PER_CHANNEL, Fault

GATES = "backends/eager/gates.py"
CONTRACTION = "backends/eager/contraction.py"
ACTIVATIONS = "backends/eager/activations.py"
ARGUMENTS = "backends/eager/arguments.py"
GRAPH = "backends/eager/graph.py"

SCORES_LOOP = (
    "    for s, down, up in segment_sums(g):\n"
    "        down, up = down.exp(), up.exp()\n"
    "        source = halves(k, s)[0] * up\n"
)

FAULTS = (
    Fault(
        "one-centre-a-chunk",
        "gate range",
        CONTRACTION,
        SCORES_LOOP,
        "    G = g.cumsum(-2)\n"
        "    G = G - G[..., G.shape[-2] // 2, None, :]\n"
        "    rows = [k if x is None else x for x in rows]\n"
        "    return [((x * G.exp()) @ (k * (-G).exp()).mT).tril(-1) for x in rows]\n" + SCORES_LOOP,
        PER_CHANNEL,
    ),
    Fault(
        "inverse-decay-formed",
        "gate range",
        CONTRACTION,
        SCORES_LOOP,
        "    G = g.cumsum(-2)\n"
        "    rows = [k if x is None else x for x in rows]\n"
        "    return [((x * G.exp()) @ (k * (-G).exp()).mT).tril(-1) for x in rows]\n" + SCORES_LOOP,
        PER_CHANNEL,
    ),
    Fault(
        "minus-infinity-subtracted",
        "gate range",
        GATES,
        "    return GateSums(from_start, ahead.exp(), from_start[..., -1, :, None], decays)\n",
        "    G = g.cumsum(-2)\n"
        "    to_end = (G[..., -1:, :] - G).exp()\n"
        "    return GateSums(from_start, to_end, from_start[..., -1, :, None], decays)\n",
        GATED,
    ),
    Fault(
        "mask-after-exponential",
        "gate range",
        GATES,
        "    if per_head(g):\n",
        "    if per_head(g):\n"
        "        G = g.cumsum(-2)\n"
        "        decays = (G - G.mT).exp().tril()\n"
        "        to_end = (G[..., -1:, :] - G).exp()\n"
        "        return GateSums(G.exp(), to_end, G[..., -1, :, None].exp(), decays)\n",
        ("gated_delta_rule",),
    ),
    Fault(
        "exponent-clamped",
        "gate range",
        GATES,
        "from_start = (g[..., :1, :] + inside).exp()",
        "from_start = (g[..., :1, :] + inside).clamp(min=-20).exp()",
        GATED,
    ),
    Fault(
        "gates-clamped-at-5",
        "gate range",
        ARGUMENTS,
        "    b = wide(x.b)\n",
        "    g = None if g is None else g.clamp(min=-5)\n    b = wide(x.b)\n",
        GATED,
    ),
    Fault(
        "gate-sums-in-float16",
        "precision",
        GATES,
        "from_start = (g[..., :1, :] + inside).exp()",
        "from_start = (g[..., :1, :] + inside).half().to(g.dtype).exp()",
        GATED,
    ),
    Fault(
        "centre-a-row-off",
        "wrong gate row",
        GATES,
        "centre = halves(g, s)[1][..., :1, :]",
        "centre = halves(g, s)[1][..., -1:, :]",
        GATED,
    ),
    Fault(
        "first-gate-dropped",
        "wrong gate row",
        GATES,
        "from_start = (g[..., :1, :] + inside).exp()",
        "from_start = inside.exp()",
        GATED,
    ),
    Fault(
        "total-decay-of-the-row-before",
        "wrong gate row",
        GATES,
        "from_start[..., -1, :, None], decays)",
        "from_start[..., -2:, :][..., 0, :, None], decays)",
        GATED,
    ),
    Fault(
        "centre-on-a-later-row",
        "future leaks in",
        CONTRACTION,
        SCORES_LOOP,
        "    for s, down, up in segment_sums(g):\n"
        "        shift = down[..., -1:, :].clamp(min=-20)\n"
        "        down, up = (down - shift).exp(), (up + shift).exp()\n"
        "        source = halves(k, s)[0] * up\n",
        ("kda",),
    ),
    Fault(
        "gate-gradient-by-cumulative-sum",
        "gradient edges",
        GATES,
        "    inside, ahead = d_from_start.clone(), d_to_end.clone()\n",
        "    dG = d_from_start - d_to_end\n"
        "    dG[..., -1, :] += d_to_end.sum(-2)\n"
        "    for n, (down, up) in enumerate(levels):\n"
        "        earlier, later = halves(dG, 1 << n)\n"
        "        later += down\n"
        "        earlier -= up\n"
        "    return dG.flip(-2).cumsum(-2).flip(-2)\n"
        "    inside, ahead = d_from_start.clone(), d_to_end.clone()\n",
        GATED,
    ),
    Fault(
        "gate-gradient-staged-in-bfloat16",
        "gradient edges",
        GATES,
        "inside, ahead = d_from_start.clone(), d_to_end.clone()",
        "inside, ahead = d_from_start.bfloat16().to(d_to_end.dtype), d_to_end.clone()",
        GATED,
    ),
    Fault(
        "centre-row-gets-no-gradient",
        "dropped term",
        GATES,
        "        centre += crossed + up.sum(-2)\n",
        "        centre += crossed\n",
        GATED,
    ),
    Fault(
        "state-leaves-no-gate-gradient",
        "dropped term",
        GRAPH,
        "            d_from_start[..., -1:, :] += kept\n",
        "",
        GATED,
    ),
    Fault(
        "erase-leaves-no-gate-gradient",
        "dropped term",
        CONTRACTION,
        "d_downs.append(role(x_later, d_later, g))",
        "d_downs.append(role(x_later, d_later, g) * (not d_downs))",
        GATED,
    ),
    Fault(
        "infinity-times-zero-in-the-gate",
        "activation",
        ACTIVATIONS,
        "    return -_times_exp(A_log, *_softplus(x))\n",
        "    return -A_log.exp() * F.softplus(x)\n",
        GATED,
    ),
    Fault(
        "A_log-of-the-first-head",
        "heads",
        ARGUMENTS,
        "x.A_log.to(spec.compute_dtype).view(-1, 1)",
        "x.A_log.to(spec.compute_dtype)[:1].expand(spec.HV).reshape(-1, 1)",
        GATED,
    ),
    Fault(
        "A_log-sign-in-the-adjoint",
        "activation",
        ACTIVATIONS,
        "dx = -dg * _times_exp(A_log, x.sigmoid(), F.logsigmoid(x))",
        "dx = -dg * _times_exp(-A_log, x.sigmoid(), F.logsigmoid(x))",
        GATED,
    ),
    Fault(
        "head-gates-not-bounded",
        "activation",
        ACTIVATIONS,
        "    if lower_bound is not None:\n        return lower_bound",
        "    if lower_bound is not None and x.shape[-1] > 1:\n        return lower_bound",
        ("gated_delta_rule",),
    ),
    Fault(
        "infinite-raw-gate-times-zero",
        "gate gradient",
        ACTIVATIONS,
        "dA.masked_fill(dg == 0, 0)",
        "dA",
        GATED,
    ),
    Fault(
        "bias-in-the-wrong-order",
        "layout",
        ARGUMENTS,
        "x.dt_bias.to(spec.compute_dtype).reshape(spec.HV, -1)",
        "x.dt_bias.to(spec.compute_dtype).reshape(-1, spec.HV).mT.contiguous()",
        PER_CHANNEL,
    ),
    Fault(
        "norm-without-its-eps-backward",
        "norm",
        ACTIVATIONS,
        "return rstd * (dy - y * (y * dy).sum(-1, keepdim=True))",
        "unit = F.normalize(y, dim=-1)\n"
        "    return rstd * (dy - unit * (unit * dy).sum(-1, keepdim=True))",
    ),
    Fault(
        "norm-clamped-instead-of-eps",
        "norm",
        ACTIVATIONS,
        "rstd = (x.square().sum(-1, keepdim=True) + L2NORM_EPS).rsqrt()",
        "rstd = x.norm(dim=-1, keepdim=True).clamp(min=L2NORM_EPS).reciprocal()",
    ),
    Fault(
        "norm-of-q-for-k",
        "norm",
        ARGUMENTS,
        "activations.l2norm_adjoint(dk, active.k, active.k_rstd)",
        "activations.l2norm_adjoint(dk, active.k, active.q_rstd)",
    ),
    Fault(
        "doubling-ignored-backward",
        "activation",
        ACTIVATIONS,
        "    return dx * 2 if neg_eigval else dx\n",
        "    return dx\n",
    ),
    Fault(
        "write-gate-doubled",
        "activation",
        ARGUMENTS,
        "activations.beta_sigmoid(w, False)",
        "activations.beta_sigmoid(w, spec.neg_eigval)",
        ("gdn2",),
    ),
    Fault(
        "one-minus-sigmoid",
        "activation",
        ACTIVATIONS,
        "dx = dy * x.sigmoid() * (-x).sigmoid()",
        "dx = dy * x.sigmoid() * (1 - x.sigmoid())",
    ),
)
