"""The arguments of a call by name: tensors and everything else, however they are nested."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)


def named_leaves(forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every leaf in order: ``hidden_states``, ``position_embeddings[0]``. ``forward`` is unbound: it has a ``self``."""
    names = _positional(forward)
    found = {}
    for path, leaf in tree_flatten_with_path((tuple(args), dict(kwargs)))[0]:
        side, key, *rest = path
        if getattr(side, "idx", 0) == 0:
            at = int(key.idx)  # type: ignore[attr-defined]
            name = names[at] if at < len(names) else f"argument {at}"
        else:
            name = str(key.key)  # type: ignore[attr-defined]
        found[name + keystr(tuple(rest))] = leaf
    return found


def constants(leaves: Mapping[str, Any]) -> dict[str, str]:
    return {name: repr(leaf) for name, leaf in leaves.items() if isinstance(leaf, CONSTANTS)}


def unknown(leaves: Mapping[str, Any]) -> str:
    """The first leaf that is neither a tensor nor a constant, such as a cache object; empty where there is none."""
    for name, leaf in leaves.items():
        if not isinstance(leaf, (Tensor, *CONSTANTS)):
            return f"{name}, a {type(leaf).__name__}"
    return ""


@functools.lru_cache(maxsize=4096)
def _positional(forward: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(forward).parameters.values())[1:]
    except (TypeError, ValueError):  # written in C
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
