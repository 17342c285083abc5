"""Writes artifacts as a study does, but of any recipe and without a trial. Benchmarks use it as well."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from togi.artifact.links import EAGER, write_links
from togi.artifact.load import load_link
from togi.artifact.manifest import Link, Manifest, Saved
from togi.artifact.reach import proven
from togi.artifact.save import write_manifest
from togi.core.records import Facts, Outcome, Recipe, Trial
from togi.graph.candidate import Candidate
from togi.subject.inputs import Subject
from togi.subject.prepare import prepare
from togi.subject.signature import Signature
from togi.techniques.build import build, first_candidate
from togi.verify.beyond import reach_of
from togi.verify.original import Original
from togi.worker.survey import survey


@dataclass(frozen=True)
class ArtifactMaker:
    """Makes artifacts of one subject."""

    subject: Subject
    name: str
    """Of the subject, as manifests have it."""
    facts: Facts
    signature: Signature

    @classmethod
    def of(cls, subject: Subject, name: str, *, callers: int = 1) -> ArtifactMaker:
        known = survey(subject, callers=callers)
        return cls(subject, name, known.facts, known.signature)

    @functools.cached_property
    def start(self) -> Candidate:
        return first_candidate(self.subject, self.facts, self.signature)

    def make(self, folder: Path, chosen: Recipe, **about: Any) -> Manifest:
        """An artifact of which nothing is proven. ``about``: what its manifest says of it, instead or beyond."""
        folder.mkdir()
        links, _ = write_links(build(chosen, self.start), self.start, chosen, folder)
        return self.write_manifest(folder, chosen, links, **about)

    def make_proven(self, folder: Path, chosen: Recipe, built: Candidate, limit_s: float) -> Saved:
        """An artifact that is asked for values beyond the samples, for ``limit_s``. A wrong one gets no manifest."""
        folder.mkdir()
        links, _ = write_links(built, self.start, chosen, folder)
        original = Original(prepare(self.subject).module, self.signature, seed=0)
        ask = functools.partial(reach_of, original=original, samples=self.start.samples)

        def stored(link: Link) -> Any:
            return load_link(folder, self.signature, self.facts, link, native=True).runnable()

        live = None if links[0].engine == EAGER else built.runnable()
        exported = built.program is None or built.program.stores_export
        saved = proven(Saved(links=links), live, stored, ask, limit_s, exported=exported)
        if not saved.wrong:
            self.write_manifest(folder, chosen, saved.links, signature=self.signature.within(saved.domains))
        return saved

    def write_manifest(self, folder: Path, chosen: Recipe, chain: tuple[Link, ...], **about: Any) -> Manifest:
        plain = {"signature": self.signature, "proof": Trial(recipe=chosen, outcome=Outcome.OK), "environment": {}}
        return write_manifest(
            folder, subject=self.name, recipe=chosen, facts=self.facts, chain=chain, **{**plain, **about}
        )


def write_with_chain(folder: Path, manifest: Manifest, *chain: Link) -> Manifest:
    """Write the same manifest for a folder with other links."""
    fields = ("subject", "recipe", "signature", "facts", "proof", "environment")
    return write_manifest(folder, **{name: getattr(manifest, name) for name in fields}, chain=chain)
