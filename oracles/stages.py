"""The stages of the chunkwise form that naive and ReWY share, named as in docs/method.md.

A way differs in two places only: how it gets the residuals U, and its correction (dU -> Y, dL,
dK_b).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import decays
from .numbers import lower, transpose, zero
from .recurrence import Gradients


class Inputs(NamedTuple):
    """One sequence: q, k [..., T, K]; v [..., T, V]; S0 [..., K, V].

    gamma and b are [..., T, K or 1], w [..., T, V or 1]; gamma are factors exp(g).
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    gamma: np.ndarray
    b: np.ndarray
    w: np.ndarray
    S0: np.ndarray
    scale: object


@dataclass(frozen=True)
class Chunk:
    """What the forward leaves for the backward, C tokens.

    inputs: the chunk's tokens, with S0 the state as stored (the scan carries it unrounded).
    pairs: E_ij; start: exp(G); end: exp(G_C - G), both [..., C, 1 or K]; whole: exp(G_C), a column.
    bk: b * k; wv: w * v; K_b: bk * start; K_t: k * end; Q_g: q * start.
    A: (I + L)^-1, P: local scores, both [..., C, C]; U: residuals [..., C, V].
    """

    inputs: Inputs
    pairs: decays.HeadDecays | decays.ChannelDecays
    start: np.ndarray
    end: np.ndarray
    whole: np.ndarray
    bk: np.ndarray
    wv: np.ndarray
    K_b: np.ndarray
    K_t: np.ndarray
    Q_g: np.ndarray
    A: np.ndarray
    P: np.ndarray
    U: np.ndarray

    @property
    def S0(self):
        return self.inputs.S0


def invert(L):
    """A = (I + L)^-1 of a strictly lower triangular L [..., C, C], by forward substitution."""
    A = np.full(L.shape, np.asarray(zero(L)), dtype=L.dtype)
    for i in range(L.shape[-1]):
        A[..., i, i] = zero(L) + 1
        A[..., i, :i] = -(L[..., i : i + 1, :i] @ A[..., :i, :i])[..., 0, :]
    return A


def open_chunk(x: Inputs, arithmetic, way) -> Chunk:
    """Decays, local scores, solve and residuals of one chunk whose S0 is the state as stored."""
    start, end = decays.from_start(x.gamma, arithmetic), decays.to_end(x.gamma, arithmetic)
    pairs = decays.between(x.gamma, arithmetic)
    bk, wv = x.b * x.k, x.w * x.v
    K_b = bk * start
    queries, erases = pairs.scores([x.q, bk], x.k)
    L = lower(erases, -1)
    A = arithmetic.store(arithmetic.solve(L, invert(L)))
    P = lower(arithmetic.store(x.scale * queries))
    U = way.residuals(A, wv, K_b, x.S0, arithmetic)
    whole = transpose(start[..., -1:, :])
    return Chunk(x, pairs, start, end, whole, bk, wv, K_b, x.k * end, x.q * start, A, P, U)


def chunk_output(chunk: Chunk, arithmetic):
    """O = scale (Q * exp G) S0 + P U."""
    carried = arithmetic.product(chunk.Q_g, chunk.S0)
    local = arithmetic.product(chunk.P, chunk.U)
    return arithmetic.joined(chunk.inputs.scale * carried + local, chunk.U.shape[-2])


def next_state(chunk: Chunk, S, arithmetic):
    """S1 = Diag(exp G_C) S + K_t^T U for the carried state S."""
    written = arithmetic.product(transpose(chunk.K_t), chunk.U)
    return arithmetic.carry(chunk.whole * S + written, chunk.U.shape[-2])


def chunk_gradients(chunk: Chunk, do, dS, arithmetic, way) -> Gradients:
    """The chunk's adjoints from do [..., C, V] and dS [..., K, V], that of the state after it."""
    product, x = arithmetic.product, chunk.inputs
    rows = do.shape[-2]
    dS1 = arithmetic.store(dS)
    dU = product(transpose(chunk.P), do) + product(chunk.K_t, dS1)
    Y, dL, dK_b = way.correction(chunk, arithmetic.store(dU), arithmetic)
    dP = lower(arithmetic.store(x.scale * product(do, transpose(chunk.U))))

    # Pairs i = j stay apart: they belong to dq and dk, but cancel in the gate's adjoint and must do
    # so exactly.
    own = np.diagonal(dP, axis1=-2, axis2=-1)[..., None]
    dP = lower(dP, -1)
    from_queries, from_erases = chunk.pairs.to_rows([dP, dL], x.k)
    from_start = x.scale * product(do, transpose(chunk.S0)) * chunk.start
    Dq = arithmetic.joined(from_start + from_queries, rows)
    Dbk = arithmetic.joined(dK_b * chunk.start + from_erases, rows)
    Dkt = product(chunk.U, transpose(dS1)) * chunk.end
    local = arithmetic.joined(chunk.pairs.to_columns([dP, dL], [x.q, chunk.bk]), rows)
    Dk = Dkt + local + own * x.q

    dg = gate_gradient(chunk, dS, Dq, Dbk, Dkt, local, arithmetic)
    reads = x.scale * product(transpose(chunk.Q_g), do)
    erased = product(transpose(chunk.K_b), Y)
    return Gradients(
        dq=Dq + own * x.k,
        dk=Dk + x.b * Dbk,
        dv=x.w * Y,
        dg=dg,
        db=_shared(x.k * Dbk, x.b, arithmetic),
        dw=_shared(x.v * Y, x.w, arithmetic),
        dS0=arithmetic.carry(chunk.whole * dS + reads - erased, rows),
    )


def gate_gradient(chunk: Chunk, dS, Dq, Dbk, Dkt, local, arithmetic):
    """dg [..., C, 1 or K] from products already at hand, without the Gram matrix of keys.

    Every exp(+G_i) sits on a q or a b*k and every exp(-G_j) on a k, so dG is (positive role * its
    adjoint) minus (negative role * its adjoint), and dg its reverse cumulative sum. exp(G_C) sits
    on what reaches the chunk's end; the last row's own k reaches it undecayed, so it is in neither
    role.
    """
    x = chunk.inputs

    def shared(role):
        return _shared(role, x.gamma, arithmetic)

    ends = shared(x.k[..., :-1, :] * Dkt[..., :-1, :])
    whole = shared(arithmetic.sum(chunk.whole * x.S0 * dS, -1)[..., None, :, 0])
    dG = shared(x.q * Dq) + shared(chunk.bk * Dbk) - shared(x.k * local)
    dG[..., :-1, :] -= ends
    dG[..., -1:, :] += ends.sum(axis=-2, keepdims=True) + whole
    dG = arithmetic.accumulate(dG)
    return np.flip(np.cumsum(np.flip(dG, axis=-2), axis=-2), axis=-2)


def _shared(x, argument, arithmetic):
    """x summed over the channels that share one entry of an argument."""
    return arithmetic.sum(x, -1) if argument.shape[-1] < x.shape[-1] else x


class Scan:
    """All chunks of one sequence, walked forward once; `way` is SevenProducts or ThreeProducts."""

    def __init__(self, inputs: Inputs, chunk_size: int, arithmetic, way):
        self._inputs, self._arithmetic, self._way = inputs, arithmetic, way
        self._chunks = []
        S = inputs.S0
        for first in range(0, inputs.q.shape[-2], chunk_size):
            rows = slice(first, first + chunk_size)
            tokens = (array[..., rows, :] for array in inputs[:6])
            local = Inputs(*tokens, arithmetic.store(S), inputs.scale)
            chunk = open_chunk(local, arithmetic, way)
            S = next_state(chunk, S, arithmetic)
            self._chunks.append(chunk)
        self._final = S

    def outputs(self):
        """o [..., T, V] and the final state [..., K, V]."""
        arithmetic = self._arithmetic
        pieces = [arithmetic.output(chunk_output(chunk, arithmetic)) for chunk in self._chunks]
        return self._join(pieces, self._inputs.v), self._final

    def gradients(self, do, dS) -> Gradients:
        """The sequence's adjoints, the state's handed from the last chunk to the first."""
        pieces, last = [], do.shape[-2]
        for chunk in reversed(self._chunks):
            first = last - chunk.K_t.shape[-2]
            local = do[..., first:last, :]
            piece = chunk_gradients(chunk, local, dS, self._arithmetic, self._way)
            pieces.append(Gradients(*map(self._arithmetic.output, piece)))
            dS, last = piece.dS0, first
        pieces.reverse()
        tokens = (
            self._join([piece[n] for piece in pieces], array)
            for n, array in enumerate(self._inputs[:6])
        )
        return Gradients(*tokens, dS)

    def _join(self, pieces, like):
        """Chunks along the token axis; the empty array of the right shape when there are none."""
        if pieces:
            return np.concatenate(pieces, axis=-2)
        leading = np.broadcast_shapes(like.shape[:-2], self._inputs.S0.shape[:-2])
        return np.empty((*leading, *like.shape[-2:]), dtype=like.dtype)
