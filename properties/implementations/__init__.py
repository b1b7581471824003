"""The things under test. A name picks one of these, ``module:attribute`` anybody's."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection

from properties.case import CHOICES, RANGES
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
        found = found() if isinstance(found, type) else found
    except Exception as error:
        raise ValueError(f"implementation: {name!r} cannot be made: {error}") from error
    _check(name, found)
    return found


def _check(name: str, found: object) -> None:
    """Raise ValueError if an adapter lacks a method, or claims what no case has."""
    for method in ("decodes", "refuses", "precision", "run", "versions", "with_other_policy"):
        if not callable(getattr(found, method, None)):
            raise ValueError(f"implementation: {name!r} has no method {method}")
    types, chunks = CHOICES["dtype"], CHOICES["chunk_size"]
    known = {"dtypes": types, "chunk_sizes": chunks, "head_sizes": range(*RANGES["head_size"])}
    for what, values in known.items():
        kept = getattr(found, what, None)
        plain = isinstance(kept, Collection) and not isinstance(kept, str)
        # More sizes than are ever drawn are no mistake; a type of another name is one.
        right = plain and (any if what != "dtypes" else all)(x in values for x in kept)
        if kept is not None and not (right and kept):
            raise ValueError(
                f"implementation: {name!r} has {what} = {kept!r}, wanted some of {values} or None"
            )


__all__ = ["BUILT_IN", "DEFAULT", "Implementation", "TorchOperators", "default", "find"]
