"""A cache that holds part of a model: it is not taken for the model, and a download fetches the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.subject.made_hub import BERT, COMMIT, hub, in_cache, noise, tiny_model, tokenizer
from togi.core.errors import SubjectError
from togi.core.permits import Permit, permitting
from togi.subject.locator import check_locator
from togi.subject.model_folders import lacking, modules
from togi.worker.locate import locate

NAME = "someone/tiny"


@dataclass(frozen=True)
class Half:
    """What is left of a whole model, and how it is asked for."""

    make: Callable[[Path], None]
    lost: str
    locator: str
    says: str


def sharded(folder: Path) -> None:
    tiny_model("BertModel", **BERT).save_pretrained(folder, max_shard_size="10KB")


def with_tokenizer(folder: Path) -> None:
    tiny_model("BertForMaskedLM", **BERT).save_pretrained(folder)
    tokenizer(folder)


def with_processor(folder: Path) -> None:
    import transformers

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    tiny_model("ResNetForImageClassification", **sizes).save_pretrained(folder)
    transformers.ConvNextImageProcessor(size={"shortest_edge": 32}).save_pretrained(folder)


def static(folder: Path) -> None:
    """It has no config.json above its modules, and no folder for the one that has no files."""
    import sentence_transformers
    import tokenizers
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    tokenizer(folder)
    words = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    shutil.rmtree(folder)
    torch.manual_seed(0)
    module = StaticEmbedding(words, embedding_dim=8)
    sentence_transformers.SentenceTransformer(modules=[module, Normalize()]).save(str(folder))
    (folder / "0_StaticEmbedding").mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).rename(folder / "0_StaticEmbedding" / name)
    document = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    document[0]["path"] = "0_StaticEmbedding"
    (folder / "modules.json").write_text(json.dumps(document), encoding="utf-8")
    for empty in (each for each in folder.iterdir() if each.is_dir() and not any(each.iterdir())):
        empty.rmdir()
    assert not (folder / "config.json").exists()


def sentences(folder: Path) -> None:
    tiny_model("BertModel", **BERT).save_pretrained(folder)
    tokenizer(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    named = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    document = [{"idx": i, "name": str(i), **each} for i, each in enumerate(named)]
    (folder / "modules.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": BERT["hidden_size"], "pooling_mode_cls_token": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")


HALVES = {
    "a shard": Half(sharded, "model-00002-of-*", f"hf:{NAME}", r"without model-00002-of-\d+\.safetensors"),
    "all weights": Half(with_tokenizer, "model.safetensors", f"hf:{NAME}", r"without model\.safetensors"),
    "a tokenizer": Half(with_tokenizer, "token*", f"hf:{NAME}?task=fill-mask", r"without tokenizer\.json"),
    "a processor": Half(
        with_processor, "*processor*", f"hf:{NAME}?task=image-classification", r"without preprocessor_config\.json"
    ),
    "modules.json": Half(sentences, "modules.json", f"sentence-transformers:{NAME}", r"without its modules\.json"),
    "a pooling": Half(sentences, "1_Pooling/*", f"sentence-transformers:{NAME}", r"without 1_Pooling/config\.json"),
    "words of sentences": Half(sentences, "token*", f"sentence-transformers:{NAME}", r"without tokenizer\.json"),
    "an embedding": Half(static, "0_*/*.safetensors", f"sentence-transformers:{NAME}", r"without 0_StaticEmbedding/"),
    "words of an embedding": Half(
        static, "0_*/tok*", f"sentence-transformers:{NAME}", r"without 0_\w+/tokenizer\.json"
    ),
    "a component": Half(noise, "unet/*", f"diffusers:{NAME}", r"without unet/"),
    "weights of a component": Half(noise, "unet/*.safetensors", f"diffusers:{NAME}", r"without unet/"),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return tmp_path / "hub"


def half_cached(tmp_path: Path, half: Half) -> Path:
    """The cache holds half of it. Returns a folder that holds all of it."""
    whole = tmp_path / "whole"
    half.make(whole)
    shutil.copytree(whole, tmp_path / "half")
    lost = list((tmp_path / "half").glob(half.lost))
    assert lost
    for file in lost:
        file.unlink()
    in_cache(tmp_path / "hub", NAME, tmp_path / "half")
    return whole


@pytest.mark.parametrize("what", HALVES)
def test_what_is_missing_is_named_and_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    half = HALVES[what]
    whole = half_cached(tmp_path, half)
    with pytest.raises(SubjectError, match=half.says + r".*Type: hf download .*add --download"):
        check_locator(half.locator)
    with hub(whole) as server, permitting([Permit.DOWNLOAD]):
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        found = check_locator(half.locator)
        assert found.options["revision"] == COMMIT
    locate(found.text)


@pytest.mark.parametrize("what", ["a shard", "modules.json", "an embedding", "a component"])
def test_what_the_hub_does_not_hold_either_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    half = HALVES[what]
    whole = half_cached(tmp_path, half)
    for file in list(whole.glob(half.lost)):
        file.unlink()
    with hub(whole) as server, permitting([Permit.DOWNLOAD]):
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        with pytest.raises(SubjectError, match="was downloaded, and the Hub does not hold") as refused:
            check_locator(half.locator)
    assert "--download" not in str(refused.value)


def test_pickles_in_the_cache_do_not_hide_what_the_hub_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = half_cached(tmp_path, HALVES["all weights"])
    (folder,) = (tmp_path / "hub").glob("*/snapshots/*")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(SubjectError, match="its weights are pickled"):
        check_locator(f"hf:{NAME}")
    with hub(whole) as server, permitting([Permit.DOWNLOAD]):
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        locate(check_locator(f"hf:{NAME}").text)


@pytest.mark.parametrize("make", [sharded, static, sentences, noise])
def test_a_whole_model_lacks_nothing_and_is_loaded(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "m")
    form = {sharded: "hf", noise: "diffusers"}.get(make, "sentence-transformers")
    assert lacking("it", form, tmp_path / "m") == []
    in_cache(tmp_path / "hub", NAME, tmp_path / "m")
    locate(f"{form}:{NAME}")


def test_the_hub_is_asked_for_a_branch_and_not_for_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that no list names may be missing of what is there; what was written down of a study is complete."""
    sharded(tmp_path / "m")
    shutil.copytree(tmp_path / "m", tmp_path / "whole")
    in_cache(tmp_path / "hub", NAME, tmp_path / "m")
    (tmp_path / "whole" / "generation_config.json").write_text("{}", encoding="utf-8")
    with hub(tmp_path / "whole") as server, permitting([Permit.DOWNLOAD]):
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        check_locator(f"hf:{NAME}?revision={COMMIT}")
        assert server.asked == []
        check_locator(f"hf:{NAME}")
        fetched = {path.rpartition("/")[2] for path in server.asked if "/resolve/" in path}
    assert fetched == {"generation_config.json"}, "what is there is not fetched again"


def test_without_a_network_what_is_there_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sharded(tmp_path / "m")
    in_cache(tmp_path / "hub", NAME, tmp_path / "m")
    with hub(tmp_path, gated=True) as server, permitting([Permit.DOWNLOAD]):
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        assert check_locator(f"hf:{NAME}").options["revision"] == COMMIT
        assert server.asked


def test_a_router_names_modules_of_its_own(tmp_path: Path) -> None:
    static(tmp_path / "query")
    (tmp_path / "m").mkdir()
    (tmp_path / "query" / "0_StaticEmbedding").rename(tmp_path / "m" / "query_0")
    kinds = ("sentence_transformers.models.Router", "sentence_transformers.models.StaticEmbedding")
    (tmp_path / "m" / "modules.json").write_text(json.dumps([{"path": "", "type": kinds[0]}]), encoding="utf-8")
    (tmp_path / "m" / "router_config.json").write_text(json.dumps({"types": {"query_0": kinds[1]}}), encoding="utf-8")
    assert [kind for kind, _ in modules("it", tmp_path / "m")] == list(kinds)
    assert lacking("it", "sentence-transformers", tmp_path / "m") == []
    (tmp_path / "m" / "query_0" / "model.safetensors").unlink()
    assert lacking("it", "sentence-transformers", tmp_path / "m") == ["query_0/*.safetensors"]
