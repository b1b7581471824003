"""rewy's own backends: the eager graph under both policies, and the naive backward."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import rewy
from properties.implementations.base import TorchOperators


class Ours(TorchOperators):
    """One backend and policy of rewy, or of a copy of it to plant faults in."""

    checks_arguments = True

    def __init__(self, name: str, backend: str, policy: str, module: ModuleType = rewy):
        super().__init__(name, module, backend=backend, disable_recompute=policy == "save")
        self.backend, self.policy = backend, policy

    def with_other_policy(self) -> Ours:
        other = "recompute" if self.policy == "save" else "save"
        return Ours(f"{self.backend} ({other})", self.backend, other, self.module)

    def shared_options(self) -> dict[str, Any]:
        return {"backend": self.backend}


def eager(module: ModuleType = rewy) -> list[Ours]:
    """The eager implementations; ``recompute`` first, the default policy."""
    return [
        Ours("eager", "eager", "recompute", module),
        Ours("eager-save", "eager", "save", module),
        Ours("naive", "naive", "recompute", module),
    ]
