"""Compiling beforehand, in parallel: fla has hundreds of candidates, which it compiles one by one.

Only Triton's cache of compiled binaries is filled. Nothing is timed here, and what is chosen is
forgotten with the process: the measuring process tunes again, alone on the card, and finds every
binary there. The environment must say ``FLA_CACHE_RESULTS=0``, else fla would keep the choices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from measuring.shapes import SHAPES, Shape, gates_of, make_inputs
from measuring.sides import sides_of

SHARDS = 3  # processes that share the candidates of one operator and kind of shape


class Job(NamedTuple):
    """One process: an operator of ours or of the others, some shapes, each ``shard``-th candidate
    of ``shards``.
    """

    operator: str
    ours: bool
    shapes: tuple[str, ...]
    shard: int
    shards: int


def jobs(operators: list[str], shapes: list[Shape], ours_only: bool) -> list[Job]:
    """What can be compiled apart, longest first: shapes go together where code depends on them
    alike.
    """
    kinds: dict[tuple, list[str]] = {}
    for shape in shapes:
        kinds.setdefault((shape.packed, shape.size, shape.HV), []).append(shape.name)
    theirs = [
        Job(operator, False, tuple(names), shard, SHARDS)
        for operator in reversed(operators)
        for names in kinds.values()
        for shard in range(SHARDS)
    ]
    ours = [Job(operator, True, tuple(names), 0, 1) for operator in operators
            for names in kinds.values()]  # fmt: skip
    return ours if ours_only else theirs + ours


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


def work(job: Job, policies: list[str]) -> list[str]:
    """Run everything once on few tokens; returns what was refused."""
    import torch

    if not job.ours:
        compile_share(job.shard, job.shards)
    refused = []
    for side in sides_of(job.operator, job.ours):
        if (side.name == "rewy") != job.ours:
            continue
        if side.name == "flash-qla" and job.shard:  # it has no candidates to share
            continue
        for name in job.shapes:
            shape = SHAPES[name]
            lengths = (150, 1, 64, 35) if shape.packed else shape.B * (256,)
            x = make_inputs(job.operator, shape._replace(lengths=lengths),
                            gates_of(job.operator)[0])  # fmt: skip
            for policy in policies:
                if side.refuses(job.operator, shape, policy):
                    continue
                try:
                    y = x.under(policy)
                    side.backward(job.operator, y, side.forward(job.operator, y)[1])
                except Exception as error:  # it will be refused when it is measured, too
                    refused.append(f"{side.name}, {name}, {policy}: {error}")
                torch.cuda.synchronize()
    return refused
