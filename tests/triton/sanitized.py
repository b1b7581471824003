"""A few small calls, to be run under compute-sanitizer: ``python -m tests.triton.sanitized
OPERATOR``; or a fault that it must find, ``... write`` or ``... race``.
"""

from __future__ import annotations

import os
import sys

import torch

from tests.triton.on_device import Layout, arguments, results
from tests.triton.planted import _race, _write

# K, V, disable_recompute, layout: an empty sequence between two with a remainder. Heads that fill
# their padding and that do not, chunks for either matrix instruction.
LONG = Layout(1, 2, 83, (0, 70, 70, 83), 64, 0.1)
SHORT = Layout(1, 2, 37, (0, 20, 20, 37), 16, 0.1)
CALLS = (
    (64, 64, False, LONG),
    (100, 60, True, LONG),
    (64, 64, True, SHORT),
    (100, 60, False, SHORT),
)


def call(operator: str) -> None:
    """Forward and backward of every call."""
    for K, V, save, layout in CALLS:
        x = arguments(operator, torch.bfloat16, K, V, layout)
        adjoints = torch.randn_like(x["v"]), torch.randn_like(x["initial_state"])
        x = {name: y.cuda() for name, y in x.items()}
        adjoints = tuple(y.cuda() for y in adjoints)
        options = {"backend": "triton", "disable_recompute": save}
        found = results(operator, x, layout, adjoints, **options)
        for name, y in found.items():
            assert y.isfinite().all(), (name, K, V, layout)


def plant(fault: str) -> None:
    """A write behind a tensor's end, or threads that all write one word of shared memory."""
    x = torch.zeros(128, dtype=torch.int32, device="cuda")
    {"write": _write, "race": _race}[fault][(1,)](x)


if __name__ == "__main__":
    (what,) = sys.argv[1:]
    if what in ("write", "race"):
        plant(what)
    else:
        call(what)
    torch.cuda.synchronize()
    print(what, "ran", flush=True)
    os._exit(0)  # torch's threads sometimes abort at an ordinary exit
