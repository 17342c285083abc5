"""Code that comes with a model is found by togi itself: older libraries run what lies in a local folder."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.subject.made_hub import in_cache
from tests.subject.made_strange import RAN, STRANGE, strange_folder
from togi.core.errors import SubjectError
from togi.core.permits import Permit, permitting
from togi.subject.locator import check_locator
from togi.subject.own_code import check_own_code
from togi.worker.locate import locate

FORMS = {"modules.json": "sentence-transformers", "model_index.json": "diffusers"}
REFUSED = r"has code of its own.*no downloaded code unasked.*add --trust-remote-code"


class OldLoader:
    """As libraries were: whoever has a file in a local folder is trusted."""

    def __init__(self, folder: str, **_: Any) -> None:
        for file in Path(folder).rglob("*.py"):
            spec = importlib.util.spec_from_file_location(file.stem, file)
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        raise RuntimeError("the old loader was reached")

    @classmethod
    def from_pretrained(cls, folder: str, **options: Any) -> OldLoader:
        return cls(folder, **options)


@pytest.fixture(autouse=True)
def old_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentence_transformers.SentenceTransformer", OldLoader)
    monkeypatch.setattr("diffusers.DiffusionPipeline", OldLoader)


@pytest.mark.parametrize("what", STRANGE)
def test_code_of_a_folder_is_not_run_by_any_way_in(tmp_path: Path, what: str) -> None:
    entry, changed = STRANGE[what]
    name = f"{FORMS[entry]}:{strange_folder(tmp_path / 'm', entry, changed)}"
    for way_in in (check_locator, locate):
        with pytest.raises(SubjectError, match=REFUSED):
            way_in(name)
    assert not (tmp_path / RAN).exists()
    with permitting([Permit.REMOTE_CODE]), pytest.raises(SubjectError, match="the old loader was reached"):
        locate(name)
    assert (tmp_path / RAN).exists(), "or this test would not notice that code is run"


@pytest.mark.parametrize("entry", FORMS)
def test_a_folder_of_what_libraries_have_needs_no_permit(tmp_path: Path, entry: str) -> None:
    folder = strange_folder(tmp_path / "m", entry, {})
    assert not check_own_code("it", FORMS[entry], folder)
    check_locator(f"{FORMS[entry]}:{folder}")


@pytest.mark.parametrize("entry", FORMS)
def test_a_source_looks_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    """The folder may have changed since its name was checked."""
    name = f"{FORMS[entry]}:{strange_folder(tmp_path / 'm', entry, {})}"
    spec = check_locator(name)
    strange = next(changed for kind, changed in STRANGE.values() if kind == entry)
    strange_folder(tmp_path / "m", entry, strange)
    monkeypatch.setattr("togi.worker.locate.check_locator", lambda _: spec)
    with pytest.raises(SubjectError, match=REFUSED):
        locate(name)
    assert not (tmp_path / RAN).exists()


def test_a_snapshot_in_the_cache_is_a_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    in_cache(tmp_path / "hub", "someone/evil", strange_folder(tmp_path / "m", *STRANGE["a component"]))
    (part,) = (tmp_path / "hub").glob("*/snapshots/*/unet")
    (part / "diffusion_pytorch_model.safetensors").write_bytes(b"")
    with pytest.raises(SubjectError, match=REFUSED):
        check_locator("diffusers:someone/evil")


@pytest.mark.parametrize("path", ["../other", "/etc", 3, None])
def test_a_module_in_another_folder_is_damage(tmp_path: Path, path: Any) -> None:
    folder = strange_folder(tmp_path / "m", "modules.json", {})
    kind = "sentence_transformers.models.Dense"
    document = [{"type": kind, "path": path}] if path is not None else {"type": kind}
    (folder / "modules.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(SubjectError, match=r"modules\.json.*it is damaged"):
        check_locator(f"sentence-transformers:{folder}")


def test_a_tokenizer_of_its_own_counts_where_it_is_read(tmp_path: Path) -> None:
    folder = strange_folder(tmp_path / "m", *STRANGE["a tokenizer"])
    check_locator(f"transformers:{folder}")
    with pytest.raises(SubjectError, match=REFUSED):
        check_locator(f"transformers:{folder}?task=fill-mask")


def test_an_architecture_of_its_own_of_a_known_type(tmp_path: Path) -> None:
    folder = strange_folder(tmp_path / "m", *STRANGE["an architecture"])
    for way_in in (check_locator, locate):
        with pytest.raises(SubjectError, match=r"no class 'Evil'.*--trust-remote-code"):
            way_in(f"transformers:{folder}")
