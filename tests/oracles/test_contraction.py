"""A channel gate's contraction: definition, one centre, and halving agree."""

import numpy as np
import pytest

from oracles import EXTENDED, FIELD, FLOAT64, RATIONAL, contraction, points
from oracles.numbers import transpose


def draw(system, C, K=3, resets=0.0, lead=()):
    """x, z, gamma [..., C, K] and dM [..., C, C]."""
    rng = np.random.default_rng(C)
    x, z = (system.random(rng, (*lead, C, K)) for _ in range(2))
    gamma = points.factors(system, rng, (*lead, C, K), resets)
    return x, z, gamma, system.random(rng, (*lead, C, C))


def by_definition(x, z, gamma):
    C, K = x.shape
    M = [[0] * C for _ in range(C)]
    for i in range(C):
        for j in range(i + 1):
            for d in range(K):
                M[i][j] += x[i, d] * z[j, d] * np.prod(gamma[j + 1 : i + 1, d])
    return np.array(M, dtype=x.dtype)


@pytest.mark.parametrize("C", range(1, 14))
def test_pairwise_is_the_definition(C):
    x, z, gamma, _ = draw(FIELD, C, resets=0.2)
    assert np.array_equal(contraction.pairwise(x, z, gamma), by_definition(x, z, gamma))


@pytest.mark.parametrize("system", [FIELD, RATIONAL], ids=lambda system: system.name)
@pytest.mark.parametrize("C", [1, 2, 3, 4, 5, 7, 8, 11, 13, 16])
def test_halved_is_pairwise_with_resets_for_every_length(system, C):
    x, z, gamma, dM = draw(system, C, resets=0.2, lead=(2,))
    expected = contraction.pairwise(x, z, gamma)
    assert np.array_equal(contraction.contract(x, z, contraction.halved(gamma)), expected)
    adjoints = contraction.contract_adjoint(x, z, dM, contraction.halved(gamma))
    for one, other in zip(adjoints, contraction.pairwise_adjoint(x, z, gamma, dM), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("centre", range(6))
def test_centred_is_pairwise_around_every_row(centre):
    x, z, gamma, dM = draw(FIELD, 6)
    blocks = list(contraction.centred(gamma, centre))
    assert np.array_equal(contraction.contract(x, z, blocks), contraction.pairwise(x, z, gamma))
    adjoints = contraction.contract_adjoint(x, z, dM, blocks)
    for one, other in zip(adjoints, contraction.pairwise_adjoint(x, z, gamma, dM), strict=True):
        assert np.array_equal(one, other)


def test_adjoints_pair_with_the_contraction():
    x, z, gamma, dM = draw(FIELD, 9, resets=0.1)
    dx, dz = contraction.pairwise_adjoint(x, z, gamma, dM)
    M = contraction.pairwise(x, z, gamma)
    assert (M * dM).sum() == (x * dx).sum() == (z * dz).sum()


def test_halving_survives_gates_that_one_centre_does_not():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 64, 4))
    gamma = np.exp(-rng.uniform(0, 200, (64, 4)))
    exact = by_definition(*(EXTENDED.array(a) for a in (x, z, gamma)))
    halved = contraction.contract(x, z, contraction.halved(gamma))
    assert np.abs(halved - exact).max() < 64 * np.finfo(float).eps * np.abs(x @ transpose(z)).max()
    with np.errstate(all="ignore"):
        centred = contraction.contract(x, z, contraction.centred(gamma, 32))
    assert not np.isfinite(centred).all()


def test_every_factor_of_halving_is_at_most_one():
    gamma = points.factors(FLOAT64, np.random.default_rng(1), (37, 2), resets=0.1)
    for block in contraction.halved(gamma):
        assert block.down.max() <= 1
        assert block.up.max() <= 1
