"""Installs the host-backed device of npu.cpp as torch's ``npu``: npu:0 and npu:1, in this process
for good.
"""

from __future__ import annotations

import os
import shutil
import types
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("npu.cpp")


def missing() -> str | None:
    """What the build needs and this machine lacks, None where nothing is."""
    tools = (os.environ.get("CXX", "c++"), "ninja")  # those that torch.utils.cpp_extension runs
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    return f"no {' and no '.join(lacking)} to build the device with" if lacking else None


def install(build: Path) -> types.ModuleType:
    """Build in the directory ``build``, register, and return ``torch.npu``.

    Beside what torch asks of a device module it has ``allocations(index)``, how many blocks of
    memory a device has handed out.
    """
    from torch.utils.cpp_extension import load

    torch.utils.rename_privateuse1_backend("npu")
    # Unoptimised, without warnings of torch's headers: building takes most of the time.
    native = load("host_npu", [str(SOURCE)], extra_cflags=["-O0", "-w"], build_directory=str(build))
    module = types.ModuleType("torch.npu")

    class device:
        """Context manager that selects a device, as ``torch.cuda.device``."""

        def __init__(self, which: torch.device | int):
            self.index = which if isinstance(which, int) else which.index or 0

        def __enter__(self) -> None:
            self.previous = native.current_device()
            native.set_device(self.index)

        def __exit__(self, *error: object) -> None:
            native.set_device(self.previous)

    module.device = device
    module.allocations = native.allocations
    module.current_device = native.current_device
    module.set_device = lambda which: native.set_device(torch.device("npu", which).index)
    module.device_count = lambda: 2
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = module.synchronize = lambda *_: None
    module.manual_seed_all = lambda _: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    torch._register_device_module("npu", module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return module
