"""From a subject's name to the subject: builds the module, runs nothing.

``locate`` is called in a trial server, which forks a child per trial, so whatever a call of the module would start or
leave behind stays out of it: the first one (whether the inputs fit) is made by ``togi.worker.survey`` in a child.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from togi.subject.inputs import Subject
from togi.subject.spec import Spec, check_spec, parse


def locate(spec: str, *, seed: int = 0) -> Subject:
    """The subject that ``spec`` names (its forms: ``togi.subject.spec``). May import torch and the user's code.

    Models of timm, torchvision and transformers get random weights from ``seed``, unless their weights are in a local
    file; nothing is downloaded.

    Raises SubjectError (cannot be found or built) or UnknownNameError (with the nearest name).
    """
    check_spec(spec)
    parsed = parse(spec)
    with _seeded(seed):
        subject = _build(parsed, seed)
    return dataclasses.replace(subject, mode=parsed.options["mode"]) if "mode" in parsed.options else subject


def _build(spec: Spec, seed: int) -> Subject:
    match spec.form:
        case "file" | "package":
            from togi.subject.sources.factory import from_factory

            return from_factory(spec)
        case "timm":
            from togi.subject.sources.timm import from_timm

            return from_timm(spec, seed)
        case "torchvision":
            from togi.subject.sources.torchvision import from_torchvision

            return from_torchvision(spec, seed)
        case "transformers":
            from togi.subject.sources.transformers import from_transformers

            return from_transformers(spec, seed)
        case "exported":
            from togi.subject.sources.exported import from_exported

            return from_exported(spec, seed)
        case "torchscript":
            from togi.subject.sources.torchscript import from_torchscript

            return from_torchscript(spec, seed)
        case "artifact":
            return _from_artifact(spec, seed)


def _from_artifact(spec: Spec, seed: int) -> Subject:
    """The optimized module, on inputs made from its signature. Raises ArtifactError as ``togi.load`` does."""
    from togi.artifact.load import load
    from togi.subject.made_inputs import samples_from_signature

    optimized = load(spec.path)
    return Subject(optimized, list(samples_from_signature(optimized.signature, seed)))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random weights and inputs are the same in every process; the caller's generators are left as they were."""
    from togi.subject.behaviour import kept_generators, seed_all

    with kept_generators():
        seed_all(seed)
        yield
