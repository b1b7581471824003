"""Arrays to torch tensors: a case's memory layouts, with NaN wherever nobody should look."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from properties.case import EXPANDED, Case

GUARD = 64  # elements of NaN on either side, more than any vector load reaches


def _guarded(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """An uninitialised-looking tensor of NaN in the middle of a longer run of NaN."""
    numel = int(np.prod(shape, dtype=np.int64))
    flat = torch.full((numel + 2 * GUARD,), float("nan"), dtype=dtype, device=device)
    return flat[GUARD : GUARD + numel].view(shape)


def place(array: np.ndarray, name: str, dtype: str, case: Case, device: str) -> Tensor:
    """One argument in the case's layout.

    Args:
        array: float64 values that ``dtype`` holds exactly.
        name: the argument's; ``v`` and ``do`` repeat along their last axis under "expanded".
            Arguments of one axis or two are contiguous or strided.
        dtype: torch's name of the type.
    """
    values = torch.from_numpy(np.array(array)).to(getattr(torch, dtype))
    layout = case.layout_of(name)
    if values.dim() < 3 and layout != "contiguous":
        layout = "strided"
    shape, kind = tuple(values.shape), values.dtype
    if layout == "strided":  # every other element of the last axis
        out = _guarded((*shape[:-1], 2 * shape[-1]), kind, device)[..., ::2]
    elif layout == "sliced":  # as if q, k, v were cut from one projection, and heads from more
        wide = (*shape[:-2], shape[-2] + 1, shape[-1] + 3)
        out = _guarded(wide, kind, device)[..., : shape[-2], 2 : 2 + shape[-1]]
    elif layout == "permuted":  # heads before tokens, or V before K
        out = _guarded((shape[0], shape[2], shape[1], *shape[3:]), kind, device).transpose(1, 2)
    elif layout == "expanded" and name in EXPANDED:
        out = _guarded((*shape[:-1], 1), kind, device)
        return out.copy_(values[..., :1]).expand(shape)
    else:
        out = _guarded(shape, kind, device)
    return out.copy_(values)


def to_array(tensor: Tensor) -> np.ndarray:
    """A result as float64, wherever it lies; a copy, since its memory may be written again."""
    return tensor.detach().to("cpu", torch.float64, copy=True).contiguous().numpy()
