"""A task and a folder are the pipeline that users call, with the tokenizer or processor in what is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.subject.made_hub import BERT, COMMIT, in_cache, tiny_model, tokenizer
from togi.core.errors import SubjectError, UnknownNameError
from togi.subject.locator import check_locator
from togi.worker.locate import locate


def text_model(folder: Path, cls: str = "BertForSequenceClassification", **settings: Any) -> Path:
    tiny_model(cls, **(settings or BERT)).save_pretrained(folder)
    tokenizer(folder)
    return folder


def language_model(folder: Path) -> Path:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 3}
    return text_model(folder, "GPT2LMHeadModel", **sizes)


def picture_model(folder: Path) -> Path:
    import transformers

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    tiny_model("ResNetForImageClassification", **sizes).save_pretrained(folder)
    transformers.ConvNextImageProcessor(size={"shortest_edge": 384}).save_pretrained(folder)
    return folder


def sound_model(folder: Path) -> Path:
    import transformers

    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 2}
    sizes |= {"intermediate_size": 16, "conv_dim": (16,) * 2, "conv_stride": (8, 8), "conv_kernel": (8, 8)}
    sizes |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8}
    tiny_model("Wav2Vec2ForSequenceClassification", **sizes).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(sampling_rate=8000).save_pretrained(folder)
    return folder


def answers(subject: Any) -> list[Any]:
    with torch.no_grad():
        return [subject.module(*sample.args, **sample.kwargs) for sample in subject.inputs]


@pytest.mark.parametrize(
    ("task", "cls"),
    [
        ("text-classification", "BertForSequenceClassification"),
        ("token-classification", "BertForTokenClassification"),
        ("fill-mask", "BertForMaskedLM"),
        ("feature-extraction", "BertModel"),
    ],
)
def test_a_pipeline_of_text_is_called_with_texts_of_several_lengths(tmp_path: Path, task: str, cls: str) -> None:
    subject = locate(f"transformers:{text_model(tmp_path / 'm', cls, **BERT)}?task={task}")
    tokens: list[int] = []
    (model,) = subject.module.children()
    model.register_forward_pre_hook(lambda _, __, given: tokens.append(given["input_ids"].shape[1]), with_kwargs=True)
    assert all(map(len, answers(subject)))
    assert len(set(tokens)) == len(tokens) == 3, "each call runs the tokenizer, and the texts differ in length"


def test_a_pipeline_of_a_language_model_generates_the_same_text_each_time(tmp_path: Path) -> None:
    subject = locate(f"transformers:{language_model(tmp_path / 'm')}?task=text-generation")
    assert answers(subject) == answers(subject)


def test_a_pipeline_of_pictures_is_called_with_one_of_its_processors_size(tmp_path: Path) -> None:
    folder = picture_model(tmp_path / "m")
    subject = locate(f"transformers:{folder}?task=image-classification")
    ((picture,),) = (sample.args for sample in subject.inputs)
    assert picture.size == (384, 384)
    assert {"label", "score"} <= set(answers(subject)[0][0])
    ((smaller,),) = (s.args for s in locate(f"transformers:{folder}?task=image-classification&size=64").inputs)
    assert smaller.size == (64, 64)


def test_a_pipeline_of_sound_is_called_with_some_of_its_rate(tmp_path: Path) -> None:
    subject = locate(f"transformers:{sound_model(tmp_path / 'm')}?task=audio-classification")
    ((sound,),) = (sample.args for sample in subject.inputs)
    assert len(sound) == 2 * 8000
    assert len(answers(subject)[0]) == 2


def test_a_name_of_the_hub_with_a_task_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    in_cache(tmp_path / "hub", "someone/tiny", text_model(tmp_path / "m"))
    found = check_locator("hf:someone/tiny?task=text-classification")
    assert found.text == f"hf:someone/tiny?task=text-classification&revision={COMMIT}"
    assert locate(found.text).module.name == "TextClassificationPipeline"


def without(name: str, make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        for file in make(folder).glob(name):
            file.unlink()
        return folder

    return made


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (
            without("token*", text_model),
            "task=text-classification",
            r"holds no tokenizer .*AutoTokenizer",
        ),
        (without("prep*", picture_model), "task=image-classification", r"holds no processor of pictures"),
        (without("prep*", sound_model), "task=audio-classification", r"holds no feature extractor"),
        (without("*.safetensors", text_model), "task=text-classification", r"it holds no weights"),
        (text_model, "task=keypoint-matching", r"reads several things at once\. Write a function"),
        (text_model, "task=image-classification", r"holds no processor of pictures"),
        (text_model, "task=text-classification&length=5", r"length is an option of the model alone"),
    ],
)
def test_what_a_pipeline_lacks_is_said_with_what_to_type(
    tmp_path: Path, make: Callable[[Path], Path], options: str, says: str
) -> None:
    with pytest.raises((SubjectError, UnknownNameError), match=says):
        locate(f"transformers:{make(tmp_path / 'm')}?{options}")


def test_an_unknown_task_is_found_without_loading_anything(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'text-classification'"):
        check_locator(f"transformers:{tmp_path}?task=text-clasification")
    check_locator("transformers:bert?task=ner")  # an alias


def test_a_type_without_a_folder_has_no_tokenizer() -> None:
    with pytest.raises(SubjectError, match="needs a tokenizer or a processor next to its weights"):
        locate("transformers:bert?task=text-classification")


def test_pickled_weights_of_a_pipeline_are_refused(tmp_path: Path) -> None:
    folder = without("*.safetensors", text_model)(tmp_path / "m")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(SubjectError, match="are pickled, and togi does not unpickle"):
        locate(f"transformers:{folder}?task=text-classification")
