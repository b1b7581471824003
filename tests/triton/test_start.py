"""The launch cache, with a kernel that writes down how it is called."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

import triton.language as tl

from rewy.backends.triton import start as starting
from rewy.backends.triton.configs import Config


class Compiled:
    function, packed_metadata = "function", "metadata"

    def __init__(self):
        self.runs: list[tuple] = []

    def run(self, *arguments: object) -> None:
        self.runs.append(arguments)


class Kernel:
    """As much of a Triton kernel as ``start`` asks for."""

    arg_names = ("x", "T", "C", "K")

    def __init__(self):
        self.fn = object()
        self.compilations: list[Compiled] = []
        self.constants: list[dict[str, object]] = []

    def __getitem__(self, grid: tuple[int]):
        def compile_and_run(*arguments: object, **constants: object) -> Compiled:
            self.compilations.append(Compiled())
            self.constants.append(constants)
            return self.compilations[-1]

        return compile_and_run


@pytest.fixture
def kernel(monkeypatch):
    class Stream:
        cuda_stream = 7

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream)
    monkeypatch.setattr(starting, "_KNOWN", True)
    monkeypatch.setattr(starting, "_compiled", {})
    return Kernel()


def test_a_second_launch_passes_its_own_arguments_in_order(kernel):
    config, x, y = Config(0, 0, 4, 2), torch.zeros(8), torch.ones(8)
    starting.start(kernel, 3, config, [x, 5], {"K": 2, "C": 16})
    starting.start(kernel, 4, config, [y, 6], {"K": 2, "C": 16})
    (compiled,) = kernel.compilations
    (run,) = compiled.runs
    assert run[:4] == (4, 1, 1, 7)
    assert run[-4] is y
    assert run[-3:] == (6, 16, 2)


def test_what_needs_other_code_is_compiled_again(kernel):
    x = torch.zeros(8)
    first = (Config(0, 0, 4, 2), [x, 5], {"C": 16, "K": 2})
    others = [
        (Config(0, 0, 8, 2), [x, 5], {"C": 16, "K": 2}),
        (Config(0, 0, 4, 2), [x.double(), 5], {"C": 16, "K": 2}),
        (Config(0, 0, 4, 2), [x[1:], 5], {"C": 16, "K": 2}),  # no longer 16 bytes aligned
        (Config(0, 0, 4, 2), [x, 2**31], {"C": 16, "K": 2}),  # no longer 32 bits
        (Config(0, 0, 4, 2), [x, 5], {"C": 32, "K": 2}),
    ]
    for config, arguments, constants in (first, *others):
        starting.start(kernel, 1, config, arguments, constants)
    assert len(kernel.compilations) == 1 + len(others)
    starting.start(kernel, 1, *first, known=("K",))
    assert len(kernel.compilations) == 2 + len(others)


def test_sizes_that_are_known_are_compiled_in_and_no_others(kernel):
    arguments = Config(0, 0, 4, 2), [torch.zeros(8), 5], {"C": 16, "K": 2}
    starting.start(kernel, 1, *arguments)
    starting.start(kernel, 1, *arguments, known=("K",))
    without, given = kernel.constants
    assert (without["C"], without["K"]) == (16, 2)
    assert isinstance(given["K"], tl.constexpr)
    assert given["K"].value == 2
    assert given["C"] == 16
    assert not isinstance(given["C"], tl.constexpr)
    (again,) = kernel.compilations[1:]
    starting.start(kernel, 1, *arguments, known=("K",))
    assert again.runs[0][-2:] == (16, 2)


def test_no_programs_start_nothing(kernel):
    starting.start(kernel, 0, Config(0, 0, 4, 2), [torch.zeros(8), 5], {"C": 16, "K": 2})
    assert not kernel.compilations
