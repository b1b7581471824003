"""The things under test. A name picks one of these, ``module:attribute`` anybody's."""

from __future__ import annotations

import importlib
import os
import sys

from properties.implementations import ours, theirs
from properties.implementations.base import Implementation, TorchOperators

DEFAULT = ("eager", "eager-save", "naive")
# Where a device has kernels of its own.
ON = {"cuda": ("triton", "triton-save", "eager", "eager-save")}
BUILT_IN: dict[str, Implementation] = {
    implementation.name: implementation
    for implementation in (*ours.eager(), *ours.kernels(), theirs.FlashLinearAttention())
}


def default(device: str) -> tuple[str, ...]:
    """What is tested on a device where nobody says what."""
    return ON.get(device.partition(":")[0], DEFAULT)


def find(name: str) -> Implementation:
    """The implementation of that name, or the adapter at ``module:attribute`` (called if it is a
    class).

    Raises:
        ValueError: there is none.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(
            f"implementation: got {name!r}, wanted one of {', '.join(BUILT_IN)} or module:attribute"
        )
    if os.getcwd() not in sys.path:  # plain pytest does not look where it was started
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"implementation: cannot load {name!r}: {error}") from error
    try:
        return found() if isinstance(found, type) else found
    except Exception as error:
        raise ValueError(f"implementation: {name!r} cannot be made: {error}") from error


__all__ = ["BUILT_IN", "DEFAULT", "Implementation", "TorchOperators", "default", "find"]
