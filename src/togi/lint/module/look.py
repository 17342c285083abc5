"""From a subject to ``Seen``: run it, watch it, capture it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from togi.core.errors import Refused
from togi.core.records import Facts, Machine
from togi.graph.candidate import Candidate
from togi.graph.capture import GraphModule, capture
from togi.lint.module.seen import Seen
from togi.lint.module.watch import watch
from togi.lint.roofline.figures import check_dtype
from togi.lint.roofline.gpus import gpu
from togi.lint.roofline.table import Costs
from togi.lint.roofline.this_machine import figures_here
from togi.machine.describe import machine
from togi.subject.anatomy import class_name, count_modules
from togi.subject.inputs import Subject
from togi.subject.prepare import is_exported, prepare
from togi.subject.signature import Signature
from togi.torch_internals.autograd import version_of
from togi.worker.survey import first_call

if TYPE_CHECKING:
    from togi.subject.prepare import Prepared


def look(
    subject: Subject, *, target: str = "cpu", dtype: str | None = None, seed: int = 0, with_graph: bool = True
) -> Seen:
    """Everything that module rules need to know of ``subject``.

    Args:
        subject: its module is copied once, and not changed.
        target: what times are predicted for: ``cpu`` or ``cuda`` (it runs there, and is measured), or a GPU's name
            (``A100``: it runs on the CPU, and the GPU's data sheet counts).
        dtype: predict as if floating-point tensors were of this dtype; None: as they are.
        seed: for modules that draw random numbers.
        with_graph: capture it too, which takes longer than all the rest.

    Raises SubjectError where it cannot be run, UnknownNameError for a device nobody knows.
    """
    if dtype is not None:
        check_dtype(dtype)
    device = torch.device(target).type if target.partition(":")[0] in ("cpu", "cuda") else "cpu"
    named = None if target.partition(":")[0] in ("cpu", "cuda") else gpu(target)
    parts = subject.module.named_modules() if subject.step is None else ()  # what has a training step is to train
    training = {name: class_name(part) for name, part in parts if _trains(part)}
    ready = prepare(subject, device=target if named is None else device)
    here = machine(device)
    before = _buffer_versions(ready.module)
    outputs = [first_call(ready.module, sample, number, seed) for number, sample in enumerate(ready.samples, start=1)]
    changed = _buffer_versions(ready.module) != before
    captured: Candidate | str = "the selected rules do not need it"
    if with_graph:
        captured = _captured(subject, ready, outputs, here, device, changed)
    del outputs
    forward = watch(ready.module, ready.samples[0], seed=seed)
    figures = named or figures_here(device, here, [dtype] if dtype else _dtypes(ready.module))
    return Seen(
        module=ready.module,
        given=subject.module,
        samples=ready.samples,
        forward=forward,
        costs=Costs.of(forward.calls, figures, dtype),
        device=device,
        training=training,
        captured=captured,
        notes=ready.notes,
    )


def _trains(part: nn.Module) -> bool:
    return part.training and not is_exported(part)


def _dtypes(module: nn.Module) -> list[str]:
    return sorted({str(p.dtype).removeprefix("torch.") for p in module.parameters() if p.is_floating_point()})


def _buffer_versions(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Changes when a buffer is written in place or replaced."""
    return {name: (id(buffer), version_of(buffer)) for name, buffer in module.named_buffers()}


def _captured(
    subject: Subject, ready: Prepared, outputs: Sequence[object], here: Machine, device: str, changed: bool
) -> Candidate | str:
    """A candidate whose module is the captured graph, or why there is none."""
    try:
        signature = Signature.of(ready.module, ready.samples, outputs, subject.dynamic)
        facts = Facts(
            device=device,
            machine=here,
            module_class=class_name(ready.module),
            modules=count_modules(ready.module),
            buffers_change=changed,
        )
        start = Candidate(module=ready.module, samples=ready.samples, signature=signature, facts=facts)
        return start.with_(module=GraphModule(capture(start), signature))
    except Refused as refused:
        return str(refused)
    except Exception as error:  # foreign code: samples of different form, and whatever the tracer raises
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
