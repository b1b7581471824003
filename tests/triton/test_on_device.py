"""Every configuration that can be selected, on the GPU at hand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

import rewy
from properties.case import OPERATORS
from rewy import backends
from tests.triton.on_device import LAYOUTS, LIMITS, arguments, results

# Configurations depend on the padded sizes, the type and the kind of gate; sizes that fill their
# padding, that do not, and that differ.
SIZES = [
    *[(128, 128), (64, 64), (256, 256), (128, 256), (256, 64)],  # compiled in for bfloat16
    *[(100, 60), (32, 17), (3, 5), (1, 5)],
]


needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@needs_a_gpu
@pytest.mark.parametrize(("K", "V"), SIZES)
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_configuration_is_right(operator, dtype, K, V):
    command = [sys.executable, "-m", "tests.triton.on_device", operator, dtype, str(K), str(V)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout.splitlines()[-1]) == []


def _results(operator: str, dtype: torch.dtype, **options: object) -> dict[str, torch.Tensor]:
    x = {name: y.cuda() for name, y in arguments(operator, dtype, 64, 64, LAYOUTS[0]).items()}
    if dtype == torch.float64:
        x = {name: y.double() for name, y in x.items()}
    adjoints = torch.ones_like(x["v"]), torch.ones_like(x["initial_state"])
    return results(operator, x, LAYOUTS[0], adjoints, **options)


def _assert_equal(found: dict, expected: dict) -> None:
    assert all(torch.equal(found[name], y) for name, y in expected.items())


@needs_a_gpu
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_gpu_has_its_kernels_without_being_asked(operator):
    _assert_equal(
        _results(operator, torch.bfloat16), _results(operator, torch.bfloat16, backend="triton")
    )


@needs_a_gpu
def test_float64_is_the_eager_graph_and_said_once():
    backends._say_once.cache_clear()
    with pytest.warns(UserWarning, match="no float64 kernels"):
        found = _results("kda", torch.float64)
    _assert_equal(found, _results("kda", torch.float64))
    _assert_equal(found, _results("kda", torch.float64, backend="eager"))


@needs_a_gpu
@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("operator", OPERATORS)
def test_compiled_callers_get_the_same_bits(operator):
    x = {
        name: y.cuda()
        for name, y in arguments(operator, torch.bfloat16, 64, 64, LAYOUTS[0]).items()
    }
    function = getattr(rewy, f"chunk_{operator}")

    def loss(**x: torch.Tensor) -> torch.Tensor:
        return function(**x)[0].float().square().sum()

    def gradients(of) -> list[torch.Tensor]:
        leaves = {name: y.detach().requires_grad_() for name, y in x.items()}
        return torch.autograd.grad(of(**leaves), list(leaves.values()))

    found = gradients(torch.compile(loss, backend="eager"))
    assert all(map(torch.equal, found, gradients(loss)))
