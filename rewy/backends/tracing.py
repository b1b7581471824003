"""What ``torch.compile`` is not to look into."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def never_traced(method: Callable) -> Callable:
    """The method as it is for Dynamo, too: it does not understand how kernels are started, and
    traces the eager graph anew, for minutes, when the number of tokens changes.

    ``torch.compiler.disable`` as a decorator imports Dynamo: with nothing cached on disk that took
    half of a first call, which is for those alone who compile.
    """

    @wraps(method)
    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*arguments)
        return method(*arguments)

    return call
