"""Every planted fault."""

from __future__ import annotations

from tests.faults import backward, calls, door, forward, gates

FAULTS = (*forward.FAULTS, *gates.FAULTS, *backward.FAULTS, *door.FAULTS, *calls.FAULTS)
