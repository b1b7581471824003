"""Compiling beforehand, in parallel: fla has hundreds of candidates, which it compiles one by one,
and FlashQLA takes two minutes for a shape.

Only the caches of compiled binaries are filled. Nothing is timed here, and what is chosen is
forgotten with the process: the measuring process tunes again, alone on the card, and finds every
binary there. The environment must say ``FLA_CACHE_RESULTS=0``, else fla would keep the choices.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from measuring.shapes import SHAPES, Shape, gates_of, make_inputs, small
from measuring.sides import Side, sides_of

SHARDS = 3  # processes that share the candidates of one operator and kind of shape


class Job(NamedTuple):
    """One process: an operator, whose (the first word of a side's name), some shapes, each
    ``shard``-th candidate of ``shards``.
    """

    operator: str
    whose: str
    shapes: tuple[str, ...]
    shard: int
    shards: int


def jobs(operators: list[str], shapes: list[Shape], ours_only: bool) -> list[Job]:
    """What can be compiled apart, longest first. In Triton, shapes go together where code depends
    on them alike.
    """
    kinds: dict[tuple, list[str]] = {}
    for shape in shapes:
        kinds.setdefault((shape.packed, shape.size, shape.HV), []).append(shape.name)
    found = []
    for operator in reversed(operators):
        for whose in sorted({_whose(side) for side in sides_of(operator, ours_only)}):
            parts = [(shape.name,) for shape in shapes]
            if whose != "flash-qla":
                parts = list(map(tuple, kinds.values()))
            shards = SHARDS if whose == "fla" else 1
            found += [
                Job(operator, whose, names, shard, shards)
                for names in parts
                for shard in range(shards)
            ]
    return sorted(found, key=lambda job: ("flash-qla", "fla", "rewy").index(job.whose))


def _whose(side: Side) -> str:
    return side.name.split()[0]


def compile_share(shard: int, shards: int) -> None:
    """Have Triton's autotuner compile its share of the candidates, each launched once."""
    from triton.runtime.autotuner import Autotuner

    bench = Autotuner._bench

    def share(self: Autotuner, *args: Any, config: Any, **meta: Any) -> list[float]:
        if self.configs.index(config) % shards == shard:
            return bench(self, *args, config=config, **meta)
        return 3 * [1e9]  # chosen before one that cannot be compiled, after one that was

    def launch(call: Any, quantiles: tuple[float, ...]) -> list[float]:
        call()
        return [1.0 for _ in quantiles]

    Autotuner._bench = share
    Autotuner.do_bench = staticmethod(launch)


def work(job: Job, policies: list[str], dtype: str) -> list[str]:
    """Run everything once on few tokens; FlashQLA, whose kernels depend on how many there are, on
    as many as are checked and as are timed. Returns what was refused.
    """
    import torch

    if job.whose == "fla":
        compile_share(job.shard, job.shards)
    refused = []
    for side in sides_of(job.operator, job.whose == "rewy"):
        if _whose(side) != job.whose:
            continue
        for name, policy in itertools.product(job.shapes, policies):
            shape = SHAPES[name]
            if side.refuses(job.operator, shape, policy):
                continue
            few = (150, 1, 64, 35) if shape.packed else shape.B * (256,)
            both = small(shape).lengths, shape.lengths
            try:
                for lengths in both if job.whose == "flash-qla" else [few]:
                    x = make_inputs(job.operator, shape._replace(lengths=lengths),
                                    gates_of(job.operator)[0], dtype=dtype)  # fmt: skip
                    x = x.under(policy)
                    side.backward(job.operator, x, side.forward(job.operator, x)[1])
            except Exception as error:  # it will be refused when it is measured, too
                refused.append(f"{side.name}, {name}, {policy}: {error}")
            torch.cuda.synchronize()
    return refused
