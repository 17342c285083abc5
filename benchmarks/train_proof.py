"""Is an honest way to run a training step ever refused, and what does the proof cost?

    python -m benchmarks.train_proof [--only NAME ...] [--seeds 3] [--ways WAY ...] [--json FILE]

Every model takes a warm step with its optimizer in ways that are exact: fused and foreach optimizers, channels_last,
one thread, kept memory, micro-batches, recomputation, ``torch.compile``. Each must be faithful from each seed, and to
the bit where its technique claims that; one that does not apply to a model is left out. A rate or a gradient that is
off by a thousandth, and bf16, must not be. A row gives the worst error of a way in units (the limit is 8), its tensor,
what float64 says, and the seconds. That of the unchanged step also says what its proof takes: the tensors of a step and
the rise of the process above them, as a multiple of what a step takes by the same count.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from benchmarks.train_models import (
    Tagger,
    adamw,
    class_loss,
    masked_words,
    next_words,
    own_loss,
    pictures,
    sgd,
    tag_loss,
)
from torch import Tensor, nn

from togi.core.errors import Refused
from togi.core.records import ErrorReport
from togi.machine.describe import machine
from togi.measure.memory import peak_resident_bytes
from togi.subject.inputs import Subject
from togi.subject.optimizers import state_tensors
from togi.subject.prepare import named_tensors
from togi.subject.training import TrainingStep
from togi.techniques import Refuses, technique
from togi.verify.step_truth import make_step_truth
from togi.verify.training import Build, StepTruth, verify_step
from togi.worker.training_survey import survey_step

Make = Callable[[], Subject]
AS_IT_IS = "as it is"
SAMPLES = 4


def resnet18() -> Subject:
    import torchvision

    return pictures(torchvision.models.resnet18(num_classes=10), 8, 96, sgd, SAMPLES)


def mobilenetv3() -> Subject:
    import torchvision

    return pictures(torchvision.models.mobilenet_v3_large(num_classes=10), 8, 96, adamw, SAMPLES)


def vit_tiny() -> Subject:
    import timm

    return pictures(timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=96), 4, 96, adamw, SAMPLES)


def unet() -> Subject:
    layers = [part for width in (16, 32, 32) for part in (nn.LazyConv2d(width, 3, padding=1), nn.LazyBatchNorm2d())]
    body = nn.Sequential(*(p for pair in zip(layers[::2], layers[1::2], strict=True) for p in (*pair, nn.ReLU())))
    module = nn.Sequential(body, nn.Dropout2d(0.1), nn.LazyConv2d(4, 1))
    module(torch.randn(2, 3, 64, 64))
    samples = [(torch.randn(4, 3, 64, 64), torch.randint(0, 4, (4, 64, 64))) for _ in range(SAMPLES)]
    return Subject(module.train(), samples, step=class_loss, optimizer=adamw)


def gpt2() -> Subject:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=2000, use_cache=False)
    samples = next_words(2, 64, 2000, SAMPLES)
    return Subject(GPT2LMHeadModel(config).train(), samples, step=own_loss, optimizer=adamw)


def bert() -> Subject:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512, vocab_size=2000
    )
    samples = masked_words(8, 64, 2000, SAMPLES)
    return Subject(BertForMaskedLM(config).train(), samples, step=own_loss, optimizer=adamw)


def lstm() -> Subject:
    samples = [(torch.randint(0, 1000, (8, 30)), torch.randint(0, 20, (8, 30))) for _ in range(SAMPLES)]
    return Subject(Tagger(1000, 64, 64).train(), samples, step=tag_loss, optimizer=adamw)


MODELS: dict[str, Make] = {make.__name__: make for make in (resnet18, mobilenetv3, vit_tiny, unet, gpt2, bert, lstm)}


def with_settings(**changed: Any) -> Build:
    def build(step: TrainingStep) -> TrainingStep:
        assert step.optimizer is not None
        for group in step.optimizer.param_groups:
            group.update(changed)
        return step

    return build


def channels_last(step: TrainingStep) -> TrainingStep:
    """Module, inputs and the optimizer's state: a fused optimizer walks through the memory of all of them alike."""
    step.module.to(memory_format=torch.channels_last)
    assert step.optimizer is not None
    for state in step.optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.dim() == 4:
                state[key] = value.to(memory_format=torch.channels_last)
    step.module.register_forward_pre_hook(
        lambda _, args: tuple(a.to(memory_format=torch.channels_last) if a.dim() == 4 else a for a in args)
    )
    return step


def on_one_thread(step: TrainingStep) -> TrainingStep:
    def loss(module: nn.Module, sample: Any) -> Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return step.loss(module, sample)
        finally:
            torch.set_num_threads(before)

    return dataclasses.replace(step, loss=loss)


def scaled(factor: float) -> Build:
    def build(step: TrainingStep) -> TrainingStep:
        first = next(parameter for parameter in step.module.parameters() if parameter.requires_grad)
        first.register_hook(lambda gradient: gradient * factor)
        return step

    return build


def slower(step: TrainingStep) -> TrainingStep:
    assert step.optimizer is not None
    for group in step.optimizer.param_groups:
        group["lr"] *= 0.999
    return step


def in_bf16(step: TrainingStep) -> TrainingStep:
    def loss(module: nn.Module, sample: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return step.loss(module, sample)

    return dataclasses.replace(step, loss=loss)


def of_technique(id: str, **options: Any) -> Build:
    """What a recipe does. What it changes in this process is undone once the way is judged."""
    return lambda step: technique(id).apply_step(step, dict(options))


HONEST: dict[str, Build] = {
    AS_IT_IS: lambda step: step,
    "fused": with_settings(fused=True, foreach=None),
    "foreach": with_settings(foreach=True),
    "channels_last": channels_last,
    "channels_last, fused": lambda step: channels_last(with_settings(fused=True, foreach=None)(step)),
    "one thread": on_one_thread,
    "kept memory": of_technique("kept_memory"),
    "2 micro-batches": of_technique("micro_batches", parts=2),
    "recompute": of_technique("recompute", keep=0.5),
    "compile": of_technique("torch_compile", of="loss", eager_random=True),
}
TECHNIQUES = {
    "kept memory": "kept_memory",
    "2 micro-batches": "micro_batches",
    "recompute": "recompute",
    "compile": "torch_compile",
}
"""Which decide by themselves whether they apply, and what they claim."""
WRONG: dict[str, Build] = {
    "a rate off by a thousandth": slower,
    "a gradient off by a thousandth": scaled(1.001),
    "bf16": in_bf16,
}


def row(model: str, seed: int, way: str, report: ErrorReport, seconds: float, proof_x: float | None) -> dict[str, Any]:
    worst = max(report.leaves, key=lambda leaf: leaf.units)
    return {
        "model": model,
        "seed": seed,
        "way": way,
        "faithful": report.faithful,
        "right": report.faithful == (way in HONEST),
        "units": worst.units,
        "worst": worst.name,
        "problems": list(report.problems[:2]),
        "note": report.notes[-1] if report.notes else "",
        "seconds": seconds,
        "proof_x": proof_x,
    }


def rows_of(model: str, seed: int, ways: Collection[str]) -> list[dict[str, Any]]:
    torch.manual_seed(seed)
    step = TrainingStep.of(MODELS[model]())
    facts = survey_step(step.copy(), seed=seed, machine=machine("cpu")).facts
    step_bytes, step_s = bytes_and_seconds_of(step.copy())
    own_bytes = sum(tensor.nbytes for _, tensor in named_tensors(step.original))
    truths: list[tuple[StepTruth, float]] = []

    def prove() -> None:
        began = time.perf_counter()
        truths.append((make_step_truth(step, seed=seed), time.perf_counter() - began))
        verify_step(HONEST[AS_IT_IS], truths[0][0])

    proof_x = (own_bytes + peak_resident_bytes(prove)) / step_bytes
    ((truth, truth_s),) = truths
    print(
        f"{model} seed {seed}: step {step_s * 1e3:.0f} ms, truth {truth_s:.1f} s, {proof_x:.1f} x the memory of the "
        f"step's {step_bytes / 2**20:.0f} MiB {truth.fallback}",
        flush=True,
    )
    rows = []
    for way, build in {way: build for way, build in (HONEST | WRONG).items() if way in ways}.items():
        found = technique(TECHNIQUES[way]) if way in TECHNIQUES else None
        if found is not None and isinstance(refused := found.applies(facts), Refuses):
            print(f"  - {way}: {refused.reason}")
            continue
        began = time.perf_counter()
        try:
            report = judged(build, truth, to_the_bit=found is not None and found.step_to_the_bit)
        except Refused as refusal:
            print(f"  - {way}: {refusal}")
            continue
        of_way = proof_x if way == AS_IT_IS else None
        rows.append(row(model, seed, way, report, time.perf_counter() - began, of_way))
        print("  {right} {way}: {units:.3g} units in {worst} {problems} {note} ({seconds:.1f} s)".format(**rows[-1]))
    return rows


def bytes_and_seconds_of(step: TrainingStep) -> tuple[int, float]:
    """What a warm step takes: its tensors, and how far the process rises above them in some more."""
    for sample in step.samples:
        step.run(sample)
    began = time.perf_counter()
    step.run(step.samples[0])
    seconds = time.perf_counter() - began
    gradients = [p.grad for p in step.parameters.values() if p.grad is not None]
    state = [] if step.optimizer is None else [tensor for _, tensor in state_tensors(step.optimizer, step.parameters)]
    kept = [*(tensor for _, tensor in named_tensors(step.original)), *gradients, *state]
    rise = peak_resident_bytes(lambda: [step.run(sample) for sample in step.samples] and None)
    return sum(tensor.nbytes for tensor in kept) + rise, seconds


def judged(build: Build, truth: StepTruth, *, to_the_bit: bool) -> ErrorReport:
    """The verdict, with what was changed in this process undone. Raises Refused."""
    built: list[TrainingStep] = []

    def noted(step: TrainingStep) -> TrainingStep:
        built.append(build(step))
        return built[-1]

    try:
        return verify_step(noted, truth, to_the_bit=to_the_bit)
    finally:
        for step in built:
            step.undo()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    ways = [*HONEST, *WRONG]
    parser.add_argument("--ways", nargs="*", default=ways, choices=ways, metavar="WAY", help=", ".join(ways))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = [row for model in given.only for seed in range(given.seeds) for row in rows_of(model, seed, given.ways)]
    honest = [row for row in rows if row["way"] in HONEST]
    wrong = [row for row in rows if row["way"] in WRONG]
    print(f"{sum(row['right'] for row in honest)} of {len(honest)} honest runs accepted,", end=" ")
    print(f"{sum(row['right'] for row in wrong)} of {len(wrong)} wrong ones refused")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
