"""Bad input meets a clear error at the door, and nothing has changed."""

from __future__ import annotations

import numpy as np
import torch

from properties import session, truth
from properties.case import Case
from properties.implementations import Implementation, TorchOperators
from properties.implementations.base import arguments
from properties.law import NOTHING, law
from properties.refusals import SPOILERS
from properties.strategies import cases


@law(cases)
def test_bad_input_is_refused_by_name(case: Case, implementation: Implementation) -> object:
    """Each spoiler that fits, one at a time: a ValueError or TypeError that names the argument."""
    if not (isinstance(implementation, TorchOperators) and implementation.checks_arguments):
        return NOTHING
    inputs = truth.inputs_of(case)
    for spoiler in SPOILERS:
        if not spoiler.fits(case):
            continue
        tensors, options = arguments(case, inputs, session.device())
        kept = dict(tensors)
        before = {name: _bits(x) for name, x in kept.items()}
        spoiler.spoil(tensors, options)
        try:
            implementation.call(case, tensors, options, token_by_token=False)
        except (ValueError, TypeError) as error:
            message = str(error)
        else:
            raise AssertionError(f"{spoiler.name}: accepted")
        named = any(_names(name, message) for name in spoiler.names)
        assert named, f"{spoiler.name}: the error names none of {spoiler.names}: {message}"
        for name, x in kept.items():
            assert np.array_equal(before[name], _bits(x)), f"{spoiler.name}: {name} changed"


def _names(name: str, message: str) -> bool:
    words = message.replace(",", " ").replace(":", " ").replace("'", " ").replace("=", " ").split()
    return name in words or (" " in name and name in message)


def _bits(x: torch.Tensor) -> np.ndarray:
    flat = x.detach().clone(memory_format=torch.contiguous_format).cpu().reshape(-1)
    return flat.view(torch.uint8).numpy()
