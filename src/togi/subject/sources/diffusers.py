"""Subjects ``diffusers:X``: a pipeline of diffusers from a folder or the cache of the Hub, called as its users call it.

What takes its time are the same modules in every step, so few steps are enough to tune them.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from typing import Any

import torch

from togi.core.errors import SubjectError
from togi.core.permits import Permit, permitted
from togi.subject.hub import check_files, in_cache
from togi.subject.inputs import Inputs, Subject
from togi.subject.locator import Spec
from togi.subject.model_folders import components
from togi.subject.own_code import check_own_code
from togi.subject.program import ProgramModule
from togi.subject.sources.media import TEXTS, picture
from togi.subject.sources.missing_weights import check_made_up, noting_made_up

STEPS = 4
_PICTURES = ("image", "mask_image", "control_image")


def from_diffusers(locator: Spec, seed: int) -> Subject:
    """Options: ``steps`` (4), and ``size`` of the picture in pixels (the pipeline's own).

    Raises SubjectError where it cannot be loaded without unpickling or foreign code, or takes what togi does not make.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
    folder = locator if locator.path.is_dir() else in_cache(locator)
    check_own_code(locator.text, locator.form, folder.path)
    _check_weights(folder)
    pipe = _loaded(locator, str(folder.path))
    pipe.set_progress_bar_config(disable=True)
    return Subject(ProgramModule(pipe), Inputs((), _arguments(locator, pipe, seed)))


def _check_weights(locator: Spec) -> None:
    """Each part with weights has them as safetensors: else those of other libraries than diffusers are unpickled."""
    for pickled in (file for end in ("bin", "pt", "ckpt", "pth") for file in locator.path.glob(f"*/*.{end}")):
        if not any(pickled.parent.glob("*.safetensors")):
            raise SubjectError(
                f"{locator.text}: {pickled} is pickled, and togi does not unpickle. Convert it once: "
                "DiffusionPipeline.from_pretrained(DIR).save_pretrained(NEW_DIR) writes safetensors"
            )
    for name in components(locator.text, locator.path):
        check_files(locator, locator.path / name)


def _loaded(locator: Spec, folder: str) -> Any:
    import diffusers
    import transformers

    options = {"trust_remote_code": permitted(Permit.REMOTE_CODE), "use_safetensors": True, "local_files_only": True}
    with_accelerate = importlib.util.find_spec("accelerate") is not None  # else it warns that it is not there
    pipeline_class: Any = diffusers.DiffusionPipeline
    try:
        with noting_made_up(transformers.PreTrainedModel, diffusers.ModelMixin) as made_up:
            pipe = pipeline_class.from_pretrained(folder, low_cpu_mem_usage=with_accelerate, **options)
        check_made_up(locator, made_up)
        return pipe
    except SubjectError:
        raise
    except Exception as error:  # foreign code
        if "trust_remote_code" in str(error):
            raise SubjectError(
                f"{locator.text}: it has code of its own, and togi runs no downloaded code unasked: it may do whatever "
                f"you may. Read the .py files in {folder}. If you trust them, add {Permit.REMOTE_CODE.how}"
            ) from error
        raise locator.failed("diffusers cannot load it", error) from error


def _arguments(locator: Spec, pipe: Any, seed: int) -> dict[str, Any]:
    """What the pipeline takes of what togi can make."""
    taken = inspect.signature(type(pipe).__call__).parameters
    size = locator.integer("size")
    side = size or _own_side(pipe)
    made = {
        "prompt": TEXTS[1],
        "num_inference_steps": locator.integer("steps") or STEPS,
        "output_type": "np",
        "generator": torch.Generator().manual_seed(seed),
        **dict.fromkeys(("height", "width"), size),
        **{name: picture(side, side, seed + i) for i, name in enumerate(_PICTURES)},
    }
    missing = [name for name, each in list(taken.items())[1:] if _is_required(each) and name not in made]
    if missing:
        raise SubjectError(
            f"{locator.text}: {type(pipe).__name__} needs {', '.join(missing)}, which togi does not make up. Write a "
            "function that returns the pipeline with inputs of your own, and give file.py:function"
        )
    if size is not None and "height" not in taken and not set(_PICTURES) & set(taken):
        raise SubjectError(f"{locator.text}: {type(pipe).__name__} makes pictures of one size: leave 'size' out")
    return {name: value for name, value in made.items() if name in taken and value is not None}


def _is_required(parameter: inspect.Parameter) -> bool:
    variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variable


def _own_side(pipe: Any) -> int:
    network = getattr(pipe, "unet", None) or getattr(pipe, "transformer", None)
    sample = getattr(getattr(network, "config", None), "sample_size", None)
    return int(sample) * int(getattr(pipe, "vae_scale_factor", 1)) if isinstance(sample, int) else 512
