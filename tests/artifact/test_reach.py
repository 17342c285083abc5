"""What an artifact's files are proven for: the chosen engine's, and those of the fallback that stands in for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.artifact.artifact_maker import ArtifactMaker, write_with_chain
from tests.artifact.small_artifacts import make
from togi.artifact.load import FallbackWarning, load
from togi.artifact.manifest import Link, Saved
from togi.artifact.reach import proven
from togi.subject.domain import Domain
from togi.subject.inputs import Subject
from togi.techniques import recipe
from togi.techniques.build import build
from togi.techniques.engine.onnxruntime import OnnxRuntime
from togi.verify.beyond import Reach

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
def test_a_wrong_fallback_is_left_out_with_a_note(files: Reach | str) -> None:
    found, _ = asked(Reach(FEW), files, exported=False)
    assert found.links == (ENGINE,)
    assert not found.wrong
    assert "no fallback for machines that cannot run onnxruntime: " in found.notes[-1]
    assert "wrong for ties" in found.notes[-1] or "does not load" in found.notes[-1]


def test_a_fallback_stays_with_a_note_when_no_memory_is_left_to_ask_it() -> None:
    found, _ = asked(Reach(FEW), "no memory", exported=False)
    assert found.links == BOTH.links
    assert "no memory was left to ask the files of eager" in found.notes[-1]
    assert not asked(None, "no memory", exported=True, written=Saved(links=(FALLBACK,)))[0].wrong


def test_a_fault_of_an_export_that_both_links_share_counts_for_both() -> None:
    found, _ = asked(Reach(FEW), Reach(FEWER), exported=True)
    assert found.domains == (Domain(low=-2, high=9),)
    assert all(not link.domains for link in found.links)
    assert asked(Reach(()), Reach((), problems=("ties",)), exported=True)[0].wrong == "ties"


def test_settings_of_the_original_have_all_of_the_time_for_their_files() -> None:
    found, limits = asked(None, Reach(FEW), exported=True, written=Saved(links=(FALLBACK,)))
    assert found.domains == FEW
    assert limits[0] == pytest.approx(8.0, abs=0.1)


def test_the_files_of_a_wrong_program_are_not_asked() -> None:
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


def test_what_an_export_lacks_of_the_original_is_refused(tmp_path: Path) -> None:
    """Also where nothing but settings was chosen: files hold an export, not the original."""
    torch.manual_seed(0)
    chosen, folder = recipe(no_grad={}), tmp_path / "plain.togi"
    maker = ArtifactMaker.of(Subject(Shortcut().eval(), [(torch.randn(64, 8),)]), "Shortcut")
    assert maker.make_proven(folder, chosen, build(chosen, maker.start), 5.0).domains
    with pytest.raises(ValueError, match="was proven for values from"):
        load(folder)(torch.full((64, 8), 60.0))


def test_a_loaded_fallback_refuses_what_it_alone_was_not_proven_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "net.togi"
    manifest = make(folder, recipe(onnxruntime={"spinning": False}, no_grad={}))
    domains = tuple(
        Domain(low=-5, high=5) if "x" in facts.name else Domain() for facts in manifest.signature.inputs_facts
    )
    chosen, fallback = manifest.chain
    write_with_chain(folder, manifest, chosen, fallback.model_copy(update={"domains": domains}))
    large = {"x": torch.full((3, 8), 6.0), "scale": torch.ones(3, 4)}
    loaded = load(folder)
    assert loaded(**large)["y"].isfinite().all()

    def broken(*_: object) -> None:
        raise OSError("illegal instruction")

    monkeypatch.setattr(OnnxRuntime, "load", broken)
    with pytest.warns(FallbackWarning):
        standing_in = load(folder)
    with pytest.raises(ValueError, match="was proven for values from"):
        standing_in(**large)
    small = {**large, "x": large["x"] / 3}
    torch.testing.assert_close(standing_in(**small), loaded(**small), rtol=1e-4, atol=1e-5)
    assert standing_in.signature.domains == domains
