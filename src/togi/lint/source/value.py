"""Abstract values: what is known of an expression without running it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What an expression evaluates to, as far as rules care."""

    TENSOR = "tensor"
    MODULE = "module"
    OPTIMIZER = "optimizer"
    DATALOADER = "dataloader"
    DATASET = "dataset"
    NDARRAY = "ndarray"
    NUMBER = "number"
    """A Python int, float, bool or complex."""
    STRING = "string"
    NONE = "None"
    DEVICE = "device"
    """A ``torch.device`` (``Value.device`` says which, where known)."""
    DTYPE = "dtype"
    SHAPE = "shape"
    """A ``torch.Size``."""
    TUPLE = "tuple"
    """A tuple whose ``items`` are known one by one."""
    LIST = "list"
    """A list, set, or iterator of ``element``."""
    DICT = "dict"
    """A mapping to ``element``."""
    CLASS = "class"
    FUNCTION = "function"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Value:
    """An abstract value. ``None`` in a fact means that it is not known."""

    kind: Kind = Kind.UNKNOWN
    device: str | None = None
    """``"cuda"`` (or another accelerator), ``"cpu"``, or None."""
    qualified: str | None = None
    """Canonical dotted name of its class, or of the class or function itself for CLASS and FUNCTION."""
    dtype: str | None = None
    """``"bool"``, ``"int64"``, ``"float64"``, ... of a tensor or array."""
    graph: bool | None = None
    """Whether autograd's graph hangs on it: False after ``detach()`` and under ``no_grad``."""
    certain: bool = True
    """False where it may be something else on another path, or where only its name tells."""
    optional: bool = False
    """It may also be None."""
    batch: bool = False
    """It came out of a DataLoader and has not been moved since."""
    large: bool = False
    """A broadcast over pairs: N x M elements out of N and M."""
    scalar: bool = False
    """A tensor known to have no dimensions (a full reduction, a loss)."""
    pinned: bool | None = None
    """Of a DataLoader, and of its batches: whether they lie in pinned memory."""
    constant: Any = None
    """The literal, of numbers and strings."""
    items: tuple[Value, ...] | None = None
    element: Value | None = None
    definition: ast.AST | None = field(default=None, repr=False)
    """The class or function in this file, where it is one or an instance of one."""
    call: ast.Call | None = field(default=None, compare=False, repr=False)
    """The call that made it, as long as nothing changed it since."""
    origin: ast.AST | None = field(default=None, compare=False, repr=False)
    note: str = field(default="", compare=False, repr=False)
    cause: Value | None = field(default=None, compare=False, repr=False)

    @property
    def why(self) -> str:
        """The chain of evidence in words: "x is a parameter of forward, used as a tensor in torch.relu(x)"."""
        steps: list[str] = []
        value: Value | None = self
        while value is not None and len(steps) < 4:
            step = value._step()
            if step and step not in steps:
                steps.append(step)
            value = value.cause
        return "; ".join(steps)

    def _step(self) -> str:
        if not self.note:
            return ""
        text = excerpt(self.origin) if self.origin is not None else ""
        return f"{text} {self.note}".strip()

    @property
    def on_device(self) -> bool:
        """A tensor that may lie on an accelerator: its device is not known to be the CPU."""
        return self.kind is Kind.TENSOR and self.device != "cpu"

    @property
    def cause_is_batch(self) -> bool:
        """Computed of what a DataLoader gave, with nothing moved on the way in sight."""
        value: Value | None = self
        while value is not None and not value.batch:
            value = value.cause
        return value is not None

    def but(self, **facts: Any) -> Value:
        return replace(self, **facts)


UNKNOWN = Value()


@dataclass(frozen=True, slots=True)
class Hot:
    """Why a place runs often."""

    reason: str
    """ "it runs in every step of the loop over loader (line 12)"."""
    loop: ast.AST | None = None
    """The loop over batches or steps, where that is the reason."""
    function: ast.AST | None = None
    """``forward``, ``training_step``, ..., where that is the reason."""


def excerpt(node: ast.AST, limit: int = 60) -> str:
    """The node as source, on one line, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
