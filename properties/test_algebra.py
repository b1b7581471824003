"""The method's identities, in exact arithmetic: both sides are == at a random point.

Gates are free factors gamma, 0 (a reset) included. In GF(2^61 - 1) one point is a proof for all
practical purposes; the rationals need no such argument. Structure and a seed are drawn; the point
follows from them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oracles import (
    FIELD,
    RATIONAL,
    NumberSystem,
    chunkwise,
    contraction,
    evaluate,
    points,
    recurrence,
    residual,
    stages,
)
from oracles.arithmetic import Exact
from oracles.numbers import lower, sum_to, transpose

seeds = st.integers(0, 2**32 - 1)
systems = st.sampled_from([FIELD, RATIONAL])


@dataclass(frozen=True)
class Sequence:
    """One sequence: sizes, what is per channel, how often gates reset, and a seed."""

    system: NumberSystem
    T: int
    K: int
    V: int
    gate_channels: bool
    erase_channels: bool
    write_channels: bool
    resets: float
    seed: int

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def point(self):
        """(Inputs, do, dS)."""
        return points.sequence(
            self.system,
            self.rng,
            self.T,
            self.K,
            self.V,
            gate=self.K if self.gate_channels else 1,
            erase=self.K if self.erase_channels else 1,
            write=self.V if self.write_channels else 1,
            resets=self.resets,
        )


@st.composite
def sequences(draw, min_tokens=0, resets=(0.0, 0.25), gate_channels=None):
    """Numerators and denominators grow with every token, so rationals get fewer of them."""
    system = draw(systems)
    flag = st.booleans()
    return Sequence(
        system=system,
        T=draw(st.integers(min_tokens, 12 if system is FIELD else 5)),
        K=draw(st.integers(1, 3)),
        V=draw(st.integers(1, 3)),
        gate_channels=draw(flag) if gate_channels is None else gate_channels,
        erase_channels=draw(flag),
        write_channels=draw(flag),
        resets=draw(st.sampled_from(resets)),
        seed=draw(seeds),
    )


chunk_sizes = st.integers(1, 8)
operators = st.sampled_from(["gated_delta_rule", "kda", "gdn2"])


@st.composite
def calls(draw, operator, **options):
    """(system, arguments, do, dht) of one packed call of an operator, with groups."""
    system = draw(systems)
    longest = 6 if system is FIELD else 2
    case = points.call(
        system,
        np.random.default_rng(draw(seeds)),
        operator,
        tuple(draw(st.lists(st.integers(0, longest), min_size=1, max_size=3))),
        heads=draw(st.integers(1, 2)),
        groups=draw(st.integers(1, 3)),
        K=draw(st.integers(1, 3)),
        V=draw(st.integers(1, 3)),
        chunk_size=draw(chunk_sizes),
        state=draw(st.booleans()),
        resets=draw(st.sampled_from([0.0, 0.25])),
        **options,
    )
    return system, *case


def assert_equal(left, right):
    """Exact equality, quantity by quantity, of two dicts or two tuples of arrays."""
    if not isinstance(left, dict):
        left, right = (dict(enumerate(results)) for results in (left, right))
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.shape == right[name].shape, name
        assert np.array_equal(value, right[name]), name


def both_ways(x, do, dS):
    """(o, S_T, gradients...) token by token."""
    return *recurrence.forward(*x), *recurrence.backward(*x, do, dS)


@given(sequences(), chunk_sizes)
def test_three_products_equal_seven_products(drawn, chunk_size):
    x, do, dS = drawn.point()
    three = residual.backward(*x, chunk_size, do, dS)
    assert_equal(three, chunkwise.backward(*x, chunk_size, do, dS))


@given(sequences(), chunk_sizes)
def test_chunkwise_equals_token_by_token(drawn, chunk_size):
    x, do, dS = drawn.point()
    o, S = chunkwise.forward(*x, chunk_size)
    gradients = chunkwise.backward(*x, chunk_size, do, dS)
    assert_equal((o, S, *gradients), both_ways(x, do, dS))


@given(sequences(), chunk_sizes, chunk_sizes)
def test_chunk_size_changes_nothing(drawn, one, other):
    x, do, dS = drawn.point()
    assert_equal(residual.forward(*x, one), residual.forward(*x, other))
    assert_equal(residual.backward(*x, one, do, dS), residual.backward(*x, other, do, dS))


@given(sequences(), st.data(), chunk_sizes)
def test_state_hand_over(drawn, data, chunk_size):
    """A sequence is its head, then its tail from the head's state; adjoints go back."""
    x, do, dS = drawn.point()
    cut = data.draw(st.integers(0, drawn.T), label="cut")
    whole = both_ways(x, do, dS)
    head = stages.Inputs(*(array[:cut] for array in x[:6]), x.S0, x.scale)
    o_head, middle = residual.forward(*head, chunk_size)
    tail = stages.Inputs(*(array[cut:] for array in x[:6]), middle, x.scale)
    o_tail, final = residual.forward(*tail, chunk_size)
    from_tail = residual.backward(*tail, chunk_size, do[cut:], dS)
    from_head = residual.backward(*head, chunk_size, do[:cut], from_tail.dS0)
    pairs = zip(from_head[:6], from_tail[:6], strict=True)
    joined = [np.concatenate(pair) for pair in pairs]
    assert_equal((np.concatenate([o_head, o_tail]), final, *joined, from_head.dS0), whole)


@given(sequences(), chunk_sizes)
def test_joint_linearity_in_values_and_state(drawn, chunk_size):
    """(o, S_T) is linear in (v, S0) together, and its adjoint in (do, dS)."""
    x, do, dS = drawn.point()
    other, do2, dS2 = dataclasses.replace(drawn, seed=drawn.seed + 1).point()
    factor = drawn.system.random(drawn.rng, ())[()]
    y = x._replace(v=other.v, S0=other.S0)
    mixed = x._replace(v=x.v + factor * y.v, S0=x.S0 + factor * y.S0)
    results = (residual.forward(*z, chunk_size) for z in (x, y, mixed))
    for one, two, both in zip(*results, strict=True):
        assert_equal((both,), (one + factor * two,))

    adjoints = ((do, dS), (do2, dS2), (do + factor * do2, dS + factor * dS2))
    gradients = [residual.backward(*x, chunk_size, *adjoint) for adjoint in adjoints]
    for one, two, both in zip(*gradients, strict=True):
        assert_equal((both,), (one + factor * two,))


@given(sequences(min_tokens=1, gate_channels=True))
def test_halved_contraction_equals_pairwise(drawn):
    x, _, _ = drawn.point()
    dM = drawn.system.random(drawn.rng, (drawn.T, drawn.T))
    halved = list(contraction.halved(x.gamma))
    product = contraction.contract(x.q, x.k, halved)
    assert_equal((product,), (contraction.pairwise(x.q, x.k, x.gamma),))
    adjoint = contraction.contract_adjoint(x.q, x.k, dM, halved)
    assert_equal(adjoint, contraction.pairwise_adjoint(x.q, x.k, x.gamma, dM))


@given(sequences(min_tokens=1, resets=(0.0,), gate_channels=True), st.data())
def test_centred_contraction_equals_pairwise(drawn, data):
    x, _, _ = drawn.point()
    dM = drawn.system.random(drawn.rng, (drawn.T, drawn.T))
    centre = data.draw(st.integers(0, drawn.T - 1), label="centre")
    centred = list(contraction.centred(x.gamma, centre))
    product = contraction.contract(x.q, x.k, centred)
    assert_equal((product,), (contraction.pairwise(x.q, x.k, x.gamma),))
    adjoint = contraction.contract_adjoint(x.q, x.k, dM, centred)
    assert_equal(adjoint, contraction.pairwise_adjoint(x.q, x.k, x.gamma, dM))


@given(sequences(min_tokens=1))
def test_gate_reduction_without_the_gram_matrix(drawn):
    """dg from roles equals the sum over everything that decays through a token, pair by pair."""
    x, do, dS = drawn.point()
    way, exact = residual.ThreeProducts, Exact()
    chunk = stages.open_chunk(x, exact, way)
    dU = transpose(chunk.P) @ do + chunk.K_t @ dS
    _, dL, dK_b = way.correction(chunk, dU, exact)
    dP = lower(x.scale * do @ transpose(chunk.U))

    entering = x.q * (x.scale * do @ transpose(x.S0)) + chunk.bk * dK_b  # from the start to row i
    leaving = x.k * (chunk.U @ transpose(dS))  # from row j to the end
    through = (x.S0 * dS).sum(axis=-1)
    gamma = np.broadcast_to(x.gamma, x.k.shape)

    def decay(after, until):
        return np.prod(gamma[after:until], axis=0)

    dg = drawn.system.zeros(x.k.shape)
    for t in range(drawn.T):
        for i in range(t, drawn.T):
            dg[t] += entering[i] * decay(0, i + 1)
            for j in range(t):
                gram = x.k[j] * (dP[i, j] * x.q[i] + dL[i, j] * chunk.bk[i])
                dg[t] += gram * decay(j + 1, i + 1)
        for j in range(t):
            dg[t] += leaving[j] * decay(j + 1, drawn.T)
        dg[t] += through * decay(0, drawn.T)
    gradients = stages.chunk_gradients(chunk, do, dS, exact, way)
    assert_equal((gradients.dg,), (sum_to(dg, x.gamma.shape[-1]),))


@given(calls("gated_delta_rule"), chunk_sizes)
def test_kda_with_equal_channels_is_gated_delta_rule(call, chunk_size):
    system, arguments, do, dht = call
    K = arguments.k.shape[-1]
    gamma = np.repeat(arguments.gamma[..., None], K, axis=-1)
    kda = dataclasses.replace(arguments, operator="kda", gamma=gamma, chunk_size=chunk_size)
    result = evaluate(kda, do, dht, "rewy", system=system)
    result["dg"] = result["dg"].sum(axis=-1)
    assert_equal(result, evaluate(arguments, do, dht, "rewy", system=system))


@given(calls("kda"), chunk_sizes)
def test_gdn2_with_equal_strengths_is_kda(call, chunk_size):
    system, arguments, do, dht = call
    b, w = (
        np.repeat(arguments.beta[..., None], size.shape[-1], axis=-1)
        for size in (arguments.k, arguments.v)
    )
    gdn2 = dataclasses.replace(
        arguments, operator="gdn2", beta=None, b=b, w=w, chunk_size=chunk_size
    )
    result = evaluate(gdn2, do, dht, "rewy", system=system)
    result["dbeta"] = result.pop("db").sum(axis=-1) + result.pop("dw").sum(axis=-1)
    assert_equal(result, evaluate(arguments, do, dht, "rewy", system=system))


@given(calls("delta_rule"), chunk_sizes)
def test_gated_delta_rule_without_decay_is_delta_rule(call, chunk_size):
    system, arguments, do, dht = call
    gated = dataclasses.replace(
        arguments,
        operator="gated_delta_rule",
        gamma=system.ones(arguments.beta.shape),
        chunk_size=chunk_size,
    )
    result = evaluate(gated, do, dht, "rewy", system=system)
    del result["dg"]
    assert_equal(result, evaluate(arguments, do, dht, "rewy", system=system))


@given(sequences(), chunk_sizes)
def test_zero_beta_only_decays_state(drawn, chunk_size):
    """Nothing is written or erased: o_t reads the decayed initial state."""
    x, _, _ = drawn.point()
    x = x._replace(b=0 * x.b, w=0 * x.w)
    o, S = residual.forward(*x, chunk_size)
    decayed = x.S0
    for t in range(drawn.T):
        decayed = x.gamma[t][:, None] * decayed
        assert np.array_equal(o[t], x.scale * x.q[t] @ decayed)
    assert np.array_equal(S, decayed)


@given(sequences(), st.integers(1, 9), chunk_sizes)
def test_padding_is_inert(drawn, padding, chunk_size):
    """A tail of k = v = b = w = 0 and gamma = 1 leaves state and gradients alone."""
    x, do, dS = drawn.point()

    def pad(array, fill):
        tail = fill((padding, array.shape[-1]))
        return np.concatenate([array, tail])

    zeros, ones = drawn.system.zeros, drawn.system.ones
    padded = stages.Inputs(
        *(pad(array, zeros) for array in x[:3]),
        gamma=pad(x.gamma, ones),
        b=pad(x.b, zeros),
        w=pad(x.w, zeros),
        S0=x.S0,
        scale=x.scale,
    )
    o, S = residual.forward(*padded, chunk_size)
    gradients = residual.backward(*padded, chunk_size, pad(do, zeros), dS)
    result = (o[: drawn.T], S, *(d[: drawn.T] for d in gradients[:6]), gradients.dS0)
    assert_equal(result, both_ways(x, do, dS))


@given(sequences(), chunk_sizes)
def test_scale_multiplies_the_output_only(drawn, chunk_size):
    x, do, dS = drawn.point()
    factor = drawn.system.random(drawn.rng, ())[()]
    scaled = x._replace(scale=factor * x.scale)
    o, S = residual.forward(*x, chunk_size)
    assert_equal(residual.forward(*scaled, chunk_size), (factor * o, S))
    gradients = residual.backward(*scaled, chunk_size, do, dS)
    assert_equal(gradients, residual.backward(*x, chunk_size, factor * do, dS))


@given(sequences(min_tokens=1), chunk_sizes)
def test_first_gate_is_inert_without_a_state(drawn, chunk_size):
    x, do, dS = drawn.point()
    x = x._replace(S0=0 * x.S0)
    assert not residual.backward(*x, chunk_size, do, dS).dg[0].any()
    moved = x.gamma.copy()
    moved[0] = drawn.system.random(drawn.rng, moved[0].shape)
    other = x._replace(gamma=moved)
    assert_equal(residual.forward(*other, chunk_size), residual.forward(*x, chunk_size))
