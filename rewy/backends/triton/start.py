"""Starting a kernel.

Triton works out on every launch which of a kernel's compiled forms the arguments ask for, 0.1 to
0.2 ms for kernels with fifty arguments, longer than most of ours run. Here the compiled form is
remembered by what it depends on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from rewy.backends.triton.configs import Config

_compiled: dict[tuple, Any] = {}
# How a compiled kernel is called is Triton's own affair; other versions are asked every time.
_KNOWN = triton.__version__.startswith("3.6.")


def start(
    kernel: Any,
    programs: int,
    config: Config,
    arguments: Sequence[Any],
    constants: Mapping[str, Any],
    known: Collection[str] = (),
) -> None:
    """Launch ``programs`` programs of a kernel on the current device; none is fine, too.

    ``arguments`` come first in the kernel's signature, in order, then ``constants``, in any order.
    Numbers among the arguments must be declared ``do_not_specialize``; among the constants may be
    sizes that are none to Triton, unless ``known`` names them: then they are compiled in.
    """
    if not programs:
        return
    device = next((x.device.index for x in arguments if isinstance(x, Tensor)), None)
    key = (device, kernel.fn, config, known, *constants.values(), *map(_form, arguments))
    compiled = _compiled.get(key)
    if compiled is None or not _KNOWN or _hooks():
        given = {n: tl.constexpr(x) if n in known else x for n, x in constants.items()}
        _compiled[key] = kernel[(programs,)](
            *arguments, num_warps=config.warps, num_stages=config.stages, **given
        )
        return  # None under the interpreter, which is always asked again
    in_order = [constants[name] for name in kernel.arg_names[len(arguments) :]]
    stream = torch.cuda.current_stream(device).cuda_stream
    compiled.run(
        programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
        *arguments, *in_order,
    )  # fmt: skip


def compiled() -> list[Any]:
    """The compiled kernels that this process has launched."""
    return [kernel for kernel in _compiled.values() if kernel is not None]


def _hooks() -> bool:
    """Whether a profiler wants to hear of every launch."""
    hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return any(getattr(hook, "calls", hook) for hook in hooks)


def _form(x: Any) -> Any:
    """What of an argument the compiled form depends on."""
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    return float if isinstance(x, float) else x.bit_length() > 31
