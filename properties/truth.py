"""What the oracles say of a case, truth and budget, remembered for a few cases."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields

import numpy as np

import oracles
from oracles import Arguments, Precision
from properties.case import Case
from properties.materialize import Inputs, materialize

SAMPLES = 8
clock = {"oracle": 0.0, "implementation": 0.0, "cases": 0}

_FIELDS = {f.name for f in fields(Arguments)}


def oracle_arguments(case: Case, inputs: Inputs, **changes: object) -> Arguments:
    """The call that a case stands for, as the oracles take it."""
    arrays = {name: x for name, x in inputs.present().items() if name in _FIELDS}
    options = {
        "scale": case.scale,
        "offsets": case.offsets if case.packed else None,
        "chunk_size": case.chunk_size,
        "use_qk_l2norm_in_kernel": case.qk_l2norm,
        "use_gate_in_kernel": case.gate_in_kernel,
        "lower_bound": case.lower_bound,
        "use_beta_sigmoid_in_kernel": case.beta_sigmoid,
        "allow_neg_eigval": case.neg_eigval,
        "state_v_first": case.state_v_first,
    }
    return Arguments(operator=case.operator, **{**arrays, **options, **changes})


class Remembered:
    """The last few values of a function of (case, key), since several implementations share one
    case.
    """

    def __init__(self, function, size: int = 4):
        self._function, self._size, self._kept = function, size, OrderedDict()

    def __call__(self, case: Case, *key):
        if (case, *key) not in self._kept:
            started = time.perf_counter()
            value = self._function(case, *key)
            clock["oracle"] += time.perf_counter() - started
            self._kept[(case, *key)] = value
            if len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return self._kept[(case, *key)]


@Remembered
def inputs_of(case: Case) -> Inputs:
    """`materialize`, remembered."""
    return materialize(case)


@Remembered
def budget(
    case: Case, precision: Precision
) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """(truth, deviations) of a case at a precision; the noise is seeded by the inputs."""
    return budget_of(case, inputs_of(case), precision)


def budget_of(
    case: Case, inputs: Inputs, precision: Precision, salt: int = 0, **changes: object
) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """As :func:`budget`, for inputs that a law has changed.

    ``salt`` draws independent noise; ``changes`` are to the oracle's arguments.
    """
    return oracles.spread(
        oracle_arguments(case, inputs, **changes),
        inputs.do,
        inputs.dht,
        precision,
        samples=SAMPLES,
        seed=case.seed + salt,
    )
