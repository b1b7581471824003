"""What a user hands to an operator, checked: one dataclass for all four operators."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

OPERATORS = ("delta_rule", "gated_delta_rule", "kda", "gdn2")


@dataclass(frozen=True, eq=False)
class Arguments:
    """Arguments of one call, NumPy arrays (anything np.asarray takes) or None.

    q, k: [B, T, H, K]; v: [B, T, HV, V], HV = n H: value head h reads query and key head h // n.
    g: natural-log decay <= 0, -inf forgets; [B, T, HV] for gated_delta_rule, [B, T, HV, K] for kda
        and gdn2; None with no gamma for no decay. With use_gate_in_kernel any value, +-inf too.
    gamma: exp(g) in g's place and shape, the only gate in an exact system.
    beta: [B, T, HV]; gdn2 has b: [B, T, HV, K] and w: [B, T, HV, V] instead.
    h0: [N, HV, K, V], or [N, HV, V, K] with state_v_first.
    A_log: [HV]; dt_bias: [HV] for gated_delta_rule, [HV K] or [HV, K] for kda and gdn2; both are
        used with use_gate_in_kernel only, as is lower_bound, a number below 0.
    scale: multiplies the output, default K^-1/2.
    offsets: N + 1 non-decreasing ints from 0 to T, when B = 1 holds N packed sequences; else N = B.
    chunk_size: tokens a chunk, for the chunked algorithms.

    Raises ValueError naming the argument.
    """

    operator: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray | None = None
    beta: np.ndarray | None = None
    b: np.ndarray | None = None
    w: np.ndarray | None = None
    h0: np.ndarray | None = None
    A_log: np.ndarray | None = None
    dt_bias: np.ndarray | None = None
    gamma: np.ndarray | None = None
    scale: Any = None
    offsets: tuple[int, ...] | None = None
    chunk_size: int = 64
    use_qk_l2norm_in_kernel: bool = False
    use_gate_in_kernel: bool = False
    lower_bound: float | None = None
    use_beta_sigmoid_in_kernel: bool = False
    allow_neg_eigval: bool = False
    state_v_first: bool = False

    def __post_init__(self):
        if self.operator not in OPERATORS:
            raise ValueError(
                f"operator must be one of {', '.join(OPERATORS)}, got {self.operator!r}"
            )
        if self.chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {self.chunk_size}")
        self._check_offsets()
        shapes = self._shapes()
        for field in fields(self):
            value, allowed = getattr(self, field.name), shapes.get(field.name)
            if field.name in _ARRAYS and value is not None:
                if allowed is None:
                    raise ValueError(f"{field.name} is no argument of {self.operator} as called")
                if np.shape(value) not in allowed:
                    wanted = " or ".join(map(str, allowed))
                    raise ValueError(
                        f"{field.name} must have shape {wanted}, got {np.shape(value)}"
                    )
        self._check_presence()

    @property
    def sequences(self) -> int:
        """N, the number of sequences and of states."""
        return np.shape(self.q)[0] if self.offsets is None else len(self.offsets) - 1

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """B, T, H, HV, K, V."""
        if np.ndim(self.q) != 4 or np.ndim(self.v) != 4:
            raise ValueError(
                f"q and v must have 4 axes, got {np.shape(self.q)}, {np.shape(self.v)}"
            )
        return *np.shape(self.q)[:3], np.shape(self.v)[2], np.shape(self.q)[3], np.shape(self.v)[3]

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        """[N, HV, K, V], or [N, HV, V, K] with state_v_first."""
        *_, HV, K, V = self.sizes
        return self.sequences, HV, *((V, K) if self.state_v_first else (K, V))

    @property
    def has_raw_inputs(self) -> bool:
        """Whether any argument is activated inside, which needs exponentials or roots."""
        return (
            self.use_qk_l2norm_in_kernel
            or self.use_gate_in_kernel
            or self.use_beta_sigmoid_in_kernel
        )

    def _shapes(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The shapes allowed for each array that this operator takes: one, of dt_bias also two."""
        B, T, H, HV, K, V = self.sizes
        if H < 1 or HV < 1 or HV % H:
            raise ValueError(f"v must have a multiple of q's {H} heads, got {HV}")
        shapes = {"q": (B, T, H, K), "k": (B, T, H, K), "v": (B, T, HV, V), "h0": self.state_shape}
        if self.operator == "gdn2":
            shapes |= {"b": (B, T, HV, K), "w": (B, T, HV, V)}
        else:
            shapes["beta"] = (B, T, HV)
        if self.operator != "delta_rule":
            channels = () if self.operator == "gated_delta_rule" else (K,)
            shapes["g"] = shapes["gamma"] = (B, T, HV, *channels)
            if self.use_gate_in_kernel:
                shapes |= {"A_log": (HV,), "dt_bias": (HV, *channels)}
        allowed = {name: (shape,) for name, shape in shapes.items()}
        if len(shapes.get("dt_bias", ())) == 2:
            allowed["dt_bias"] = ((HV * K,), (HV, K))
        return allowed

    def _check_presence(self):
        needed = {"b", "w"} if self.operator == "gdn2" else {"beta"}
        for name in sorted(needed):
            if getattr(self, name) is None:
                raise ValueError(f"{name} is required for {self.operator}")
        if self.g is not None and self.gamma is not None:
            raise ValueError("g may be given, or gamma in its place, and not both")
        if self.lower_bound is not None:
            if not self.use_gate_in_kernel:
                raise ValueError("lower_bound needs use_gate_in_kernel")
            if not -np.inf < self.lower_bound < 0:
                raise ValueError(f"lower_bound must be below 0, got {self.lower_bound}")
        if self.use_gate_in_kernel:
            if self.operator == "delta_rule" or self.g is None:
                raise ValueError("use_gate_in_kernel activates g, and there is none")
            if self.A_log is None and self.lower_bound is None:
                raise ValueError("A_log is required unless lower_bound is given")

    def _check_offsets(self):
        if self.offsets is None:
            return
        B, T = self.sizes[:2]
        rising = all(lo <= hi for lo, hi in pairwise(self.offsets))
        if B != 1:
            raise ValueError(f"offsets need B = 1, got {B}")
        if len(self.offsets) < 2 or self.offsets[0] != 0 or self.offsets[-1] != T or not rising:
            raise ValueError(f"offsets must rise from 0 to {T}, got {tuple(self.offsets)}")


_ARRAYS = {"q", "k", "v", "g", "beta", "b", "w", "h0", "A_log", "dt_bias", "gamma"}
