"""What an artifact's files are proven for: the chosen engine's, and those of the fallback that stands in for it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.artifact.small_artifacts import make
from togi.artifact.links import write_links
from togi.artifact.load import FallbackWarning, load, load_link
from togi.artifact.manifest import Link, Saved
from togi.artifact.reach import proven
from togi.artifact.save import write_manifest
from togi.core.records import Outcome, Trial
from togi.subject.domain import Domain
from togi.subject.inputs import Subject
from togi.subject.prepare import prepare
from togi.techniques import recipe
from togi.techniques.build import build, first_candidate
from togi.techniques.engine.onnxruntime import OnnxRuntime
from togi.verify.beyond import Reach, reach_of
from togi.verify.original import Original
from togi.worker.survey import survey

ENGINE, FALLBACK = (Link(engine=name, folder=name, meta={}) for name in ("onnxruntime", "eager"))
BOTH = Saved(links=(ENGINE, FALLBACK))
FEW, FEWER = (Domain(low=-9, high=9),), (Domain(low=-2, high=99),)


def asked(
    live: Reach | None, files: Reach | str, *, exported: bool, written: Saved = BOTH
) -> tuple[Saved, list[float]]:
    """What is proven where the program and the stored files answer so, and how long each was asked."""
    limits: list[float] = []

    def stored(_: Link) -> Any:
        if isinstance(files, str):
            raise MemoryError if files == "no memory" else RuntimeError(files)
        return files

    def ask(call: Any, *, limit_s: float) -> Any:
        limits.append(limit_s)
        return call

    saved: Any = live
    return proven(written, saved, stored, ask, 8.0, exported=exported), limits


def test_a_fallback_that_is_proven_for_less_takes_less() -> None:
    found, limits = asked(Reach(FEW), Reach(FEWER), exported=False)
    assert found.domains == FEW
    assert [link.domains for link in found.links] == [(), (Domain(low=-2, high=9),)]
    assert limits[0] == 6.0
    assert 2.0 <= limits[1] <= 8.0


def test_a_fallback_that_is_proven_for_as_much_says_nothing_more() -> None:
    assert asked(Reach(FEW), Reach(()), exported=False)[0].links == BOTH.links


@pytest.mark.parametrize("files", [Reach((), problems=("it is wrong for ties",)), "it does not load"])
def test_a_fallback_that_is_wrong_is_left_out_and_said(files: Reach | str) -> None:
    found, _ = asked(Reach(FEW), files, exported=False)
    assert found.links == (ENGINE,)
    assert not found.wrong
    assert "no fallback for machines that cannot run onnxruntime: " in found.notes[-1]
    assert "wrong for ties" in found.notes[-1] or "does not load" in found.notes[-1]


def test_a_fallback_for_which_no_memory_was_left_stays_and_that_is_said() -> None:
    found, _ = asked(Reach(FEW), "no memory", exported=False)
    assert found.links == BOTH.links
    assert "no memory was left to ask the files of eager" in found.notes[-1]
    assert not asked(None, "no memory", exported=True, written=Saved(links=(FALLBACK,)))[0].wrong


def test_where_the_chosen_engine_stores_the_same_export_what_is_wrong_with_that_is_wrong_with_both() -> None:
    found, _ = asked(Reach(FEW), Reach(FEWER), exported=True)
    assert found.domains == (Domain(low=-2, high=9),)
    assert all(not link.domains for link in found.links)
    assert asked(Reach(()), Reach((), problems=("ties",)), exported=True)[0].wrong == "ties"


def test_settings_of_the_original_have_all_of_the_time_for_their_files() -> None:
    found, limits = asked(None, Reach(FEW), exported=True, written=Saved(links=(FALLBACK,)))
    assert found.domains == FEW
    assert limits[0] == pytest.approx(8.0, abs=0.1)


def test_what_is_wrong_before_its_files_are_asked_is_not_asked_further() -> None:
    found, limits = asked(Reach((), problems=("ties",)), Reach(()), exported=False)
    assert found.wrong == "ties"
    assert len(limits) == 1


class Shortcut(nn.Module):
    """What eager alone computes is in no export."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y if torch.compiler.is_exporting() else torch.where(x.amax() > 50, y * 0 + 7, y)


def made(folder: Path, **engine: Any) -> Saved:
    """An artifact of it, proven as a study does."""
    torch.manual_seed(0)
    subject, chosen = Subject(Shortcut().eval(), [(torch.randn(64, 8),)]), recipe(**engine, no_grad={})
    found = survey(subject)
    start = first_candidate(subject, found.facts, found.signature)
    folder.mkdir()
    built = build(chosen, start)
    links, _ = write_links(built, start, chosen, folder)
    original = Original(prepare(subject).module, found.signature, seed=0)
    ask = functools.partial(reach_of, original=original, samples=start.samples)
    stored = lambda link: load_link(folder, found.signature, found.facts, link, native=True).runnable()  # noqa: E731
    live = built.runnable() if engine else None
    saved = proven(Saved(links=links), live, stored, ask, 5.0, exported=not engine)
    write_manifest(
        folder,
        subject="Shortcut",
        recipe=chosen,
        signature=found.signature.within(saved.domains),
        facts=found.facts,
        proof=Trial(recipe=chosen, outcome=Outcome.OK),
        chain=saved.links,
        environment={},
    )
    return saved


def test_what_an_export_lacks_of_the_original_is_refused(tmp_path: Path) -> None:
    """Also where nothing but settings was chosen: files hold an export, not the original."""
    assert made(tmp_path / "plain.togi").domains
    with pytest.raises(ValueError, match="was proven for values from"):
        load(tmp_path / "plain.togi")(torch.full((64, 8), 60.0))


def test_a_loaded_fallback_refuses_what_it_alone_was_not_proven_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "net.togi"
    manifest = make(folder, recipe(onnxruntime={"spinning": False}, no_grad={}))
    domains = tuple(
        Domain(low=-5, high=5) if "x" in facts.name else Domain() for facts in manifest.signature.inputs_facts
    )
    chain = (manifest.chain[0], manifest.chain[1].model_copy(update={"domains": domains}))
    fields = ("subject", "recipe", "signature", "facts", "proof", "environment")
    write_manifest(folder, **{name: getattr(manifest, name) for name in fields}, chain=chain)
    large = {"x": torch.full((3, 8), 6.0), "scale": torch.ones(3, 4)}
    chosen = load(folder)
    assert chosen(**large)["y"].isfinite().all()

    def broken(*_: object) -> None:
        raise OSError("illegal instruction")

    monkeypatch.setattr(OnnxRuntime, "load", broken)
    with pytest.warns(FallbackWarning):
        fallback = load(folder)
    with pytest.raises(ValueError, match="was proven for values from"):
        fallback(**large)
    small = {**large, "x": large["x"] / 3}
    torch.testing.assert_close(fallback(**small), chosen(**small), rtol=1e-4, atol=1e-5)
    assert fallback.signature.domains == domains
