"""Chunks go through the eager graph slab by slab; how many at a time changes nothing."""

import sys

import pytest
import torch
from leaves import OPERATORS, call, make_inputs

slabs = sys.modules["rewy.backends.eager.slabs"]  # rewy.backends.eager is the backend, too
PACK = torch.tensor([0, 0, 1, 40, 41, 41, 110])


def results(operator, backend, policy, packed, slab, monkeypatch):
    monkeypatch.setattr(slabs, "SLAB", slab)
    x = make_inputs(operator, 110, B=1 if packed else 3, N=6 if packed else None)
    options = {"cu_seqlens": PACK} if packed else {}
    options |= {"backend": backend, "disable_recompute": policy == "save", "chunk_size": 16}
    o, ht = call(operator, "chunk", x, **options)
    generator = torch.Generator().manual_seed(5)
    seeds = [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in (o, ht)]
    # The outputs' adjoint in another layout than theirs, as a projection behind them may leave it.
    seeds[0] = seeds[0].transpose(1, 2).contiguous().transpose(1, 2)
    return [o, ht, *torch.autograd.grad((o, ht), list(x.values()), seeds)]


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "pack"])
@pytest.mark.parametrize("policy", ["recompute", "save"])
@pytest.mark.parametrize("backend", ["eager", "naive"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_slabs_change_nothing(operator, backend, policy, packed, monkeypatch):
    given = operator, backend, policy, packed
    whole = results(*given, 1 << 19, monkeypatch)
    for slab in (1, 300, 2000):
        for found, expected in zip(results(*given, slab, monkeypatch), whole, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_what_lies_in_another_layout_is_copied_once_each_way(monkeypatch):
    monkeypatch.setattr(slabs, "SLAB", 1)  # eight slabs

    def other(x):
        return x.detach().transpose(1, 2).contiguous().transpose(1, 2)

    x = make_inputs("delta_rule", 128, B=2)
    x["v"] = other(x["v"]).requires_grad_()
    do = other(torch.randn_like(x["v"]))
    with torch.profiler.profile(record_shapes=True) as profile:
        o, _ = call("delta_rule", "chunk", x, chunk_size=16, output_final_state=False)
        torch.autograd.grad(o, x["v"], do)
    whole = list(do.shape)
    copies = [e for e in profile.events() if e.name == "aten::copy_" and e.input_shapes[0] == whole]
    assert len(copies) == 3  # v forward, v and do backward
