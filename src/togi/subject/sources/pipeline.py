"""Subjects ``transformers:FOLDER?task=TASK`` and ``hf:ORG/NAME?task=TASK``: the pipeline that users call.

It is called with what it reads: texts of several lengths, a picture of its processor's size, sound of its rate. So the
tokenizer or the processor is part of what is measured.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from togi.core.errors import SubjectError, UnknownNameError
from togi.subject.hub import check_files
from togi.subject.inputs import Inputs, Subject
from togi.subject.locator import Spec
from togi.subject.model_folders import PROCESSOR, TOKENIZER, reads
from togi.subject.own_code import check_own_code
from togi.subject.program import ProgramModule
from togi.subject.sources.media import TEXTS, picture, sound
from togi.subject.sources.missing_weights import check_made_up, noting_made_up

_LABELS = {"candidate_labels": ["a tool", "the weather", "an animal"]}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "feature-extraction": {"return_tensors": True},
    "image-feature-extraction": {"return_tensors": True},
    "text-generation": {"max_new_tokens": 16, "do_sample": False},
    "zero-shot-classification": _LABELS,
    "zero-shot-image-classification": _LABELS,
    "zero-shot-object-detection": _LABELS,
    "zero-shot-audio-classification": _LABELS,
}
"""What a call needs besides its input."""
_PIECES = {
    "_load_tokenizer": ("tokenizer", TOKENIZER, "AutoTokenizer"),
    "_load_image_processor": ("processor of pictures", PROCESSOR, "AutoImageProcessor"),
    "_load_feature_extractor": ("feature extractor", PROCESSOR, "AutoFeatureExtractor"),
    "_load_processor": ("processor", PROCESSOR, "AutoProcessor"),
}
"""By the flag of a pipeline's class that says that it needs one: its name, its files, and what writes them."""
_SECONDS = 2.0


def from_pipeline(locator: Spec, seed: int) -> Subject:
    """Options: ``task``, and ``size`` of a picture in pixels.

    Raises SubjectError where the folder lacks something, or togi makes no inputs for the task.
    """
    os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
    from transformers import PreTrainedModel, pipelines

    _check_options(locator)
    folder = locator.path
    task, described, _ = pipelines.check_task(locator.options["task"])
    kind = reads(task)
    if kind is None:
        raise SubjectError(
            f"{locator.text}: togi makes no inputs for the task {task}, which reads several things at once. Write a "
            "function that returns the pipeline with inputs of your own, and give file.py:function"
        )
    _check_folder(locator, folder, _class(described["impl"]))
    with noting_made_up(PreTrainedModel) as made_up:
        pipe = _loaded(locator, task, folder)
    arguments = _ARGUMENTS.get(task, {})
    samples = [Inputs((given,), arguments) for given in _inputs(locator, pipe, task, kind, seed)]
    call = functools.partial(pipe, *samples[-1].args, **arguments)
    check_made_up(locator, made_up, call, answers_count="return_tensors" in arguments)
    return Subject(ProgramModule(pipe), samples)


def _check_options(locator: Spec) -> None:
    other = [name for name in locator.options if name not in ("task", "size")]
    if other:
        raise UnknownNameError(
            f"{locator.text}: {other[0]} is an option of the model alone, and with a task the whole pipeline is "
            "called: leave it out. A pipeline takes task and size"
        )
    if not locator.path.is_dir():
        raise SubjectError(
            f"{locator.text}: a pipeline needs a tokenizer or a processor next to its weights: name a folder that "
            "holds them, or hf:ORG/NAME"
        )


def _class(implementation: Any) -> type:
    """Newer versions name it."""
    if not isinstance(implementation, str):
        return implementation  # type: ignore[no-any-return]
    import importlib

    module, _, name = implementation.rpartition(".")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def _check_folder(locator: Spec, folder: Path, pipeline_class: type) -> None:
    """That all pieces are there: where a tokenizer is missing, transformers may make one up that knows no words."""
    check_files(locator)
    for flag, (piece, files, cls) in _PIECES.items():
        if getattr(pipeline_class, flag, None) is True and not any((folder / file).exists() for file in files):
            raise SubjectError(
                f"{locator.text}: {folder} holds no {piece} ({' or '.join(files[:2])}), without which the pipeline "
                f"cannot read anything. Put it there: {cls}.from_pretrained(ORIGINAL).save_pretrained({str(folder)!r})"
            )
    if not any(folder.glob("*.safetensors")):
        pickled = any(folder.glob("*.bin"))
        why = "its weights are pickled, and togi does not unpickle" if pickled else "it holds no weights"
        raise SubjectError(
            f"{locator.text}: {why}. Where the original can be loaded, MODEL.save_pretrained({str(folder)!r}) writes "
            "safetensors"
        )


def _loaded(locator: Spec, task: str, folder: Path) -> Any:
    import transformers

    build: Any = transformers.pipeline  # its types list every task
    trusted = check_own_code(locator.text, locator.form, folder, reads=True)
    try:
        return build(task, model=str(folder), device="cpu", trust_remote_code=trusted)
    except Exception as error:  # foreign code
        raise locator.failed("transformers cannot build the pipeline", error) from error


def _inputs(locator: Spec, pipe: Any, task: str, kind: str, seed: int) -> list[Any]:
    if kind == "picture":
        height, width = _size(locator, pipe)
        return [picture(height, width, seed)]
    if kind == "sound":
        return [sound(int(pipe.feature_extractor.sampling_rate), _SECONDS, seed)]
    if task == "fill-mask":
        return [f"{text.rpartition(' ')[0]} {pipe.tokenizer.mask_token}." for text in TEXTS[:3]]
    return list(TEXTS[:3])


def _size(locator: Spec, pipe: Any) -> tuple[int, int]:
    """Height and width that the processor makes of a picture, unless ``size`` asks for another."""
    if side := locator.integer("size"):
        return side, side
    processor = pipe.image_processor
    for asked in (getattr(processor, "crop_size", None), getattr(processor, "size", None)):
        if isinstance(asked, int):
            return asked, asked
        found = dict(asked or {})
        if {"height", "width"} <= set(found):
            return int(found["height"]), int(found["width"])
        if "shortest_edge" in found:
            return int(found["shortest_edge"]), int(found["shortest_edge"])
    return 224, 224
