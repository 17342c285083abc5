"""Subjects ``NAME.togi``: an artifact, called like the module it was made of, on inputs made from its signature."""

from __future__ import annotations

from togi.subject.inputs import Subject
from togi.subject.made_inputs import samples_from_signature
from togi.subject.spec import Spec


def from_artifact(spec: Spec, seed: int) -> Subject:
    """Raises ArtifactError as ``togi.load`` does."""
    from togi.artifact.load import load

    honed = load(spec.path)
    return Subject(honed, list(samples_from_signature(honed.signature, seed)))
