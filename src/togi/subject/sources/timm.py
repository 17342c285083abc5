"""Subjects ``timm:NAME``: any model of timm, with random weights or published ones, at the input size of its own
configuration."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from togi.core.errors import SubjectError
from togi.core.permits import Permit
from togi.subject.catalogue import check_installed
from togi.subject.hub import NotCachedError, cached_file, or_downloaded
from togi.subject.inputs import Subject
from togi.subject.locator import Spec
from togi.subject.made_inputs import made_tensor
from togi.subject.sources.weights import give_weights

_FILE = "model.safetensors"


def from_timm(locator: Spec, seed: int) -> Subject:
    """Options: ``batch`` (1), ``size`` (height and width in pixels), ``classes``, ``weights`` (a .safetensors file) or
    ``pretrained`` (those of the Hub in the cache of this machine).

    Raises SubjectError when timm cannot build it or it does not take that size.
    """
    import timm

    size = locator.integer("size")
    module = _create(timm, locator, size)
    channels, height, width = module.pretrained_cfg.get("input_size") or (3, 224, 224)
    if size is not None:
        height = width = size
    give_weights(module, _with_published(locator, module) if "pretrained" in locator.options else locator, seed)
    shape = (locator.integer("batch") or 1, channels, height, width)
    return Subject(module.eval(), made_tensor(torch.float32, shape, torch.Generator().manual_seed(seed)))


def _create(timm: Any, locator: Spec, size: int | None) -> Any:
    options: dict[str, Any] = {} if locator.integer("classes") is None else {"num_classes": locator.integer("classes")}
    config = timm.get_pretrained_cfg(locator.target)
    if size is not None and config is not None and config.fixed_input_size:
        options["img_size"] = size  # transformers with one position embedding per patch are built for one size
    try:
        return timm.create_model(locator.target, pretrained=False, **options)
    except Exception as error:  # foreign code: timm raises its own and its models' errors
        raise locator.failed("timm cannot build it", error) from error


def _with_published(locator: Spec, module: Any) -> Spec:
    """The locator with the file of the published weights. Raises SubjectError where they are not in the cache."""
    if "weights" in locator.options:
        raise SubjectError(f"{locator.text}: weights and pretrained both say which weights to load: give one of them")
    name = module.pretrained_cfg.get("hf_hub_id")
    if not name:
        raise SubjectError(f"{locator.text}: timm names no published weights of it: leave 'pretrained' out")
    check_installed("huggingface_hub")

    def find() -> Path:
        if (found := cached_file(name, _FILE)) is not None:
            return found
        raise NotCachedError(
            f"{locator.text}: its published weights ({name}) are not in the cache of this machine, and togi downloads "
            f"nothing. Type: hf download {name} {_FILE}, or add {Permit.DOWNLOAD.how}"
        )

    found = or_downloaded(locator, find, name, [_FILE])
    return dataclasses.replace(locator, options={**locator.options, "weights": str(found)})
