"""What autograd keeps for backward, storage by storage, with the nodes that keep it.

Read from the graph itself at the moment backward begins, not with saved-tensor hooks: hooks change what is saved (a
packed output is another tensor), and code may forbid them.

Source: torch.autograd docs, "Saved tensors" (``grad_fn._saved_*``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from togi.footprint.ledger import Ledger, Piece

_RAW = "_raw_saved_"
_UNKNOWN = object()
"""An older torch does not tell whether a value is behind a hook: then it is left alone."""


def nodes_below(root: Any) -> Iterator[Any]:
    """Every autograd node that is reached from ``root``, itself included."""
    seen, queue = {root}, [root]
    while queue:
        node = queue.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                queue.append(child)


def kept_pieces(root: Any, ledger: Ledger) -> dict[Piece, list[str]]:
    """Piece -> ``NodeName.attribute`` of each place that keeps it."""
    found: dict[Piece, list[str]] = {}
    for node in nodes_below(root):
        for name, tensor in _saved(node):
            piece = ledger.piece_of(tensor)
            if piece is not None:
                found.setdefault(piece, []).append(f"{node.name()}.{name}")
    return found


def _saved(node: Any) -> Iterator[tuple[str, Tensor]]:
    """What can be named without side effects: values behind hooks stay packed, for unpacking may compute them anew."""
    for attribute in dir(node):
        if attribute.startswith(_RAW) and not _hooked(getattr(node, attribute)):
            name = attribute.removeprefix(_RAW)
            try:
                value = getattr(node, "saved_tensors" if name == "tensors" else f"_saved_{name}", None)
            except RuntimeError:  # freed, or changed in place: nothing is kept that could be named
                continue
            for tensor in value if isinstance(value, tuple | list) else (value,):
                if isinstance(tensor, Tensor):
                    yield name, tensor


def _hooked(raw: Any) -> bool:
    parts = raw if isinstance(raw, tuple | list) else (raw,)
    return any(getattr(part, "unpack_hook", _UNKNOWN) is not None for part in parts)
