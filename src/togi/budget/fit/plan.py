"""The plan: which parts of a module are recomputed in the backward pass, as a record that people can read.

No torch is needed to read one; ``apply`` and ``remove`` work on a live module.
"""

from __future__ import annotations

import weakref
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import PrivateAttr, ValidationError

from togi.budget.fit.errors import FitError
from togi.records import SCHEMA_VERSION, Record

if TYPE_CHECKING:
    from torch import nn


class Action(StrEnum):
    """What is done with what autograd would keep."""

    RECOMPUTE = "recompute"
    """Dropped, and computed again when the backward pass needs it. Exact to the bit."""
    COMPRESS = "compress"
    """float32 is kept as bfloat16 (approximate), masks as bits (exact)."""


class Treatment(Record):
    """What is done to one module, or to neighbouring children of a Sequential."""

    module: str
    """Its name, as in ``named_modules()``; empty for the outermost."""
    children: tuple[int, int] | None = None
    """Of a Sequential: only the children from the first up to, not including, the second."""
    action: Action = Action.RECOMPUTE
    keeps: tuple[str, ...] = ()
    """Operations whose results are kept all the same, because computing them again takes long for their size:
    ``aten.convolution.default#2`` is the third convolution of a call."""
    state: tuple[str, ...] = ()
    """Buffers that a call changes (running statistics): computing again sees their old values and leaves the new."""
    saved_bytes: int = 0
    """Estimated from the measured run: what is no longer kept between forward and backward."""
    recompute_ms: float = 0.0
    """Estimated from the measured run: operations that run a second time."""

    @property
    def label(self) -> str:
        part = f"[{self.children[0]}:{self.children[1]}]" if self.children else ""
        return f"{self.module or '(whole module)'}{part}"


class Plan(Record):
    """Treatments by module, with the figures for which they were chosen."""

    schema_version: int = SCHEMA_VERSION
    kind: str = "plan"
    subject: str = ""
    module_class: str = ""
    budget_bytes: int = 0
    exact: bool = True
    """Loss and gradients are those of the unmodified module to the bit."""
    treatments: tuple[Treatment, ...] = ()
    peak_bytes: int | None = None
    """Measured: everything alive at the peak of a step, parameters and optimizer state included."""
    step_ms: float | None = None
    """Measured."""

    _applied: list[weakref.ref[Any]] = PrivateAttr(default_factory=list)

    def apply(self, module: nn.Module) -> nn.Module:
        """Treat the parts of ``module``, in place; the names of its parameters and its hooks stay as they are.

        Raises FitError where the module has not the parts that the plan names; nothing is changed then.
        """
        from togi.budget.fit.treated import treat

        for part in treat(module, self.treatments):
            self._applied.append(weakref.ref(part))
        return module

    def remove(self, module: nn.Module | None = None) -> None:
        """Undo ``apply``: on every module that this plan was applied to, or on the one given (a copy, for example)."""
        from togi.budget.fit.treated import untreat

        parts = list(module.modules()) if module is not None else [part() for part in self._applied]
        untreat(part for part in parts if part is not None)
        if module is None:
            self._applied.clear()

    def save(self, path: str | Path) -> None:
        """As indented JSON."""
        Path(path).write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote. Raises FitError for anything else."""
        try:
            return cls.model_validate_json(Path(path).read_text())
        except OSError as error:
            raise FitError(
                f"the plan {path} cannot be read: {error.strerror}. 'togi fit --out {path}' writes one"
            ) from None
        except (ValidationError, ValueError) as error:
            raise FitError(
                f"{path} is no plan of this version ({str(error).splitlines()[0]}). 'togi fit SUBJECT --memory SIZE "
                "--out FILE' writes one"
            ) from None
