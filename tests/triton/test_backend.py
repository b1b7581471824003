"""When the Triton backend takes a problem, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rewy
from rewy import backends

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]


def _call(**changes: object) -> tuple[torch.Tensor, torch.Tensor | None]:
    q = torch.ones(1, 3, 1, 4)
    beta = torch.full((1, 3, 1), 0.25)
    return rewy.chunk_delta_rule(q, q, q, beta, **changes)


def test_tensors_on_the_cpu_are_refused_and_not_moved():
    with pytest.raises(ValueError, match=r"'triton'.*NVIDIA GPU, got cpu"):
        _call(backend="triton")


class Kernels:
    """Kernels that take some problems."""

    def __init__(self, reason: str | None):
        self.reason = reason

    def unsupported(self, problem: object) -> str | None:
        return self.reason


def _problem_on(device: str) -> SimpleNamespace:
    q = SimpleNamespace(device=torch.device(device))
    return SimpleNamespace(tensors=SimpleNamespace(q=q))


def test_gpus_get_the_kernels_and_other_devices_the_eager_graph(monkeypatch):
    kernels = Kernels(None)
    monkeypatch.setattr(backends, "_backend", lambda name: kernels)
    assert backends.select(_problem_on("cuda")) is kernels
    assert backends.select(_problem_on("cpu")).name == "eager"


def test_what_kernels_do_not_take_goes_to_the_eager_graph_and_is_said_once(monkeypatch):
    monkeypatch.setattr(backends, "_backend", lambda name: Kernels("no float64 kernels"))
    backends._say_once.cache_clear()
    with pytest.warns(UserWarning, match="eager graph where backend 'triton' cannot: no float64"):
        assert backends.select(_problem_on("cuda")).name == "eager"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.select(_problem_on("cuda")).name == "eager"


def test_the_warning_names_the_line_that_called(monkeypatch):
    monkeypatch.setitem(backends._KERNELS, "cpu", "triton")  # which wants a GPU
    backends._say_once.cache_clear()
    with pytest.warns(UserWarning, match="needs an NVIDIA GPU, got cpu") as told:
        _call()
    assert told[0].filename == __file__


def test_where_triton_is_not_installed_the_eager_graph_computes(monkeypatch):
    monkeypatch.setitem(sys.modules, "rewy.backends.triton", None)  # importing it is an error
    backends._say_once.cache_clear()
    with pytest.warns(UserWarning, match="'triton' cannot: it cannot be loaded"):
        assert backends.select(_problem_on("cuda")).name == "eager"


def test_nobody_loads_triton_unasked():
    code = "import sys, rewy; assert not any(name.startswith('triton') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_interpreted_it_takes_float32_and_refuses_float64():
    code = """
import torch, rewy
import tests.triton.interpreter
q = torch.ones(1, 3, 1, 4)
beta = torch.full((1, 3, 1), 0.25)
o, _ = rewy.chunk_delta_rule(q, q, q, beta, backend="triton")
assert torch.allclose(o, rewy.chunk_delta_rule(q, q, q, beta)[0])
one, _ = rewy.fused_recurrent_delta_rule(q, q, q, beta, backend="triton")
assert torch.allclose(o, one)
try:
    rewy.chunk_delta_rule(q.double(), q.double(), q.double(), beta.double(), backend="triton")
except ValueError as error:
    assert "float64" in str(error)
else:
    raise AssertionError("float64 was taken")
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=environment)


def test_no_compiler_is_loaded_and_none_traces_the_kernels():
    code = """
import sys, warnings, torch, rewy
import tests.triton.interpreter
from rewy.backends.triton import graph
traced = []
for name in ("forward", "backward", "decode"):
    def watched(*arguments, stage=getattr(graph, name)):
        traced.append(torch.compiler.is_compiling())
        return stage(*arguments)
    setattr(graph, name, watched)
torch.manual_seed(0)
q, k, v = torch.nn.functional.normalize(torch.randn(3, 1, 20, 1, 5), dim=-1)
beta = torch.rand(1, 20, 1)

def gradient(call):
    x = k.clone().requires_grad_()
    return torch.autograd.grad(call(x).square().sum(), x)[0]

def chunkwise(x):
    return rewy.chunk_delta_rule(q, x, v, beta, backend="triton")[0]

def token_by_token(x):
    return rewy.fused_recurrent_delta_rule(q, x, v, beta, backend="triton")[0]

plain = gradient(chunkwise), token_by_token(k)
assert "torch._dynamo" not in sys.modules
warnings.simplefilter("ignore")  # of the compiler
compiled = [torch.compile(call, backend="eager") for call in (chunkwise, token_by_token)]
assert "torch._dynamo" in sys.modules
for _ in range(2):
    assert torch.equal(gradient(compiled[0]), plain[0])
    assert torch.equal(compiled[1](k), plain[1])
assert traced == 9 * [False], traced
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=environment)


def test_a_gate_that_forgets_gets_no_gradient():
    code = """
import torch, rewy
import tests.triton.interpreter
torch.manual_seed(0)
for operator, channels in (("gated_delta_rule", ()), ("kda", (5,))):
    q, k, v = torch.nn.functional.normalize(torch.randn(3, 1, 20, 1, 5), dim=-1)
    g = torch.where(torch.rand(1, 20, 1, *channels) < 0.3, -torch.inf, -torch.rand(1))
    g[0, 7] = -200.0  # exp(-200) is 0 in float32
    g.requires_grad_()
    function = getattr(rewy, f"chunk_{operator}")
    o, _ = function(q, k, 1e4 * v, g, torch.rand(1, 20, 1), backend="triton", chunk_size=16)
    (dg,) = torch.autograd.grad(o.square().sum(), g)
    assert not dg[g.exp() == 0].any() and dg.abs().max() > 0
    alone = torch.full_like(g, -0.01)
    alone.view(20, -1)[7, 0] = -torch.inf  # nothing else in the chunk forgets
    alone.requires_grad_()
    o, _ = function(q, k, 1e4 * v, alone, torch.rand(1, 20, 1), backend="triton", chunk_size=16)
    (dg,) = torch.autograd.grad(o.square().sum(), alone)
    assert dg.view(20, -1)[7, 0] == 0 and dg.abs().max() > 0
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=environment)


def test_a_steep_gate_amid_gentle_ones_keeps_its_gradient():
    # Every pair of later rows is in its gradient twice, with opposite signs and rounded factors.
    code = """
import torch, rewy
import tests.triton.interpreter
torch.manual_seed(0)
T, K = 64, 16
for operator, channels in (("gated_delta_rule", ()), ("kda", (K,))):
    q, k = torch.nn.functional.normalize(torch.randn(2, 1, T, 1, K), dim=-1).bfloat16()
    v, do = torch.randn(2, 1, T, 1, K).bfloat16()
    beta = torch.rand(1, T, 1).bfloat16()
    g = torch.full((1, T, 1, *channels), -0.01)
    g[0, 40] = -5.0
    function = getattr(rewy, f"chunk_{operator}")

    def gradient(dtype, backend):
        x = g.to(dtype if dtype == torch.float64 else g.dtype).requires_grad_()
        o, _ = function(*(y.to(dtype) for y in (q, k, v)), x, beta.to(dtype), backend=backend)
        return torch.autograd.grad(o, x, do.to(dtype))[0][0, 40].double()

    right = gradient(torch.float64, "eager")
    error = (gradient(torch.bfloat16, "triton") - right).norm() / right.norm()
    assert error < 0.05, (operator, error)  # it was 0.41 of the channel gate's gradient
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=environment)
