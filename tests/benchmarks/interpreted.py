"""A row without a card, the kernels in Triton's interpreter:
``python -m tests.benchmarks.interpreted``.

A process of its own, because the interpreter replaces Triton for all of it. Beside ours stands a
side that fails and one that is wrong.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

import tests.triton.interpreter  # noqa: F401  (before anything imports triton)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import torch
from measuring import rows
from measuring.floors import Ceilings
from measuring.plot import plot
from measuring.report import report
from measuring.shapes import DTYPES, SHAPES, Shape, make_inputs
from measuring.sides import Rewy
from measuring.timing import spread


class HostCard:
    """Times by the host's clock."""

    def times(self, calls, repeats):
        found = {}
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            ms = 1e3 * (time.perf_counter() - started)
            found[name] = {**spread(repeats * [ms]), "host": ms}
        return found


class Failing(Rewy):
    name = "failing"

    def backward(self, operator, x, kept):
        raise RuntimeError("no such kernel\nand more")


class Wrong(Rewy):
    name = "wrong"

    def backward(self, operator, x, kept):
        found = super().backward(operator, x, kept)
        return {**found, "dk": 2 * found["dk"]}


class Refusing(Rewy):
    name = "refusing"

    def refuses(self, operator, shape, policy):
        return "has no such thing"


# ||error|| / ||truth|| of an output that is rounded once is 2^-9 and 2^-12 at most; products round,
# too.
LARGEST = {"bfloat16": 8e-3, "float16": 1e-3}


def measure(dtype: str) -> None:
    rows.Card, rows.peak_mib = HostCard, lambda step: 1.0
    rows.make_inputs = partial(make_inputs, device="cpu")
    rows.small = lambda shape: shape._replace(lengths=(17, 3))
    rows.sides_of = lambda operator, ours_only: [Rewy(), Failing(), Wrong(), Refusing()]
    torch.cuda.synchronize = lambda: None
    shape = SHAPES["packed"] = Shape("packed", (20, 5), H=1, HV=2, size=16)
    options = Namespace(deadline=time.time() + 600, ours_only=False, repeats=3, tune_each=True,
                        dtype=dtype)  # fmt: skip
    found = list(rows.measured("gated_delta_rule", [shape], ["strong"], ["save"], options))
    for row in found:
        sides = row["sides"]
        assert sides["failing"] == {"refused": "RuntimeError: no such kernel"}
        assert sides["wrong"]["refused"].startswith("wrong at the small shape, against float64: dk")
        assert sides["refusing"] == {"refused": "has no such thing"}
        assert sides["rewy"].keys() >= {"forward", "backward", "errors", "peak_mib"}, sides["rewy"]
        assert sides["rewy"]["errors"]["o"] < LARGEST[dtype]
    about = {"gpu": "none", "date": "", "command": "", "versions": {}, "repeats": 3,
             "dtype": dtype}  # fmt: skip
    run = {"about": {**about, "ceilings": Ceilings(1e12, 1e14)._asdict()}, "rows": found}
    print(report(run), plot(run, "backward"))
    print(f"{len(found)} rows")


if __name__ == "__main__":
    for dtype in DTYPES:
        measure(dtype)
