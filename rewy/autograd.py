"""One autograd function for all four operators, chunkwise and token by token."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from rewy.backends import Backend
from rewy.problem import Problem, Spec, Tensors


class DeltaRule(torch.autograd.Function):
    """``(o, ht) = operator(tensors)``.

    What is kept follows the policy: 'recompute' keeps A and little else beside the inputs, 'save'
    also what spares the backward its recomputation. Saved tensors go through ``save_for_backward``,
    so the graph can be used again with ``retain_graph=True`` and in-place changes are noticed.
    Autocast is off inside: types are those of the arguments. A second derivative is an error.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        backend: Backend,
        spec: Spec,
        token_by_token: bool,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        problem = Problem(spec, Tensors(*tensors))
        run = backend.decode if token_by_token else backend.forward
        with torch.autocast(problem.tensors.q.device.type, enabled=False):
            o, ht, kept = run(problem)
        ctx.save_for_backward(*tensors, *kept)
        ctx.backend, ctx.spec = backend, spec
        return o, ht

    @staticmethod
    def backward(ctx: FunctionCtx, do: Tensor | None, dht: Tensor | None = None) -> tuple:
        saved = ctx.saved_tensors  # read once: checkpointing lets nobody unpack a tensor twice
        if do is None and dht is None:
            return (None,) * (3 + len(Tensors._fields))
        return None, None, None, *Gradients.apply(ctx.backend, ctx.spec, do, dht, *saved)


class Gradients(torch.autograd.Function):
    """The backward, as a node of its own whose derivative is an error.

    ``once_differentiable`` would cut the gradients off the graph instead: ``torch.autograd.grad``
    of a loss with a penalty on the gradient then drops the penalty without a word.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        backend: Backend,
        spec: Spec,
        do: Tensor | None,
        dht: Tensor | None,
        *saved: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        n = len(Tensors._fields)
        problem = Problem(spec, Tensors(*saved[:n]))
        with torch.autocast(problem.tensors.q.device.type, enabled=False):
            return tuple(backend.backward(problem, saved[n:], do, dht))

    @staticmethod
    def backward(ctx: FunctionCtx, *d: Tensor | None) -> tuple:
        raise RuntimeError("the operators of rewy have no second derivative")
