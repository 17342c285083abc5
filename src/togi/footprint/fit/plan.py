"""The plan of ``togi fit``: a record that people can read, that is saved as JSON and applied to a live module.

No torch is needed to read one.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import PrivateAttr, ValidationError
from typing_extensions import Self

from togi.core.errors import FitError
from togi.core.quantities import first_line, milliseconds, plural, size
from togi.core.records import Record
from togi.footprint.fit.policies import Chunk, SavePolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

PLAN_VERSION: Final = 2
"""Of the JSON of a plan and of a result."""
NO_AUTOCAST: Final = "off"
_NAMED = 3
"""Differences that an error names; the rest is counted."""


class Plan(Record):
    """A plan: what is done with which results or module calls, with the figures for which it was chosen."""

    schema_version: Literal[2] = PLAN_VERSION
    kind: str = "plan"
    subject: str = ""
    module_class: str = ""
    architecture: dict[str, str] = {}
    """By module, as in ``named_modules()``: its class and its own parameters."""
    budget_bytes: int = 0
    exact: bool = True
    """Loss and gradients are those of the unmodified module to the bit."""
    policies: tuple[SavePolicy, ...] = ()
    """For training: what autograd saves otherwise than it would."""
    chunks: tuple[Chunk, ...] = ()
    """For inference: modules that are called with slices."""
    micro_batches: int = 1
    """For training: in how many parts a batch goes through forward and backward; ``backward`` does it."""
    autocast: str = ""
    """What the autocast round the step computed in, where a trainer runs one; ``off`` where it runs none. Empty if the
    plan was made without a trainer."""
    peak_bytes: int | None = None
    """Measured: everything alive at the peak of a step, parameters and optimizer state included."""
    step_ms: float | None = None
    """Measured."""

    _applied: list[weakref.ref[Any]] = PrivateAttr(default_factory=list)
    """What it has put on modules."""

    def __getstate__(self) -> dict[Any, Any]:
        """Another process has other modules."""
        return {**super().__getstate__(), "__pydantic_private__": {"_applied": []}}

    def __str__(self) -> str:
        parts = f" in {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        contents = (
            f"{plural(len(self.chunks), 'module')} called in slices"
            if self.chunks
            else f"{plural(len(self.policies), 'result')} saved otherwise or recomputed{parts}"
        )
        parts_of_text = [f"plan for {self.subject or self.module_class or 'a module'}: {contents}"]
        if self.peak_bytes is not None:
            parts_of_text.append(f"peak {size(self.peak_bytes)}")
        if self.step_ms is not None:
            parts_of_text.append(f"{milliseconds(self.step_ms)} a {'pass' if self.chunks else 'step'}")
        return ", ".join(parts_of_text)

    def apply(self, module: nn.Module) -> nn.Module:
        """Put the plan on ``module`` in place: its ``forward`` is replaced; parameters, names and hooks stay.

        Raises:
            FitError: the module is not of the architecture that the plan was made for, or runs under a plan already;
                nothing is changed then.
        """
        from togi.footprint.fit.forward import forwards_of
        from togi.footprint.fit.inference.chunked import chunk
        from togi.footprint.fit.training.saved_tensors import save_by

        self._check(module)
        there = forwards_of(module)
        if self.chunks:
            chunk(module, self.chunks)
        else:
            save_by(module, self.policies)
        self._applied += [weakref.ref(forward) for forward in forwards_of(module) if forward not in there]
        return module

    def remove(self, module: nn.Module | None = None) -> None:
        """Undo ``apply``: on every module that this plan was applied to; or take whatever plan there is from the one
        given (a copy, for example)."""
        from togi.footprint.fit.forward import forwards_of

        given = forwards_of(module) if module is not None else [reference() for reference in self._applied]
        for forward in given:
            if forward is not None:
                forward.take_away()
        if module is None:
            self._applied.clear()

    def backward(
        self,
        module: nn.Module,
        sample: Any,
        step: Callable[[nn.Module, Any], Tensor],
        *,
        weigh: Callable[[Any], Any] | None = None,
        scale: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Run backward in a training loop, in place of ``loss = step(module, sample); loss.backward()``: under
        ``micro_batches``.

        See ``micro_batches.backward`` for the arguments. Gradients are added to ``.grad``; the loss is detached.
        """
        from togi.subject.micro_batches import backward

        return backward(module, sample, step, self.micro_batches, weigh=weigh, scale=scale)

    def save(self, path: str | Path) -> None:
        """Write it as indented JSON."""
        Path(path).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote. Raises FitError for anything else."""
        try:
            return cls.model_validate_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise FitError(
                f"the plan {path} cannot be read: {error.strerror}. 'togi fit SUBJECT --memory SIZE --out "
                f"{path}' writes one"
            ) from None
        except (ValidationError, ValueError) as error:
            raise FitError(
                f"{path} is not a plan of this version ({first_line(error)}). 'togi fit SUBJECT --memory SIZE "
                "--out FILE' writes one"
            ) from None

    def _check(self, module: nn.Module) -> None:
        from togi.subject.architecture import architecture_of, differences_of

        differences = differences_of(self.architecture, architecture_of(module)) if self.architecture else []
        if differences:
            more = f"; and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
            raise FitError(
                f"the plan was made for another architecture than this {type(module).__name__}: "
                f"{'; '.join(differences[:_NAMED])}{more}. Its figures and its proof do not hold here: run 'togi fit' "
                "on this one"
            )
