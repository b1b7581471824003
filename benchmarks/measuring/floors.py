"""The least that a card takes: bytes once at its copy bandwidth, or the products at its rate.

Counted are the tensors that a caller sees and those that a policy keeps, each read or written once,
and the matrix products of the compute graph as whole tiles, without the solve and without what
channel gates add. The larger of the two times binds.
"""

from __future__ import annotations

from typing import NamedTuple

from measuring.shapes import CHANNEL, Shape

C = 64  # rows a chunk
DIRECTIONS = ("forward", "backward")


class Ceilings(NamedTuple):
    """What the card was measured to do."""

    bytes_per_second: float
    flops: float  # of a bfloat16 matrix product


class Floor(NamedTuple):
    """``binding``: 'bytes' or 'products', whichever takes longer."""

    seconds: float
    binding: str
    bytes: int
    flops: int


def kept_bytes(operator: str, shape: Shape, policy: str) -> int:
    """A and with a channel gate P; under 'save' U and S, too, all in bfloat16. Gate sums, which a
    backward can read in the gates' place, are left out.
    """
    size = shape.size
    one = 2 * C * C if operator in CHANNEL else C * C
    if policy == "save":
        one += C * size + size * size
    return 2 * shape.chunks * shape.HV * one


def moved_bytes(operator: str, shape: Shape, policy: str, direction: str) -> int:
    """Of a forward or backward that touches everything once."""
    tokens, HV, size = shape.tokens, shape.HV, shape.size
    inputs = 2 * tokens * (2 * shape.H * size + HV * size)  # q, k; v
    if operator != "delta_rule":
        inputs += 4 * tokens * HV * (size if operator in CHANNEL else 1)  # g is float32
    inputs += 2 * tokens * HV * (2 * size if operator == "gdn2" else 1)  # b and w, or beta
    outputs = 2 * tokens * HV * size
    kept = kept_bytes(operator, shape, policy)
    if direction == "forward":
        return inputs + outputs + kept
    return 2 * inputs + outputs + kept  # gradients are as large as the inputs


def product_flops(operator: str, shape: Shape, policy: str, direction: str) -> int:
    """Two for each multiplication and addition."""
    K = V = shape.size
    if direction == "forward":
        # P, L, W_hat; U_hat, P U; the state pass's two and Q S
        macs = 3 * C * C * K + 2 * C * C * V + 3 * C * K * V
    else:
        # K_hat, dP K, dP' Q, dL K, dL' K_b; P' dO, A' of it, dP, dL; the reverse pass's three,
        # dO S', U dS', Y S'
        macs = 5 * C * C * K + 4 * C * C * V + 6 * C * K * V
        if operator not in CHANNEL:  # P
            macs += C * C * K
        if policy == "recompute":  # W_hat; U_hat; the state pass
            macs += C * C * (K + V) + 2 * C * K * V
    return 2 * shape.chunks * shape.HV * macs


def floor(operator: str, shape: Shape, policy: str, direction: str, ceilings: Ceilings) -> Floor:
    """The floor of one direction."""
    moved = moved_bytes(operator, shape, policy, direction)
    flops = product_flops(operator, shape, policy, direction)
    by_bytes, by_flops = moved / ceilings.bytes_per_second, flops / ceilings.flops
    binding = "bytes" if by_bytes >= by_flops else "products"
    return Floor(max(by_bytes, by_flops), binding, moved, flops)
