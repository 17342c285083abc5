"""The plan: which parts of a module are recomputed in the backward pass, as a record that people can read.

No torch is needed to read one; ``apply`` and ``remove`` work on a live module.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import PrivateAttr, ValidationError

from togi.core.errors import nearest
from togi.core.quantities import first_line
from togi.core.records import SCHEMA_VERSION, Record
from togi.footprint.fit.chunk import Chunk
from togi.footprint.fit.errors import FitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


class Action(StrEnum):
    """What is done with one result of the forward pass."""

    RECOMPUTE = "recompute"
    """Not kept; computed again when the backward pass asks for it. Exact to the bit."""
    KEEP = "keep"
    """Kept, although autograd does not ask for it, because others are computed again from it. Exact."""
    BITS = "bits"
    """A mask is kept as one bit for each element. Exact."""
    NARROW = "narrow"
    """float32 is kept as bfloat16. Approximate: gradients change a little."""


class Treatment(Record):
    """What is done with one result."""

    value: str
    """Operator and number of its call: ``aten.convolution.default#2`` is what the third convolution of a forward pass
    returned, ``aten.native_batch_norm.default#0.1`` the second result of the first batch norm, and ``.w0`` at the end
    what an operation wrote into its argument 0."""
    module: str
    """The module that computed it, as in ``named_modules()``; empty for the outermost."""
    action: Action = Action.RECOMPUTE
    bytes: int = 0
    recompute_ms: float = 0.0
    """Measured: the operation that makes it."""


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
    chunks: tuple[Chunk, ...] = ()
    """For inference: modules that are called with slices."""
    micro_batches: int = 1
    """For training: in how many parts a batch goes through forward and backward; ``backward`` does it."""
    peak_bytes: int | None = None
    """Measured: everything alive at the peak of a step, parameters and optimizer state included."""
    step_ms: float | None = None
    """Measured."""

    _applied: list[weakref.ref[Any]] = PrivateAttr(default_factory=list)

    def apply(self, module: nn.Module) -> nn.Module:
        """Treat ``module`` in place: its ``forward`` is replaced; parameters, names and hooks stay as they are.

        Raises FitError where the module has not the parts that the plan names; nothing is changed then.
        """
        from togi.footprint.fit.inference.chunked import chunk
        from togi.footprint.fit.treated import treat

        _check_names(module, self.treatments)
        if self.chunks:
            chunk(module, self.chunks)
        else:
            treat(module, self.treatments)
        self._applied.append(weakref.ref(module))
        return module

    def remove(self, module: nn.Module | None = None) -> None:
        """Undo ``apply``: on every module that this plan was applied to, or on the one given (a copy, for example)."""
        from togi.footprint.fit.inference.chunked import unchunk
        from togi.footprint.fit.treated import untreat

        modules = list(module.modules()) if module is not None else [reference() for reference in self._applied]
        unchunk(part for one in modules if one is not None for part in one.modules())
        untreat(one for one in modules if one is not None)
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
        """In a training loop, in place of ``loss = step(module, sample); loss.backward()``: under ``micro_batches``.

        See ``micro_batches.backward`` for the arguments. Gradients are added to ``.grad``; the loss is detached.
        """
        from togi.footprint.fit.micro_batches import backward

        return backward(module, sample, step, self.micro_batches, weigh=weigh, scale=scale)

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
                f"{path} is no plan of this version ({first_line(error)}). 'togi fit SUBJECT --memory SIZE "
                "--out FILE' writes one"
            ) from None


def _check_names(module: nn.Module, treatments: Iterable[Treatment]) -> None:
    names: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
    for treatment in treatments:
        if treatment.module not in names:
            raise FitError(
                f"the plan treats '{treatment.module}', which {type(module).__name__} does not have"
                f"{nearest(treatment.module, names)}. A plan belongs to the architecture that it was made for: run "
                "'togi fit' on this one."
            )
