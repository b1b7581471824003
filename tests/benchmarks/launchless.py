"""Call fla-core's low-level functions on the CPU, their kernels left out:
``python -m tests.benchmarks.launchless``.

Results are whatever memory held. What is tried is that every function takes what it is given and
returns what is expected of it. A process of its own, because Triton is changed for all of it.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from pathlib import Path

from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from measuring.fla import Fla
from measuring.shapes import CHANNEL, OPERATORS, POLICIES, Shape, gates_of, make_inputs

SHAPES = (
    Shape("batch", (130, 130), H=2, HV=2, size=64),
    Shape("packed", (70, 1, 64), H=2, HV=2, size=32),
    Shape("grouped", (100,), H=2, HV=4, size=32),
)


def main() -> None:
    warnings.simplefilter("ignore")  # that there is no GPU
    for kind in (Autotuner, Heuristics, JITFunction):
        kind.run = lambda self, *arguments, **constants: None
    tried = 0
    for operator, shape, policy in itertools.product(OPERATORS, SHAPES, POLICIES):
        for side in (Fla(safe) for safe in (False, True) if not safe or operator in CHANNEL):
            if side.refuses(operator, shape, policy):
                continue
            x = make_inputs(operator, shape, gates_of(operator)[0], "cpu").under(policy)
            t = x.problem.tensors
            o, kept = side.forward(operator, x)
            gradients = side.backward(operator, x, kept)
            assert o.shape == t.v.shape
            wanted = {f"d{name}": y.shape for name, y in t._asdict().items() if y is not None}
            assert {name: y.shape for name, y in gradients.items()} == wanted, (operator, shape)
            assert side.used() == []
            tried += 1
    print(f"{tried} calls")


if __name__ == "__main__":
    main()
