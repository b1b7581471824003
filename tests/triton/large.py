"""Tensors of more than 2**31 elements, and more than 2**16 sequences: ``python -m
tests.triton.large far OPERATOR K V C [cpu]`` or ``... many OPERATOR TYPE [cpu]``.

Prints a list of what is wrong, or a text where there is no room. On the CPU, in Triton's
interpreter, only the small problem runs that compiles everything elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from tests.triton.guards import filled, same_bits
from tests.triton.on_device import LIMITS, Layout, results

# Packed sequences of whole chunks between a first and a last one with remainders. Of 32 heads with
# 256 channels element 2**31 lies in the last but one, and the last begins past it; so do its
# states, where the other head size is 64.
HEADS, LENGTHS, FEW = 32, (150, *[4096] * 64, 97), (150, 97)
SMALL = 1, (20, 16, 19, 17)
SEQUENCES = 70_000
# GiB. Most is taken in the backward: inputs and adjoints 10 (gdn2 17), what both passes read and
# leave, by chunk, and the gradients; 6296 bytes a token and head, of gdn2 9352.
NEEDS = {"far gated_delta_rule": 49.2, "far gdn2": 73.1, "far kda": 69.3, "many": 13.1}


def far_arguments(
    operator: str, dtype: torch.dtype, K: int, V: int, layout: Layout, device: str
) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
    """A call's tensors and adjoints, drawn on the device: there may be 2**31 numbers in each."""
    generator = torch.Generator(device).manual_seed(1)

    def normal(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype, device=device)

    H, HV, T = layout.heads, layout.value_heads, layout.tokens
    x = {
        "q": normalize(normal(1, T, H, K), dim=-1),
        "k": normalize(normal(1, T, H, K), dim=-1),
        "v": normal(1, T, HV, V),
        "initial_state": normal(layout.sequences, HV, K, V, dtype=torch.float32),
    }
    channels = {"gated_delta_rule": (), "kda": (K,), "gdn2": (K,)}.get(operator)
    if channels is not None:
        x["g"] = logsigmoid(normal(1, T, HV, *channels, dtype=torch.float32)) * layout.gate_scale
    if operator == "gdn2":
        x["b"] = normal(1, T, HV, K).sigmoid_()
        x["w"] = normal(1, T, HV, V).sigmoid_()
    else:
        x["beta"] = normal(1, T, HV).sigmoid_()
    return x, (normal(1, T, HV, V), normal(layout.sequences, HV, K, V, dtype=torch.float32))


def far(
    operator: str,
    K: int,
    V: int,
    C: int,
    heads: int,
    lengths: tuple[int, ...],
    device: str = "cuda",
) -> list[str]:
    """What is wrong with the first and the last two sequences of a pack, beside the three alone:
    they must agree to the bit. And these beside the eager graph in float64.
    """
    dtype = torch.bfloat16
    offsets = tuple(accumulate(lengths, initial=0))
    layout = Layout(heads, heads, offsets[-1], offsets, C, 0.1)
    x, adjoints = far_arguments(operator, dtype, K, V, layout, device)

    chosen = sorted({0, len(lengths) - 2, len(lengths) - 1})
    tokens = torch.cat([torch.arange(offsets[n], offsets[n + 1]) for n in chosen]).to(device)
    offsets = tuple(accumulate((lengths[n] for n in chosen), initial=0))
    alone = layout._replace(tokens=offsets[-1], offsets=offsets)

    def part(name: str, y: Tensor) -> Tensor:
        return y[chosen] if name in ("initial_state", "ht", "dinitial_state") else y[:, tokens]

    x_alone = {name: part(name, y) for name, y in x.items()}
    adjoints_alone = part("o", adjoints[0]), part("ht", adjoints[1])
    with filled():  # what is left unwritten is NaN
        found = results(operator, x, layout, adjoints, backend="triton")
    told = [f"{name}: not finite" for name, y in found.items() if not y.isfinite().all()]
    found = {name: part(name, y) for name, y in found.items()}
    del x, adjoints

    right = results(operator, x_alone, alone, adjoints_alone, backend="triton")
    truth = results(
        operator,
        {name: y.double() for name, y in x_alone.items()},
        alone,
        tuple(y.double() for y in adjoints_alone),
        backend="eager",
    )
    for name, y in right.items():
        if not same_bits(found[name], y):
            told.append(f"{name}: other bits than alone")
        error = float((y.double() - truth[name]).norm() / truth[name].norm())
        if not error <= LIMITS["bfloat16"]:
            told.append(f"{name}: relative error {error:.2e} alone")
    return told


def one_token(x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """o and ht of sequences of one token: ``S' = exp(g) S_0``, ``r = w v - (b k)^T S'``, ``S = S' +
    k r^T``, ``o = scale S^T q``.
    """
    groups = x["v"].shape[2] // x["q"].shape[2]
    q, k = (x[name][0].repeat_interleave(groups, 1) for name in "qk")  # [N, HV, K]
    b = x["b"][0] if "b" in x else x["beta"][0, ..., None]
    w = x["w"][0] if "w" in x else b
    S = x["initial_state"]
    if "g" in x:
        S = x["g"][0].exp().reshape(*S.shape[:2], -1, 1) * S
    r = w * x["v"][0] - torch.einsum("nhk,nhkv->nhv", b * k, S)
    S = S + k[..., None] * r[..., None, :]
    return q.shape[-1] ** -0.5 * torch.einsum("nhk,nhkv->nhv", q, S)[None], S


def many(operator: str, dtype: str, sequences: int, device: str = "cuda") -> list[str]:
    """What is wrong with as many sequences of one token, each beside its closed form."""
    layout = Layout(1, 2, sequences, tuple(range(sequences + 1)), 64, 1.0)
    x, adjoints = far_arguments(operator, getattr(torch, dtype), 32, 17, layout, device)
    with filled():
        found = results(operator, x, layout, adjoints, backend="triton")
    leaves = {name: y.double().requires_grad_() for name, y in x.items()}
    truth = one_token(leaves)
    gradients = torch.autograd.grad(truth, list(leaves.values()), [y.double() for y in adjoints])
    told = []
    for name, right in zip(found, (*truth, *gradients), strict=True):
        right = right.detach().reshape(sequences, -1)
        error = (found[name].double().reshape(sequences, -1) - right).norm(dim=1)
        size = right.norm(dim=1).square().mean().sqrt()
        overall = float(error.square().mean().sqrt() / size)
        # A sequence that went astray would be lost among so many.
        worst, where = (error / size).max(0)
        if not overall <= LIMITS[dtype]:
            told.append(f"{name}: relative error {overall:.2e}")
        if not worst <= 4 * LIMITS[dtype]:
            told.append(f"{name}: relative error {float(worst):.2e} of sequence {int(where)}")
    return told


def lack(needs: float) -> str | None:
    """Why so many GiB do not fit, if they do not."""
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0] / 2**30
    needs *= 1.1  # what the allocator loses, and the comparison
    return f"needs {needs:.0f} GiB on the GPU, {free:.0f} are free" if free < needs else None


def main(what: str, operator: str, *options: str) -> list[str] | str:
    """What a command line asks for."""
    if what == "many":
        dtype, *cpu = options
        small = partial(many, operator, dtype, 3)
        large, needs = partial(many, operator, dtype, SEQUENCES), NEEDS["many"]
    else:
        K, V, C, *cpu = options
        sizes = operator, int(K), int(V), int(C)
        small = partial(far, *sizes, *(SMALL if cpu else (HEADS, FEW)))
        large, needs = partial(far, *sizes, HEADS, LENGTHS), NEEDS[f"far {operator}"]
    if cpu:
        import tests.triton.interpreter  # noqa: F401  (before anything imports triton)

        return small(device="cpu")
    if told := small():
        return told
    with open(__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # not everyone at a time, or they do not fit
        return lack(needs) or large()


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
    os._exit(0)  # torch's threads sometimes abort at an ordinary exit
