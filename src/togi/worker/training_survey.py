"""Surveys a training step before any trial: runs it on each sample and writes down what it saw."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from togi.core.records import Facts, Machine
from togi.measure.phases import phases_ms
from togi.subject.architecture import repeated_parts
from togi.subject.behaviour import GeneratorStates, seed_all
from togi.subject.inputs import Inputs, with_own_containers
from togi.subject.inventory import class_name, count_functions, count_modules, parameter_facts, shared_parameters
from togi.subject.optimizers import unwrapped
from togi.subject.signature import Signature
from togi.subject.training import TrainingStep
from togi.verify.step_truth import explained_step
from togi.worker.protocol import Survey

_OPTIONS = ("fused", "foreach", "capturable")


class _StepInputs(nn.Module):
    """Stands for the step where a module is asked for what it takes: all that a sample holds."""

    def forward(self, *args: object, **kwargs: object) -> None:
        """Takes anything."""


def survey_step(step: TrainingStep, *, seed: int, machine: Machine) -> Survey:
    """Run the step, which nobody else needs, on its samples, and describe it.

    Raises SubjectError where it fails, with the place in the user's code.
    """
    with step.undisturbed():
        seed_all(seed)
        before = GeneratorStates.now()
        losses = _losses(step)
        random = bool(GeneratorStates.now().differ_from(before))
        functions = count_functions(lambda: step.run(step.samples[0].clone()))
        phases = min((_pass_ms(step) for _ in range(2)), key=lambda each: sum(each.values()))
    signature = Signature.of(_StepInputs(), step.samples, losses)
    device = next(step.original.parameters()).device.type
    facts = Facts(
        device=device,
        machine=machine,
        module_class=class_name(step.original),
        modules=count_modules(step.original),
        **parameter_facts(step.original),
        training=True,
        random=random,
        inputs=signature.inputs_facts,
        outputs=signature.outputs_facts,
        samples=len(step.samples),
        functions=functions,
        latency_ms=sum(phases.values()),
        phases_ms=phases if device == "cpu" else {},  # on a GPU the host only starts what they take
        train=True,
        optimizer="" if step.optimizer is None else type(unwrapped(step.optimizer)).__name__,
        optimizer_options=_options_of(step),
        own_loop=step.train_step is not None,
        blocks=tuple(map(len, repeated_parts(step.original))),
        notes=(*step.notes, *_ties(step)),
    )
    return Survey(facts=facts, signature=signature, calls=tuple(map(_shapes, step.samples)))


def _losses(step: TrainingStep) -> list[Tensor]:
    losses: list[Tensor] = []
    for number, sample in enumerate(step.samples, 1):
        with explained_step(step, number):
            step.run(sample.clone(), lambda loss: losses.append(loss.detach()))
    return losses


def _pass_ms(step: TrainingStep) -> dict[str, float]:
    def run() -> None:
        for sample in step.samples:
            step.run(with_own_containers(sample))

    return phases_ms(run, step.module)


def _options_of(step: TrainingStep) -> tuple[str, ...]:
    """Those that every group of the optimizer knows, and that are off in some."""
    groups: Sequence[dict[str, object]] = [] if step.optimizer is None else step.optimizer.param_groups
    return tuple(
        name
        for name in _OPTIONS
        if groups and all(name in group for group in groups) and not all(group[name] for group in groups)
    )


def _ties(step: TrainingStep) -> list[str]:
    shared = shared_parameters(step.original)
    return [f"Parameters are shared: {', '.join(shared[:3])}."] if shared else []


def _shapes(sample: Inputs) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in sample.tensors())
