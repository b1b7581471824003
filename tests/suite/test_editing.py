"""Where equal numbers are expected to have equal bits."""

from __future__ import annotations

import pytest
import torch

from properties import editing
from properties.case import Case

CASE = Case(operator="kda", lengths=(3,), head_size=16, value_size=16)
SIZES = frozenset({16, 32})


@pytest.fixture(autouse=True)
def forgotten():
    editing._products_are_alike.cache_clear()
    yield
    editing._products_are_alike.cache_clear()


def test_gates_and_logits_are_exponentials(monkeypatch):
    monkeypatch.setattr(editing, "_products_are_alike", lambda *_: True)
    assert editing.place_is_nothing(CASE)
    for changes in ({"gates": "constant"}, {"beta_sigmoid": True}):
        case = Case(operator="kda", lengths=(3,), head_size=16, value_size=16, **changes)
        assert not editing.place_is_nothing(case)
    monkeypatch.setattr(editing, "_products_are_alike", lambda *_: False)
    assert not editing.place_is_nothing(CASE)


@pytest.mark.parametrize("place", [1, 7])
def test_a_product_that_sums_by_place_is_noticed(monkeypatch, place):
    product = torch.Tensor.__matmul__

    def by_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = product(x, y)
        found[place, 0, 0] = found[place, 0, 0].nextafter(2 * found[place, 0, 0])
        return found

    assert editing._products_are_alike(torch.float32, SIZES)
    editing._products_are_alike.cache_clear()
    monkeypatch.setattr(torch.Tensor, "__matmul__", by_place)
    assert not editing._products_are_alike(torch.float32, SIZES)
