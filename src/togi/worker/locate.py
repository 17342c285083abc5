"""From a locator to the subject: builds the module, runs nothing.

``locate`` is called in a trial server, which forks a child per trial, so whatever a call of the module would start or
leave behind stays out of it: the first one (whether the inputs fit) is made by ``togi.worker.survey`` in a child.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from togi.core.errors import SubjectError
from togi.subject.hub import in_cache, offline
from togi.subject.inputs import Subject
from togi.subject.locator import Form, Spec, check_locator, parse, readable
from togi.subject.validation import Validation

_OF_THE_USER: frozenset[Form] = frozenset({"file", "package", "lightning"})
"""Code of the user's own, which may ask whom it likes."""


def locate(text: str, *, seed: int = 0) -> Subject:
    """The subject that a locator names (its forms: ``togi.subject.locator``). May import torch and the user's code.

    Models of timm, torchvision and transformers get random weights from ``seed``, unless their weights are in a local
    file; nothing is downloaded without the permit for it.

    Raises SubjectError (cannot be found or built) or UnknownNameError (with the nearest name).
    """
    if parse(text).form not in _OF_THE_USER:
        offline()
    locator = check_locator(text)
    with readable(text), _seeded(seed):
        subject = _build(locator, seed)
    return dataclasses.replace(subject, mode=locator.options["mode"]) if "mode" in locator.options else subject


def locate_validation(text: str) -> Validation:
    """The validation data that ``FILE:function`` names. Raises SubjectError or UnknownNameError as ``locate``."""
    from togi.subject.sources.factory import validation_from

    with _seeded(0):
        return validation_from(_function(text, "validation data as data.py:validation"))


def locate_metric(text: str) -> Callable[..., float]:
    """The function that ``FILE:function`` names, which is not called. Raises as ``locate_validation``."""
    from togi.subject.sources.factory import metric_from

    with _seeded(0):
        return metric_from(_function(text, "a metric as metric.py:score"))


def locate_calibration(text: str) -> Any:
    """What ``FILE:function`` returns, else the folder that is named. Raises as ``locate_validation``."""
    from togi.subject.sources.factory import calibration_from

    if ":" not in text:
        return text
    with _seeded(0):
        return calibration_from(_function(text, "calibration data as data.py:calibration"))


def _function(text: str, give: str) -> Spec:
    locator = check_locator(text)
    if locator.form not in ("file", "package"):
        raise SubjectError(f"{text} names no function: give {give}")
    return locator


def _build(locator: Spec, seed: int) -> Subject:
    match locator.form:
        case "file" | "package":
            from togi.subject.sources.factory import from_factory

            return from_factory(locator)
        case "timm":
            from togi.subject.sources.timm import from_timm

            return from_timm(locator, seed)
        case "torchvision":
            from togi.subject.sources.torchvision import from_torchvision

            return from_torchvision(locator, seed)
        case "transformers":
            from togi.subject.sources.transformers import from_transformers

            return from_transformers(locator, seed)
        case "hf":
            from togi.subject.sources.transformers import from_transformers

            return from_transformers(in_cache(locator), seed)
        case "sentence-transformers":
            from togi.subject.sources.sentence_transformers import from_sentence_transformers

            return from_sentence_transformers(locator)
        case "diffusers":
            from togi.subject.sources.diffusers import from_diffusers

            return from_diffusers(locator, seed)
        case "ultralytics":
            from togi.subject.sources.ultralytics import from_ultralytics

            return from_ultralytics(locator, seed)
        case "lightning":
            from togi.subject.sources.lightning import from_checkpoint

            return from_checkpoint(locator, seed)
        case "exported":
            from togi.subject.sources.exported import from_exported

            return from_exported(locator, seed)
        case "torchscript":
            from togi.subject.sources.torchscript import from_torchscript

            return from_torchscript(locator, seed)
        case "artifact":
            return _from_artifact(locator, seed)


def _from_artifact(locator: Spec, seed: int) -> Subject:
    """The optimized module, on inputs made from its signature. Raises ArtifactError as ``togi.load`` does."""
    from togi.artifact.load import load
    from togi.subject.made_inputs import samples_from_signature

    optimized = load(locator.path)
    return Subject(optimized, list(samples_from_signature(optimized.signature, seed)))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random weights and inputs are the same in every process; the caller's generators are left as they were."""
    from togi.subject.behaviour import kept_generators, seed_all

    with kept_generators():
        seed_all(seed)
        yield
