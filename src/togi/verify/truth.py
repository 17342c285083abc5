"""The truth of a subject: what the original answers, how exactly plain eager answers it, and how it behaves.

Made once per study (``make_truth``), kept as safetensors and JSON in the run's private folder, loaded by every trial.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from togi.core.errors import TogiError
from togi.core.records import Record
from togi.decide.faithful import limit_units, shows_nothing
from togi.decide.metric import MetricFacts
from togi.subject.classes import name_of
from togi.subject.inputs import Inputs
from togi.subject.structure import Structure
from togi.verify.compare import Difference, identical
from togi.verify.observe import Observation
from togi.verify.units import Measured, Unit

_JSON = "truth.json"
_TENSORS = "truth.safetensors"
_JSON_LIMIT_BYTES = 256 << 20


class LeafTruth(Record):
    """One output tensor (or input changed in place) of one call of the original."""

    name: str
    dtype: str
    device: str
    layout: str
    tensor_class: str = ""
    """``module:qualified name`` of its class; empty: not known."""
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    contiguous: bool = True
    requires_grad: bool | None = None
    """With autograd on. None: not known (that call failed)."""
    threshold: float = float("inf")
    """Magnitude from which an element is a sentinel, such as a mask value of -1e9."""
    eager_rmse: float = 0.0
    """Eager's own error relative to the truth's root mean square (share of elements for integers and bools)."""
    unit: Unit
    same: bool = False
    """Eager and the truth agree to the bit: stored once."""
    tf32_units: float | None = None
    """Plain eager's worst error in this output with torch's flags as they are, as in ``TruthFacts``. None: not known by
    output."""


class OriginalAnswer(Record):
    """The answer of the original to one input."""

    input: int
    """Index into the inputs that the truth was made of."""
    structure: Structure
    """Of the output, constants included."""
    leaves: tuple[LeafTruth, ...]
    changed: tuple[str, ...] = ()
    """What the original changes in its inputs: tensors, whose new values are leaves too, and arguments in ``left``."""
    left: dict[str, Structure] = Field(default_factory=dict)
    """What it leaves in arguments that hold other things after the call than before."""
    shares_inputs: tuple[tuple[str, str], ...] = ()
    shares_outputs: tuple[tuple[str, str], ...] = ()


def answer_of(
    index: int,
    seen: Observation,
    eager: list[Tensor],
    truth: list[Tensor],
    measured: list[Measured],
    gradients: dict[str, bool],
) -> OriginalAnswer:
    """The answer of one call. ``index``: of its input; ``gradients``: by output, whether it requires them."""
    leaves = []
    for i, (name, tensor) in enumerate(seen.leaves):
        unit, own, threshold = measured[i]
        strided = tensor.layout is torch.strided
        leaves.append(
            LeafTruth(
                name=name,
                **form_of(tensor),
                tensor_class=name_of(type(tensor)),
                stride=tuple(tensor.stride()) if strided else (),
                contiguous=strided and tensor.is_contiguous(),
                requires_grad=gradients.get(name),
                threshold=threshold,
                eager_rmse=own.rmse if isinstance(own, Difference) else own,
                unit=unit,
                same=truth[i].dtype == eager[i].dtype and identical(truth[i], eager[i]),
            )
        )
    return OriginalAnswer(
        input=index,
        structure=seen.structure,
        leaves=tuple(leaves),
        changed=seen.changed,
        left=seen.left,
        shares_inputs=tuple(sorted(seen.shares_inputs)),
        shares_outputs=tuple(sorted(seen.shares_outputs)),
    )


def form_of(tensor: Tensor) -> dict[str, Any]:
    """The form of an output, which is all but its values, by the names of ``LeafTruth``."""
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": tuple(tensor.shape),
        "layout": str(tensor.layout).removeprefix("torch."),
        "device": tensor.device.type,
    }


class TruthFacts(Record):
    """All of the truth but the tensors."""

    schema_version: int = 1
    samples: int
    """How many of the inputs are the user's own (they come first)."""
    answers: tuple[OriginalAnswer, ...]
    schedule: tuple[int, ...]
    """Answers in the order of calls. The first input is called again at the end; an original with a state has an answer
    of its own for that call."""
    precision: str
    """``float64``, or ``eager``: then the truth is eager itself, and ``fallback`` says why."""
    fallback: str = ""
    tf32_units: float = 0.0
    """Plain eager's worst error with torch's flags as they are, in units, which are of eager in IEEE float32. 0 where
    the flags say IEEE float32 as well, and where random numbers hide it."""
    stateful: bool = False
    """The answer depends on the calls before it (buffers that the forward pass updates)."""
    random: bool = False
    """The answer depends on the seed."""
    repeatable: bool = True
    unrepeatable: str = ""
    """Why no other candidate can be compared with the original, in a sentence."""
    shared_between_calls: tuple[str, ...] = ()
    """Outputs that the original itself returns in the same memory on every call."""
    varying: tuple[str, ...] = ()
    """Paths inside of objects at which the original differs from call to call (times, addresses): not compared."""
    metric: MetricFacts | None = None
    """Of the user's metric; None: there is none."""
    notes: tuple[str, ...] = ()

    def limit_units(self, leaf: LeafTruth, *, exact: bool) -> float:
        """Largest error of a faithful candidate in an output. ``exact``: no technique of its recipe is approximate."""
        return limit_units(exact=exact, tf32_units=self.tf32_units if leaf.tf32_units is None else leaf.tf32_units)

    def unproven(self) -> dict[str, float]:
        """Outputs of which no answer shows anything, by name: how far eager itself is off, as a share of their size."""
        shares: dict[str, list[float]] = {}
        for answer in self.answers:
            for leaf in answer.leaves:
                if 0 not in leaf.shape:
                    shares.setdefault(leaf.name, []).append(leaf.unit.relative)
        return {name: min(of) for name, of in shares.items() if all(map(shows_nothing, of))}


@dataclass(frozen=True, kw_only=True)
class Truth:
    """``truth[a][l]`` and ``eager[a][l]``: dense CPU tensors of answer ``a``, leaf ``l``; the truth in float64 where
    the leaf is floating, complex leaves as real with a last dimension of 2."""

    facts: TruthFacts
    truth: Sequence[Sequence[Tensor]]
    eager: Sequence[Sequence[Tensor]]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how the truth was made, in sentences."""
        facts = self.facts
        rounded = (
            "plain eager rounds factors to TensorFloat-32 on this device, as torch's flags say: its own error is "
            f"{facts.tf32_units:,.0f} x what it is in IEEE float32, the unit in which errors are given"
        )
        of_eager = f"outputs are compared with eager, not with float64: {facts.fallback}"
        return (
            *facts.notes,
            *([of_eager] if facts.fallback else []),
            *([rounded] if facts.tf32_units else []),
            *([facts.unrepeatable] if facts.unrepeatable else []),
        )

    @property
    def kept(self) -> tuple[int, ...]:
        """Indices of the inputs that are verified on."""
        return tuple(dict.fromkeys(answer.input for answer in self.facts.answers))

    def inputs(self, inputs: Sequence[Inputs]) -> list[Inputs]:
        """The inputs that are verified on, of all that ``make_truth`` was given."""
        return [inputs[i] for i in self.kept]

    def without(self, inputs: Collection[int]) -> Truth:
        """Leave out the answers to some inputs. Where answers depend on the calls before, keep all."""
        facts = self.facts
        kept = [a for a, answer in enumerate(facts.answers) if answer.input not in inputs]
        if facts.stateful or len(kept) == len(facts.answers):
            return self
        places = {a: place for place, a in enumerate(kept)}
        return Truth(
            facts=facts.model_copy(
                update={
                    "answers": tuple(facts.answers[a] for a in kept),
                    "schedule": tuple(places[a] for a in facts.schedule if a in places),
                }
            ),
            truth=[self.truth[a] for a in kept],
            eager=[self.eager[a] for a in kept],
        )

    def save(self, folder: Path) -> None:
        """Write ``truth.json`` and ``truth.safetensors`` into ``folder`` (which exists). Raises OSError."""
        from safetensors.torch import save_file

        tensors: dict[str, Tensor] = {}
        for a, answer in enumerate(self.facts.answers):
            for i, leaf in enumerate(answer.leaves):
                tensors[f"eager.{a}.{i}"] = _stored(self.eager[a][i])
                if not leaf.same:
                    tensors[f"truth.{a}.{i}"] = _stored(self.truth[a][i])
        dtypes = {
            name: str(source[int(a)][int(i)].dtype).removeprefix("torch.")
            for name in tensors
            for kind, a, i in [name.split(".")]
            for source in [self.truth if kind == "truth" else self.eager]
        }
        save_file(tensors or {"empty": torch.zeros(1)}, str(folder / _TENSORS))
        document = {"facts": json.loads(self.facts.to_json()), "dtypes": dtypes}
        (folder / _JSON).write_text(json.dumps(document), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Truth:
        """Load what ``save`` wrote; tensors are mapped from the file and read when they are compared.

        Raises TogiError when the folder holds something else.
        """
        from safetensors import SafetensorError, safe_open

        try:
            if (folder / _JSON).stat().st_size > _JSON_LIMIT_BYTES:
                raise ValueError(f"{_JSON} is larger than {_JSON_LIMIT_BYTES >> 20} MiB")
            document = json.loads((folder / _JSON).read_text(encoding="utf-8"))
            facts = TruthFacts.model_validate_json(json.dumps(document["facts"]))
            with safe_open(str(folder / _TENSORS), framework="pt") as file:
                eager, truth = _read(file, facts, document["dtypes"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            raise TogiError(
                f"the truth in {folder} cannot be read ({type(error).__name__}: {error}). "
                "Run the command again: it is made anew."
            ) from error
        return cls(facts=facts, truth=truth, eager=eager)


def _read(file: Any, facts: TruthFacts, dtypes: dict[str, str]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    eager, truth = [], []
    for a, answer in enumerate(facts.answers):
        eager.append(
            [_as(file.get_tensor(n), dtypes[n]) for n in (f"eager.{a}.{i}" for i in range(len(answer.leaves)))]
        )
        names = [f"{'eager' if leaf.same else 'truth'}.{a}.{i}" for i, leaf in enumerate(answer.leaves)]
        truth.append([_as(file.get_tensor(n), dtypes[n]) for n in names])
    return eager, truth


def _stored(tensor: Tensor) -> Tensor:
    """Contiguous, in memory of its own; 8-bit floats as bytes (not every safetensors knows all of them)."""
    tensor = tensor.contiguous().clone()
    return tensor.view(torch.uint8) if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def _as(tensor: Tensor, dtype: str) -> Tensor:
    stored = getattr(torch, dtype, None)
    if not isinstance(stored, torch.dtype):
        raise ValueError(f"unknown dtype {dtype!r}")
    if stored is tensor.dtype:
        return tensor
    if tensor.dtype is torch.uint8 and stored.itemsize == 1:
        return tensor.view(stored)
    raise ValueError(f"a tensor is {tensor.dtype}, expected {dtype}")
