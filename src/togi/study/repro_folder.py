"""A folder that repeats one trial without togi: a script, the exported model, its inputs and the original's outputs.

The script needs torch, safetensors and the backend alone, so it can go into a bug report. The rewrites, layout and
precision of the recipe are in the exported model already; the engine and the runtime settings are in the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from togi.artifact.links import EAGER
from togi.core.errors import Refused, TogiError
from togi.core.records import Choice, Recipe, Stage
from togi.graph.candidate import Candidate
from togi.graph.capture import export
from togi.study.repro import ReproRequest, ReproWritten
from togi.study.repro_step import BlockNames, BlocksAsked, check_options, quoted
from togi.subject.architecture import repeated_parts
from togi.subject.inputs import Subject
from togi.techniques import Engine, technique
from togi.techniques.build import build, classify, first_candidate
from togi.torch_internals.archive import save_exported

_SCRIPT = '''"""Repeats the trial "{label}" of {subject} without togi.

    python repro.py

Needs torch {torch}{packages} and safetensors.
model.pt2: the module, flattened to tensors in and out{rewritten}.
inputs.safetensors: the samples. expected.safetensors: what the original answered in eager mode.
"""

import contextlib
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

here = Path(__file__).resolve().parent


def read(name):
    """Tensors named "sample.position", as one list a sample."""
    found = {{}}
    for key, tensor in load_file(here / name).items():
        sample, position = map(int, key.split("."))
        found.setdefault(sample, {{}})[position] = tensor
    return [[found[s][p] for p in sorted(found[s])] for s in sorted(found)]


def wait():
    """A GPU works on after a call returns."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


devices = {devices}
samples = [[t.to(device) for t, device in zip(s, devices)] for s in read("inputs.safetensors")]
expected = read("expected.safetensors")
program = torch.export.load(here / "model.pt2")
{settings}
with {context}():
{engine}

    for number, (inputs, wanted) in enumerate(zip(samples, expected)):
        outputs = run(*inputs)
        for position, (found, want) in enumerate(zip(outputs, wanted)):
            error = (found.cpu().double() - want.double()).norm() / want.double().norm().clamp_min(1e-300)
            print(f"sample {{number}}, output {{position}}: relative error {{error:.2e}}")
        times = []
        for _ in range(20):
            wait()
            began = time.perf_counter()
            run(*inputs)
            wait()
            times.append(time.perf_counter() - began)
        print(f"sample {{number}}: {{1e3 * sorted(times)[10]:.3f}} ms (median of 20)")
'''


def write(subject: Subject, request: ReproRequest) -> ReproWritten:
    """Write the folder; runs in a child. Raises TogiError with the reason why there is no script of this recipe."""
    start = first_candidate(subject, request.facts, request.signature)
    try:
        _write(request.recipe, start, request.subject, Path(request.out))
    except Exception as error:  # foreign code: a technique and the backend below it
        reason = classify(error, "repro").reason
        raise TogiError(f"'{request.recipe.label}' has no repro script: {reason}.") from error
    return ReproWritten()


def names_of_blocks(subject: Subject, request: BlocksAsked) -> BlockNames:  # noqa: ARG001 - it is typed
    """Of the module's blocks that repeat; runs in a child."""
    repeated = {id(part) for parts in repeated_parts(subject.module) for part in parts}
    return BlockNames(names=tuple(name for name, part in subject.module.named_modules() if id(part) in repeated))


def _write(recipe: Recipe, start: Candidate, subject: str, folder: Path) -> None:
    """``start`` is the subject before any technique.

    Raises Refused: the model cannot be exported, or the engine or another technique has no script form.
    """
    check_options(recipe)
    settings, lines = _settings(recipe), _engine_lines(recipe)
    graph_stages = (Stage.REWRITE, Stage.LAYOUT, Stage.PRECISION)
    prefix = Recipe(choices=tuple(c for c in recipe.choices if c.stage in graph_stages))
    program = export(build(prefix, start))
    folder.mkdir(parents=True, exist_ok=True)
    save_exported(program, folder / "model.pt2")
    save_file(_named(start.flat_samples()), folder / "inputs.safetensors")
    save_file(_named(_eager_outputs(start)), folder / "expected.safetensors")
    script = _script(recipe, subject, settings, lines, prefix, start.signature.devices)
    (folder / "repro.py").write_text(script, encoding="utf-8")


def _settings(recipe: Recipe) -> str:
    """What is set before all calls."""
    settings = []
    for choice in recipe.choices:
        if choice.stage is not Stage.ENGINE:
            lines = technique(choice.technique).repro_setting(dict(choice.options))
            if lines is None:
                raise Refused(f"{choice.label} has no script form")
            settings += [lines] * bool(lines)
    return "\n".join(settings)


def _engine_lines(recipe: Recipe) -> str:
    choice = next(iter(recipe.at(Stage.ENGINE)), Choice(stage=Stage.ENGINE, technique=EAGER))
    engine = technique(choice.technique)
    lines = engine.repro(dict(choice.options), _threads(recipe)) if isinstance(engine, Engine) else None
    if lines is None:
        raise Refused(f"{choice.label} has no script form")
    return lines


def _threads(recipe: Recipe) -> int | None:
    choice = recipe.find("threads")
    return int(str(choice.options["count"])) if choice else None


def _eager_outputs(start: Candidate) -> list[list[Tensor]]:
    flat = start.flat()
    with torch.no_grad():
        return [list(flat(*tensors)) for tensors in start.flat_samples()]


def _named(samples: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
    """Contiguous copies, so that safetensors takes views and tensors given twice."""
    return {
        f"{number}.{position}": tensor.detach().contiguous().clone()
        for number, tensors in enumerate(samples)
        for position, tensor in enumerate(tensors)
    }


def _script(recipe: Recipe, subject: str, settings: str, lines: str, prefix: Recipe, devices: Sequence[str]) -> str:
    """``devices``: of every flat input."""
    needed = [p.distribution for c in recipe.choices for p in technique(c.technique).packages]
    return _SCRIPT.format(
        label=quoted(recipe.label),
        subject=quoted(subject),
        torch=torch.__version__,
        packages="".join(f", {name}" for name in needed),
        rewritten=f", after {quoted(prefix.label)}" if prefix.choices else "",
        settings=settings,
        devices=list(devices),
        context=_context(recipe),
        engine="\n".join(f"    {line}" for line in lines.splitlines()),
    )


def _context(recipe: Recipe) -> str:
    for mode in ("inference_mode", "no_grad"):
        if recipe.find(mode):
            return f"torch.{mode}"
    return "contextlib.nullcontext"
