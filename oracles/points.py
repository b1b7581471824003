"""Random points at which identities are checked: one sequence, or a whole call."""

from __future__ import annotations

import numpy as np

from .arguments import Arguments
from .numbers import NumberSystem
from .stages import Inputs


def factors(system: NumberSystem, rng: np.random.Generator, shape, resets: float = 0.0):
    """Non-zero elements (in (0, 1) in floating point), but 0 with probability `resets`."""
    gamma = system.random(rng, shape)
    if not system.exact:
        gamma = np.abs(gamma)
    return np.where(rng.random(shape) < resets, system.zeros(shape), gamma)


def sequence(
    system: NumberSystem,
    rng: np.random.Generator,
    T: int,
    K: int,
    V: int,
    gate: int | None = None,
    erase: int | None = None,
    write: int | None = None,
    lead: tuple[int, ...] = (),
    resets: float = 0.0,
):
    """(Inputs, do, dS) of one sequence.

    gate, erase, write: size of the last axis of gamma, b and w, by default K, K and V.
    lead: leading axes of everything.
    """
    gate, erase, write = gate or K, erase or K, write or V
    q, k, v, b, w, do = (
        system.random(rng, (*lead, T, size)) for size in (K, K, V, erase, write, V)
    )
    gamma = factors(system, rng, (*lead, T, gate), resets)
    S0, dS = (system.random(rng, (*lead, K, V)) for _ in range(2))
    scale = system.random(rng, ())[()]
    return Inputs(q, k, v, gamma, b, w, S0, scale), do, dS


def call(
    system: NumberSystem,
    rng: np.random.Generator,
    operator: str,
    lengths: tuple[int, ...],
    packed: bool = True,
    heads: int = 1,
    groups: int = 1,
    K: int = 2,
    V: int = 3,
    chunk_size: int = 4,
    state: bool = True,
    resets: float = 0.0,
    **options,
):
    """(Arguments, do, dht) of one call; without `packed` all lengths must be equal."""
    B, T = (1, sum(lengths)) if packed else (len(lengths), lengths[0])
    HV, N = heads * groups, len(lengths)
    arrays = {
        "q": system.random(rng, (B, T, heads, K)),
        "k": system.random(rng, (B, T, heads, K)),
        "v": system.random(rng, (B, T, HV, V)),
    }
    if operator == "gdn2":
        arrays["b"] = system.random(rng, (B, T, HV, K))
        arrays["w"] = system.random(rng, (B, T, HV, V))
    else:
        arrays["beta"] = system.random(rng, (B, T, HV))
    if operator != "delta_rule":
        channels = () if operator == "gated_delta_rule" else (K,)
        arrays["gamma"] = factors(system, rng, (B, T, HV, *channels), resets)
    if state:
        arrays["h0"] = system.random(rng, (N, HV, K, V))
    options.setdefault("scale", system.random(rng, ())[()])
    offsets = tuple(int(x) for x in np.cumsum((0, *lengths))) if packed else None
    arguments = Arguments(operator, **arrays, offsets=offsets, chunk_size=chunk_size, **options)
    return arguments, system.random(rng, (B, T, HV, V)), system.random(rng, (N, HV, K, V))
