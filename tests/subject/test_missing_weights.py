"""Weights that the files of a model do not hold are not made up in silence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.subject.made_hub import BERT, in_cache, tiny_model, tokenizer
from tests.subject.test_pipelines import sound_model
from togi.core.errors import SubjectError
from togi.worker.locate import locate

QUERY = "attention.self.query.weight"
REFUSED = r"its files hold no \w+\.\S+.*would be random"


def without_weights(file: Path, lost: Callable[[str], bool]) -> None:
    values = safetensors.torch.load_file(file)
    kept = {name: value for name, value in values.items() if not lost(name)}
    assert len(kept) < len(values)
    safetensors.torch.save_file(kept, file, metadata={"format": "pt"})


def bert(folder: Path, cls: str = "BertModel", *, lost: str = "") -> Path:
    tiny_model(cls, **BERT).save_pretrained(folder)
    tokenizer(folder)
    if lost:
        without_weights(folder / "model.safetensors", lambda name: lost in name)
    return folder


def sentence_model(folder: Path, *, lost: str) -> Path:
    bert(folder, lost=lost)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
               for i, (path, kind) in enumerate(kinds)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": BERT["hidden_size"], "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    return folder


@pytest.mark.parametrize("lost", [QUERY, "pooler"])
def test_a_name_of_the_hub_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    in_cache(tmp_path / "hub", "someone/tiny", bert(tmp_path / "m", lost=lost))
    with pytest.raises(SubjectError, match=REFUSED):
        locate("hf:someone/tiny")


def test_what_is_tied_is_not_missing(tmp_path: Path) -> None:
    """The decoder of a masked language model is its table of words, and is saved once."""
    folder = bert(tmp_path / "m", "BertForMaskedLM")
    assert "cls.predictions.decoder.weight" not in safetensors.torch.load_file(folder / "model.safetensors")
    assert locate(f"transformers:{folder}").module.tie_weights


@pytest.mark.parametrize("task", ["fill-mask", "feature-extraction"])
def test_a_pipeline_is_refused(tmp_path: Path, task: str) -> None:
    folder = bert(tmp_path / "m", "BertForMaskedLM", lost=QUERY)
    with pytest.raises(SubjectError, match=REFUSED):
        locate(f"transformers:{folder}?task={task}")


def test_weights_that_do_not_reach_the_answer_are_no_loss(tmp_path: Path) -> None:
    """A masked language model has no pooler, and the vectors of its tokens do not need one."""
    folder = bert(tmp_path / "m", "BertForMaskedLM")
    subject = locate(f"transformers:{folder}?task=feature-extraction")
    (sample, *_) = (each.clone() for each in subject.inputs)
    with torch.no_grad():
        assert subject.module(*sample.args, **sample.kwargs).isfinite().all()
    (model,) = subject.module.children()
    assert model.pooler.dense.weight.isfinite().all(), "they are as they were"


@pytest.mark.parametrize("task", ["", "?task=audio-classification"])
def test_weights_of_training_alone_are_no_loss(tmp_path: Path, task: str) -> None:
    """Many published models of sound lack what stands for masked sound."""
    folder = sound_model(tmp_path / "m")
    without_weights(folder / "model.safetensors", lambda name: name.endswith("masked_spec_embed"))
    locate(f"transformers:{folder}{task}")
    without_weights(folder / "model.safetensors", lambda name: name == "classifier.weight")
    with pytest.raises(SubjectError, match=r"classifier\.weight.*would be random"):
        locate(f"transformers:{folder}{task}")


@pytest.mark.parametrize(("lost", "refused"), [(QUERY, True), ("pooler", False)])
def test_sentence_transformers_is_refused_where_they_count(tmp_path: Path, lost: str, refused: bool) -> None:
    folder = sentence_model(tmp_path / "m", lost=lost)
    if not refused:
        assert locate(f"sentence-transformers:{folder}").module.name == "SentenceTransformer.encode"
        return
    with pytest.raises(SubjectError, match=REFUSED):
        locate(f"sentence-transformers:{folder}")


def test_a_part_of_a_pipeline_of_diffusers_is_refused(tmp_path: Path) -> None:
    import diffusers

    sizes: dict[str, Any] = {"block_out_channels": (8,), "layers_per_block": 1, "norm_num_groups": 4, "sample_size": 8}
    blocks: dict[str, Iterable[str]] = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    unet = diffusers.UNet2DModel(**sizes, **blocks)
    diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler()).save_pretrained(tmp_path / "m")
    (file,) = (tmp_path / "m" / "unet").glob("*.safetensors")
    without_weights(file, lambda name: name == "conv_out.weight")
    with pytest.raises(SubjectError, match=r"UNet2DModel\.conv_out\.weight.*would be random"):
        locate(f"diffusers:{tmp_path / 'm'}")
