"""A private copy of rewy under another name, with a fault in it; nothing is written to disk."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType

import rewy
from properties.implementations import ours
from tests.faults.fault import Fault

ROOT = Path(rewy.__file__).parent
_IMPORT = re.compile(r"^(\s*(?:from|import) )rewy\b", re.MULTILINE)
_numbers = count(1)


class _Copies(MetaPathFinder, InspectLoader):
    """Finds and loads modules from source text in memory."""

    def __init__(self) -> None:
        self._sources: dict[str, tuple[str, bool]] = {}

    def add(self, name: str, source: str, is_package: bool) -> None:
        self._sources[name] = source, is_package

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name in self._sources else None

    def is_package(self, name: str) -> bool:
        return self._sources[name][1]

    def get_source(self, name: str) -> str:
        return self._sources[name][0]

    def get_code(self, name: str) -> CodeType:
        return self.source_to_code(self.get_source(name), f"<{name}>")


_copies = _Copies()


def source(fault: Fault) -> str:
    """The text of the file that the fault goes into."""
    return (ROOT / fault.file).read_text()


def load(fault: Fault | None = None) -> ModuleType:
    """Import a new copy of rewy, with the fault in it or as it is.

    Raises:
        ValueError: the fault does not have exactly one place in its file.
    """
    label = "unmutated" if fault is None else fault.name.replace("-", "_")
    package = f"rewy_{label}_{next(_numbers)}"
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT)
        text = path.read_text()
        if fault is not None and file.as_posix() == fault.file:
            text = fault.applied(text)
        parts = [package, *file.with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        _copies.add(name, _IMPORT.sub(rf"\g<1>{package}", text), is_package)
    if _copies not in sys.meta_path:
        sys.meta_path.append(_copies)
    return importlib.import_module(package)


def implementation(fault: Fault | None = None) -> ours.Ours:
    """The adapter that runs the fault's code, of a new copy; of an unmutated one the eager one."""
    wanted = "eager" if fault is None else fault.implementation
    return next(x for x in ours.eager(load(fault)) if x.name == wanted)
