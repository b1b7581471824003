"""What tuning found best on a card, remembered on disk.

``benchmarks/tune.py --remember`` writes it and every later process reads it. One JSON file a card,
version of Triton and state of the kernels, since all change what is right and what is fast, in
``$REWY_CACHE_DIR``, else ``rewy`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
import triton

from rewy.backends.triton.configs import Config

KERNELS = 4  # counted up where what was tuned before no longer holds

# The state passes choose their tiles by how many sequences and heads there are to share out.
NEVER = ("passes",)


def name_of(kernel: str, gate: int, erase_by_channel: bool, KP: int, VP: int) -> str:
    """What a configuration is remembered under: all that it depends on where sizes are compiled in
    (bfloat16, chunks of 64).
    """
    kind = ("no gate", "a gate a head", "a gate a channel")[gate]
    return f"{kernel}, {kind}{', erased by channel' * erase_by_channel}, K {KP}, V {VP}"


def path(card: str) -> Path:
    """Where a card's configurations are."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("REWY_CACHE_DIR") or Path(home, "rewy"))
    name = f"{card} triton {triton.__version__} kernels {KERNELS}"
    return folder / f"{re.sub('[^A-Za-z0-9.]+', '-', name)}.json"


def remember(card: str, found: Mapping[str, Config]) -> Path:
    """Add configurations to a card's, over those of the same name; where they are now."""
    file = path(card)
    configs = {**_read(file), **found}
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as written:
        json.dump(
            {name: list(config) for name, config in sorted(configs.items())}, written, indent=1
        )
    os.replace(written.name, file)  # nobody ever reads half of it
    _of_card.cache_clear()
    return file


def recall(device: torch.device, name: str) -> Config | None:
    """The configuration of that name for the card, if one is remembered."""
    if device.type != "cuda":
        return None
    return _of_card(torch.cuda.get_device_name(device)).get(name)


@lru_cache
def _of_card(card: str) -> dict[str, Config]:
    return _read(path(card))


def _read(file: Path) -> dict[str, Config]:
    """A file's configurations; none, aloud, where it cannot be understood."""
    try:
        found = json.loads(file.read_text())
        return {name: _checked(numbers) for name, numbers in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        warnings.warn(f"{file} is ignored: {error}", stacklevel=2)
        return {}


def _checked(numbers: list[int]) -> Config:
    """A configuration: tiles of a power of two or 0, some warps, two stages or more."""
    config = Config(*numbers)
    tiles = all(isinstance(x, int) and x >= 0 and x & (x - 1) == 0 for x in config[:3])
    if not (tiles and config.warps >= 1 and isinstance(config.stages, int) and config.stages > 1):
        raise ValueError(f"{numbers} is no configuration")
    return config
