"""Times on the card, the card's ceilings, and peak memory.

A measured call is queued behind a kernel that spins for longer than the host needs to queue it, so
that its launches follow one another without gaps: the time is the card's alone, and no side is
charged for its Python. What the host needs is reported beside it. The L2 cache is flushed before
each call, and the calls of all sides take turns, so that a change of the clock meets all alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from measuring.floors import Ceilings

FLUSHED = 2**28  # bytes, several times any L2
CYCLES_PER_MS = 2_000_000  # at least, at the clocks of today's cards


class Card:
    """Room to flush the L2 cache with, kept between measurements."""

    def __init__(self):
        self.room = torch.empty(FLUSHED // 4, dtype=torch.int32, device="cuda")

    def times(self, calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, dict]:
        """Milliseconds of each call: median, 20 % and 80 % quantiles, and the host's median."""
        host = {name: _host_ms(call) for name, call in calls.items()}
        found: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(repeats):
            for name, call in calls.items():
                found[name].append(self._once(call, host[name]))
        return {name: {**spread(ms), "host": round(host[name], 4)} for name, ms in found.items()}

    def _once(self, call: Callable[[], object], host: float) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.room.zero_()
        torch.cuda._sleep(int((0.2 + 1.5 * host) * CYCLES_PER_MS))
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)


def _host_ms(call: Callable[[], object]) -> float:
    """How long the host is busy with a call, the card being idle before."""
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - started))
    torch.cuda.synchronize()
    return statistics.median(found)


def spread(milliseconds: list[float]) -> dict[str, float]:
    """Median, 20 % and 80 % quantiles."""
    low, _, _, high = statistics.quantiles(milliseconds, n=5, method="inclusive")
    middle = statistics.median(milliseconds)
    return {"median": round(middle, 5), "low": round(low, 5), "high": round(high, 5)}


def ceilings(card: Card) -> Ceilings:
    """Bytes read and written by a copy of 4 GB, and a large bfloat16 product of random numbers."""
    x = torch.randn(2**30, device="cuda")
    y = torch.empty_like(x)
    a, b = torch.randn(2, 8192, 8192, device="cuda").bfloat16()
    calls = {"copy": lambda: y.copy_(x), "product": lambda: a @ b}
    times = card.times(calls, 10)
    return Ceilings(
        bytes_per_second=2 * x.nbytes / (times["copy"]["median"] / 1e3),
        flops=2 * 8192**3 / (times["product"]["median"] / 1e3),
    )


def peak_mib(step: Callable[[], object]) -> float:
    """Most memory in use during a step beyond what was in use before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
