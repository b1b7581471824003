"""Chunks and states are laid out in one way, whatever way they arrive in."""

import importlib
from types import SimpleNamespace

import pytest
import torch

tiling = importlib.import_module("rewy.backends.eager.tiling")


@pytest.mark.parametrize("starts", [(0, 40, 60), (0, 20, 60)], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("K", [32, 1])
def test_sorted_states_have_one_layout(starts, K):
    """Strides of an axis of size 1 count, too: some CPUs then round products otherwise, and the
    policies differed by a bit on those.
    """
    spec = SimpleNamespace(sequence_starts=starts, chunk_size=16, HV=3)
    arriving = torch.randn(2, 3, 1, K).mT  # states V first, as the graph gets them
    found = tiling.Tiling(spec, torch.device("cpu")).sort(arriving)
    order = [0, 1] if starts == (0, 40, 60) else [1, 0]
    assert torch.equal(found, arriving[order])
    assert found.stride() == torch.empty(2, 3, K, 1).stride()
    assert found.data_ptr() != arriving.data_ptr()
