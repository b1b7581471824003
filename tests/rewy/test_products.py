"""What the backward multiplies: three products a chunk to correct, seven the naive way, and no
tensor that the method is there to avoid.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rewy

OPERATORS = ("delta_rule", "gated_delta_rule", "kda", "gdn2")
PRODUCTS = {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"}
aten = torch.ops.aten
# C, K and V differ, so that a shape says which product it is.
HEADS, C, K, V = 2, 32, 24, 40


def make_inputs(operator: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """One chunk of one sequence, with an initial state."""
    generator = torch.Generator().manual_seed(1)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=dtype)

    def unit(*shape: int) -> Tensor:
        return torch.nn.functional.normalize(uniform(*shape) - 0.5, dim=-1)

    x = {"q": unit(1, C, HEADS, K), "k": unit(1, C, HEADS, K), "v": uniform(1, C, HEADS, V) - 0.5}
    if operator == "gated_delta_rule":
        x["g"] = -uniform(1, C, HEADS) / 8
    elif operator != "delta_rule":
        x["g"] = -uniform(1, C, HEADS, K) / 8
    if operator == "gdn2":
        x |= {"b": uniform(1, C, HEADS, K), "w": uniform(1, C, HEADS, V)}
    else:
        x["beta"] = uniform(1, C, HEADS)
    x["initial_state"] = uniform(1, HEADS, K, V) - 0.5
    return {name: value.requires_grad_() for name, value in x.items()}


def start(
    operator: str, backend: str, policy: str, *, form: str = "chunk"
) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor], Callable[[], object]]:
    """Inputs, adjoints, and the backward of a forward that has run."""
    x = make_inputs(operator)
    options = {"chunk_size": C, "disable_recompute": policy == "save"} if form == "chunk" else {}
    function = getattr(rewy, f"{form}_{operator}")
    o, ht = function(**x, **options, output_final_state=True, backend=backend)
    generator = torch.Generator().manual_seed(2)
    adjoints = tuple(torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in (o, ht))
    return x, adjoints, lambda: torch.autograd.grad((o, ht), list(x.values()), adjoints)


def products_of_the_correction(run: Callable[[], object]) -> list[tuple[int, int, int]]:
    """(rows, inner, columns) of every matrix product inside a range named rewy.correction."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()

    def inside(event) -> bool:
        while (event := event.cpu_parent) is not None:
            if event.name == "rewy.correction":
                return True
        return False

    found = []
    for event in profiler.events():
        if event.name in PRODUCTS and inside(event):
            first = 1 if "add" in event.name else 0  # a sum comes before, an output behind
            left, right = event.input_shapes[first : first + 2]
            found.append((left[-2], left[-1], right[-1]))
    return found


# The tables of the method: (rows, inner, columns), see docs/method.md.
REWY = [(C, C, V), (C, V, C), (C, V, K)]
NAIVE = [(C, V, K), (C, V, C), (C, K, C), (C, C, V), (C, C, K), (C, C, C), (C, C, C)]


@pytest.mark.parametrize("policy", ["recompute", "save"])
@pytest.mark.parametrize(("backend", "expected"), [("eager", REWY), ("naive", NAIVE)])
@pytest.mark.parametrize("operator", OPERATORS)
def test_correction_takes_its_products_and_no_more(operator, backend, expected, policy):
    """Prints, with -s: products, and their multiply-adds a chunk at C = 64, K = V = 128."""
    _, _, backward = start(operator, backend, policy)
    found = products_of_the_correction(backward)
    at = {C: 64, K: 128, V: 128}  # a usual size
    macs = sum(math.prod(at[n] for n in shape) for shape in found)
    print(f"\n| {operator} | {backend} | {policy} | {len(found)} | {macs:,} |")
    assert sorted(found) == sorted(expected)


class Watch(TorchDispatchMode):
    """Sees every operation of the backward.

    grams: shapes of the products of two factors that both carry k (and whatever scales it: beta,
        gates, norms). A product's own result carries nothing. squares: number of [C, C] by [C, C]
        products. made: copies of every [C, C] tensor, as each operation left it.
    """

    FRESH = ("empty", "zeros", "ones", "full")
    PRODUCTS = (aten.mm, aten.bmm, aten.addmm, aten.baddbmm)

    def __init__(self, k: Tensor):
        super().__init__()
        self.grams: list[tuple[int, ...]] = []
        self.squares = 0
        self.made: list[Tensor] = []
        self._carriers = {_memory(k)}
        self._alive: list[object] = []  # so that no address is used twice

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        inputs = _tensors((args, kwargs))
        outputs = _tensors(result)
        self._alive += [inputs, outputs]
        if func.overloadpacket in self.PRODUCTS:
            left, right = inputs[-2:]
            if {_memory(left), _memory(right)} <= self._carriers:
                self.grams.append((*left.shape[-2:], right.shape[-1]))
            self.squares += left.shape[-2:] == right.shape[-2:] == (C, C)
        elif not any(word in func.overloadpacket.__name__ for word in self.FRESH) and any(
            _memory(x) in self._carriers for x in inputs
        ):
            self._carriers |= {_memory(x) for x in outputs}
        self.made += [x.clone() for x in outputs if x.shape[-2:] == (C, C)]
        return result

    def formed(self, matrix: Tensor) -> bool:
        """Whether a ``[HEADS, C, C]`` matrix, or its negative or strict lower triangle, was ever
        there.
        """
        wanted = [m * sign for m in (matrix, matrix.tril(-1)) for sign in (1, -1)]
        return any(
            torch.allclose(x.reshape(-1, C, C), m, rtol=1e-6, atol=1e-9)
            for x in self.made
            if x.numel() == matrix.numel()
            for m in wanted
        )


def _tensors(tree: object) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _memory(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def adjoints_of_the_inverse(x: dict[str, Tensor], do: Tensor, dht: Tensor) -> dict[str, Tensor]:
    """The two terms of dA and their sum, ``[HEADS, C, C]``, by definition and not by halving."""
    q, k, v = (x[name].detach()[0].transpose(0, 1) for name in ("q", "k", "v"))
    gates = {name: x[name].detach()[0].transpose(0, 1) for name in x if name in ("g", "beta", "w")}
    b = x["b"].detach()[0].transpose(0, 1) if "b" in x else gates["beta"][..., None]
    w = gates.get("w", b)
    g = gates.get("g", torch.zeros(HEADS, C, K, dtype=q.dtype))
    G = (g if g.dim() == 3 else g[..., None].expand(-1, -1, K)).cumsum(-2)
    exponent = (G[:, :, None] - G[:, None]).clamp(max=0)  # clamped only where P is masked
    S, dO = x["initial_state"].detach()[0], do[0].transpose(0, 1)
    P = K**-0.5 * torch.einsum("hid,hjd,hijd->hij", q, k, exponent.exp()).tril()
    K_b, K_t = b * k * G.exp(), k * (G[:, -1:] - G).exp()
    dU = P.mT @ dO + K_t @ dht[0]
    from_R, from_W = dU @ (w * v).mT, -(dU @ S.mT) @ K_b.mT
    return {"dU R^T": from_R, "dW K_b^T": from_W, "dA": from_R + from_W}


def watch_backward(operator: str, backend: str, policy: str, form: str = "chunk"):
    x, adjoints, backward = start(operator, backend, policy, form=form)
    with Watch(x["k"]) as watch:
        backward()
    found = [name for name, m in adjoints_of_the_inverse(x, *adjoints).items() if watch.formed(m)]
    return watch, found


@pytest.mark.parametrize("policy", ["recompute", "save"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_backward_forms_no_gram_matrix_and_no_adjoint_of_the_inverse(operator, policy):
    watch, found = watch_backward(operator, "eager", policy)
    assert watch.grams == []
    assert watch.squares == 0
    assert found == []


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_naive_backward_does_form_the_adjoint_of_the_inverse(operator):
    watch, found = watch_backward(operator, "naive", "recompute")
    assert watch.squares == 2
    assert "dA" in found
    assert "dU R^T" in found


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_forward_does_form_the_gram_matrix(operator):
    x = make_inputs(operator)
    with Watch(x["k"]) as watch:
        getattr(rewy, f"chunk_{operator}")(**x, chunk_size=C)
    assert watch.grams
    k = x["k"].detach()[0].transpose(0, 1)
    if operator == "delta_rule":
        beta = x["beta"].detach()[0].transpose(0, 1)[..., None]
        assert watch.formed(beta * k @ k.mT)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_backward_of_decoding_solves_once(operator):
    """Decoding keeps no A: its backward forms L, and nothing else that the method avoids."""
    watch, found = watch_backward(operator, "eager", "recompute", form="fused_recurrent")
    assert watch.grams
    assert found == []
