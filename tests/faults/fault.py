"""What a planted fault is: one exact replacement in one file of rewy."""

from __future__ import annotations

from dataclasses import dataclass

from properties.case import OPERATORS

GATED = ("gated_delta_rule", "kda", "gdn2")
PER_CHANNEL = ("kda", "gdn2")


@dataclass(frozen=True)
class Fault:
    """A slip that somebody could make.

    name: lower-case words with hyphens, unique. kind: the family of faults that it stands for.
    file: relative to rewy/. old, new: source text; ``old`` must occur there exactly once.
    operators: those it is hunted in, in this order; few where the catch takes many laws.
    implementation: the adapter that runs it: eager, eager-save or naive.
    """

    name: str
    kind: str
    file: str
    old: str
    new: str
    operators: tuple[str, ...] = OPERATORS
    implementation: str = "eager"

    def applied(self, source: str) -> str:
        """The source with the fault in it. Raises ValueError unless it has one place for it."""
        places = source.count(self.old)
        if places != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: {places} places in {self.file}, wanted one to change")
        return source.replace(self.old, self.new)
