"""The oracles: what this library's operators must return, in NumPy, over any number system.

    recurrence     token by token, with an adjoint derived by hand: the definition
    chunkwise      the naive chunkwise form, seven local products on the way back
    residual       the ReWY form, three
    stages         what those two share
    decays         products of gate factors within a chunk
    contraction    a channel gate's contraction as matrix products, three ways
    numbers        float64, extended precision, the rationals, a prime field
    arithmetic     where an implementation rounds
    activations    raw-input options
    arguments      what a user hands to an operator
    operators      users' arguments in, every output and gradient out
    budget         truth, and how far from it a correct implementation may be
    points         random points at which identities are checked

An oracle takes `evaluate(Arguments(...), do, dht)`; a budget takes `spread(Arguments(...), do, dht,
Precision.bfloat16())`. Nothing here imports the library under test.
"""

from .arguments import OPERATORS, Arguments
from .arithmetic import Exact, MonteCarlo, Precision
from .budget import spread
from .numbers import EXTENDED, FIELD, FLOAT64, RATIONAL, NumberSystem
from .operators import evaluate

__all__ = [
    "EXTENDED",
    "FIELD",
    "FLOAT64",
    "OPERATORS",
    "RATIONAL",
    "Arguments",
    "Exact",
    "MonteCarlo",
    "NumberSystem",
    "Precision",
    "evaluate",
    "spread",
]
