"""The four operators with their users' own arguments, and all their gradients.

operator           decay gamma = exp g     erase b                 write w
delta_rule         1                       beta [B, T, HV]         beta
gated_delta_rule   g [B, T, HV]            beta                    beta
kda                g [B, T, HV, K]         beta                    beta
gdn2               g [B, T, HV, K]         b [B, T, HV, K]         w [B, T, HV, V]
"""

from __future__ import annotations

import numpy as np

from . import activations, chunkwise, recurrence, residual, stages
from .arguments import Arguments
from .arithmetic import Exact
from .numbers import FLOAT64, NumberSystem, transpose

WAYS = {"naive": chunkwise.SevenProducts, "rewy": residual.ThreeProducts}


def evaluate(
    arguments: Arguments,
    do=None,
    dht=None,
    algorithm: str = "recurrence",
    arithmetic=None,
    system: NumberSystem = FLOAT64,
) -> dict[str, np.ndarray]:
    """Outputs and gradients of an operator.

    do: [B, T, HV, V], dht: like ht; None stands for zeros, both None for forward only.
    algorithm: "recurrence" (token by token, no rounding points), "naive" or "rewy" (in chunks).
    arithmetic: Exact() or MonteCarlo(...); system: what to compute in.

    Returns a dict of "o" [B, T, HV, V] and "ht" (like h0) and, with do or dht, the gradients of the
    arguments that are there, in their shapes: "dq", "dk", "dv", "dg", "dbeta" or "db" and "dw",
    "dh0", "dA_log", "ddt_bias". "dg" is the gradient of g as given: of the raw gate with
    use_gate_in_kernel, of log gamma when gamma stands in g's place. With Monte-Carlo arithmetic
    every result has a leading axis of samples.

    Raises ValueError for an unknown algorithm, a misshapen adjoint, and in an exact system for
    anything that needs an exponential. Source: docs/method.md.
    """
    arithmetic = arithmetic or Exact()
    if algorithm != "recurrence" and algorithm not in WAYS:
        raise ValueError(f"algorithm must be recurrence, naive or rewy, got {algorithm!r}")
    for name, adjoint, shape in (
        ("do", do, np.shape(arguments.v)),
        ("dht", dht, arguments.state_shape),
    ):
        if adjoint is not None and np.shape(adjoint) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {np.shape(adjoint)}")
    # An oracle may overflow where the operator itself does; whoever compares looks at that.
    with np.errstate(all="ignore"):
        results = _Evaluation(arguments, arithmetic, system).run(do, dht, algorithm)
    if isinstance(arithmetic, Exact):
        return {name: result[0] for name, result in results.items()}
    return results


class _Evaluation:
    """One evaluation; inside, tokens are [samples or 1, B, heads, T, D].

    States are [samples or 1, N, HV, K, V].
    """

    def __init__(self, arguments: Arguments, arithmetic, system: NumberSystem):
        if system.exact and (arguments.has_raw_inputs or arguments.g is not None):
            raise ValueError(f"{system.name} has no exponential: give gamma and activated inputs")
        self._a, self._arithmetic, self._system = arguments, arithmetic, system
        self._pullbacks = {}
        _, _, H, HV, K, _ = arguments.sizes
        self._group = HV // H
        top = 2 if arguments.allow_neg_eigval else 1
        if arguments.operator == "gdn2":
            b = self._strength("b", self._tokens(arguments.b), top)
            w = self._strength("w", self._tokens(arguments.w), 1)
        else:
            b = w = self._strength("beta", self._heads(arguments.beta), top)
        self._inputs = stages.Inputs(
            q=self._key("q"),
            k=self._key("k"),
            v=self._tokens(arguments.v),
            gamma=self._decay(),
            b=b,
            w=w,
            S0=self._state(arguments.h0),
            scale=system.array(K**-0.5 if arguments.scale is None else arguments.scale)[()],
        )

    def run(self, do, dht, algorithm) -> dict[str, np.ndarray]:
        """Walk the sequences one after another and give the results in the users' shapes."""
        adjoints = None
        if do is not None or dht is not None:
            do = self._system.zeros(np.shape(self._a.v)) if do is None else do
            adjoints = self._tokens(do), self._state(dht)
        a, samples = self._a, self._arithmetic.samples
        if a.offsets is None:
            pieces = [self._sequence(slice(None), slice(None), adjoints, algorithm)]
        else:
            pieces = [
                self._sequence(slice(lo, hi), slice(n, n + 1), adjoints, algorithm)
                for n, (lo, hi) in enumerate(zip(a.offsets[:-1], a.offsets[1:], strict=True))
            ]
        joined = {}
        for name in pieces[0]:
            parts = [piece[name] for piece in pieces]
            parts = [np.broadcast_to(part, (samples, *part.shape[1:])) for part in parts]
            joined[name] = np.concatenate(parts, axis=1 if name in ("ht", "dS0") else -2)
        results = {"o": _layout(joined.pop("o")), "ht": self._state_layout(joined.pop("ht"))}
        if joined:
            results |= self._gradients(recurrence.Gradients(**joined))
        output = self._arithmetic.output
        return {name: output(self._system.array(result)) for name, result in results.items()}

    def _sequence(self, tokens, states, adjoints, algorithm) -> dict[str, np.ndarray]:
        """One sequence, or a batch: o, ht and, given adjoints, recurrence.Gradients."""
        *arrays, S0, scale = self._inputs
        x = stages.Inputs(*(array[..., tokens, :] for array in arrays), S0[:, states], scale)
        if adjoints is not None:
            adjoints = adjoints[0][..., tokens, :], adjoints[1][:, states]
        if algorithm == "recurrence":
            o, ht = recurrence.forward(*x)
            gradients = adjoints and recurrence.backward(*x, *adjoints)
        else:
            scan = stages.Scan(x, self._a.chunk_size, self._arithmetic, WAYS[algorithm])
            o, ht = scan.outputs()
            gradients = adjoints and scan.gradients(*adjoints)
        return {"o": o, "ht": ht} | (gradients._asdict() if gradients else {})

    # From the users' shapes, activated where options say so; activations leave their pullbacks.

    def _tokens(self, x):
        """[B, T, heads, D] as [1, B, heads, T, D]."""
        return np.swapaxes(self._system.array(x), 1, 2)[None]

    def _heads(self, x):
        """[B, T, heads] as [1, B, heads, T, 1]."""
        return self._tokens(np.asarray(x)[..., None])

    def _state(self, x):
        """[N, HV, K, V], or transposed, as [1, N, HV, K, V]; None is zeros."""
        x = self._system.zeros(self._a.state_shape) if x is None else self._system.array(x)
        return (transpose(x) if self._a.state_v_first else x)[None]

    def _key(self, name):
        x = self._tokens(getattr(self._a, name))
        if self._a.use_qk_l2norm_in_kernel:
            x, self._pullbacks[name] = activations.l2norm(x, self._arithmetic)
        return np.repeat(x, self._group, axis=2)

    def _strength(self, name, x, top):
        if self._a.use_beta_sigmoid_in_kernel:
            x, self._pullbacks[name] = activations.beta_sigmoid(x, top, self._arithmetic)
        return x

    def _decay(self):
        a = self._a
        if a.g is None and a.gamma is None:
            B, T, _, HV, *_ = a.sizes
            return self._system.ones((1, B, HV, T, 1))
        tokens = self._heads if a.operator == "gated_delta_rule" else self._tokens
        if a.gamma is not None:
            return tokens(a.gamma)
        g = tokens(a.g)
        if not a.use_gate_in_kernel:
            return np.exp(g)
        HV = g.shape[2]
        A_log, dt_bias = (
            None if x is None else self._system.array(x).reshape(HV, 1, -1)
            for x in (a.A_log, a.dt_bias)
        )
        if a.lower_bound is None:
            g, pullback = activations.gate(g, A_log, dt_bias)
        else:
            g, pullback = activations.bounded_gate(
                g, A_log, dt_bias, a.lower_bound, self._arithmetic
            )
        gamma = self._arithmetic.decay(np.exp(g))
        # A decay of 0 has dg = 0. What the chunked algorithms' rounding leaves of that must not be
        # multiplied by a g, or a slope, of -1e44 or -inf.
        self._pullbacks["g"] = lambda dg: pullback(np.where(gamma == 0, 0, dg))
        return gamma

    # Back to the users' shapes.

    def _state_layout(self, x):
        return transpose(x) if self._a.state_v_first else x

    def _pull(self, name, dx):
        return self._pullbacks[name](dx) if name in self._pullbacks else dx

    def _gradients(self, d: recurrence.Gradients) -> dict[str, np.ndarray]:
        """Through groups and activations to the gradients of the arguments."""
        a = self._a
        out = {"dv": _layout(d.dv)}
        for name, dx in (("q", d.dq), ("k", d.dk)):
            S, B, HV, T, K = dx.shape
            dx = dx.reshape(S, B, HV // self._group, self._group, T, K).sum(axis=3)
            out[f"d{name}"] = _layout(self._pull(name, dx))
        if a.operator == "gdn2":
            out |= {"db": _layout(self._pull("b", d.db)), "dw": _layout(self._pull("w", d.dw))}
        else:
            out["dbeta"] = _layout(self._pull("beta", d.db + d.dw))[..., 0]
        if a.g is not None or a.gamma is not None:
            out |= self._gate_gradients(d.dg)
        if a.h0 is not None:
            out["dh0"] = self._state_layout(d.dS0)
        return out

    def _gate_gradients(self, dg) -> dict[str, np.ndarray]:
        a, out = self._a, {}
        if a.use_gate_in_kernel:
            dg, dA_log = self._pull("g", dg)
            if a.A_log is not None:
                out["dA_log"] = self._arithmetic.sum(dA_log, (1, 3, 4))[:, 0, :, 0, 0]
            if a.dt_bias is not None:
                ddt_bias = self._arithmetic.sum(dg, (1, 3))
                out["ddt_bias"] = ddt_bias.reshape(len(ddt_bias), *np.shape(a.dt_bias))
        dg = _layout(dg)
        return out | {"dg": dg[..., 0] if a.operator == "gated_delta_rule" else dg}


def _layout(x):
    """[samples, B, heads, T, D] as [samples, B, T, heads, D]."""
    return np.swapaxes(x, 2, 3)
