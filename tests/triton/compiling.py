"""Compile what a problem would launch, for a GPU that need not be there."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rewy.backends.triton import activation, gates, graph, norm, run
from rewy.backends.triton.configs import Config
from rewy.problem import Problem, Spec, Tensors

TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
}


class Launch(NamedTuple):
    """One launch as recorded: the kernel, its arguments in order, its configuration."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    config: Config
    known: tuple[str, ...]


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Record launches, and start none."""
    found: list[Launch] = []
    launch_before = run.start

    def record(kernel, programs, config, arguments, constants, known=()):
        found.append(Launch(kernel, tuple(arguments), dict(constants), config, known))

    run.start = activation.start = gates.start = norm.start = record
    try:
        yield found
    finally:
        run.start = activation.start = gates.start = norm.start = launch_before


def launches(problem: Problem) -> list[Launch]:
    """Everything that forward, backward and decoding of a problem launch, with the loss through o
    and through the final states.
    """
    with recorded() as found:
        o, ht, saved = graph.forward(problem)
        graph.backward(problem, saved, torch.zeros_like(o), None)
        graph.backward(problem, saved, None, ht)
        graph.decode(problem)
    return found


def signature_of(launched: Launch) -> tuple[dict, dict, dict]:
    """What Triton compiles a launch for: the type of each argument, constants, alignments."""
    kernel = launched.kernel
    values = dict(zip(kernel.arg_names, launched.arguments, strict=False)) | launched.constants
    fixed = {p.name for p in kernel.params if p.is_constexpr} | set(launched.known)
    signature, constants, attributes = {}, {}, {}
    for n, name in enumerate(kernel.arg_names):
        value = values[name]
        if name in fixed:
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[name] = TYPES[value.dtype]
            attributes[(n,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1 and not kernel.params[n].do_not_specialize:
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32"
            if value % 16 == 0 and not kernel.params[n].do_not_specialize:
                attributes[(n,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def form(launched: Launch) -> tuple:
    """Equal for two launches that one compiled kernel serves."""
    parts = (tuple(map(str, sorted(part.items(), key=str))) for part in signature_of(launched))
    return launched.kernel.__name__, launched.config, *parts


def compile_for(launched: Launch, capability: int) -> Any:
    """The compiled kernel for ``sm_<capability>``."""
    source = ASTSource(launched.kernel, *signature_of(launched))
    options = {"num_warps": launched.config.warps, "num_stages": launched.config.stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


class Usage(NamedTuple):
    """What a compiled kernel takes: registers a thread, bytes of shared memory a program, bytes of
    stack a thread (spilled registers and nothing else here).
    """

    registers: int
    shared: int
    stack: int


def usage(compiled: Any) -> Usage:
    """Read from the machine code, by the cuobjdump that comes with Triton."""
    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = (int(re.search(rf"{key}:(\d+)", text).group(1)) for key in ("REG", "STACK"))
    return Usage(registers, compiled.metadata.shared, stack)


def problem(
    operator: str,
    dtype: torch.dtype,
    K: int,
    V: int,
    C: int,
    packed: bool = False,
    groups: int = 2,
    **changes: Any,
) -> Problem:
    """One whose values do not matter, on the CPU: two heads, groups, states, a remainder."""
    B, T, H, HV = 1, 2 * C + 3, 2, 2 * groups
    channels = {"gated_delta_rule": 1, "kda": K, "gdn2": K}.get(operator)
    wide = operator == "gdn2"
    zeros = torch.zeros
    spec = Spec(
        B, T, H, HV, K, V, (0, T - 1, T) if packed else (0, T), 1.0, C, "recompute",
        output_final_state=True, state_v_first=False, l2norm=False, gate_activation=False,
        lower_bound=None, beta_activation=False, neg_eigval=False, compute_dtype=torch.float32,
    )  # fmt: skip
    spec = replace(spec, **changes)
    tensors = Tensors(
        q=zeros(B, T, H, K, dtype=dtype),
        k=zeros(B, T, H, K, dtype=dtype),
        v=zeros(B, T, HV, V, dtype=dtype),
        g=None if channels is None else zeros(B, T, HV, channels),
        b=zeros(B, T, HV, K if wide else 1),
        w=zeros(B, T, HV, V) if wide else None,
        h0=zeros(spec.N, HV, *((V, K) if spec.state_v_first else (K, V))),
        A_log=zeros(HV) if spec.gate_activation else None,
        dt_bias=zeros(HV * channels) if spec.gate_activation else None,
    )
    return Problem(spec, tensors)
