import json

import pytest
import safetensors.torch
import torch
from torch import nn

from togi.core.errors import SubjectError, UnknownNameError
from togi.subject import catalogue
from togi.subject.made_inputs import vary_constants
from togi.subject.nested import tensors_in
from togi.worker.locate import locate

BERT = "num_hidden_layers=1&hidden_size=32&num_attention_heads=2&intermediate_size=32&vocab_size=100"


def run(subject):
    sample = subject.inputs[0]
    with torch.no_grad():
        return subject.module(*sample.args, **sample.kwargs)


def test_timm_uses_the_models_own_size():
    assert locate("timm:mobilenetv3_small_050").samples.shape == (1, 3, 224, 224)


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
def test_timm_options(name):
    subject = locate(f"timm:{name}?batch=2&size=64&classes=7")
    assert subject.samples.shape == (2, 3, 64, 64)
    assert run(subject).shape == (2, 7)


def test_timm_weights_are_seeded_and_can_come_from_a_file(tmp_path):
    first, other = (locate("timm:resnet10t?size=32", seed=seed).module for seed in (0, 1))
    assert not torch.equal(first.fc.weight, other.fc.weight)
    safetensors.torch.save_file(other.state_dict(), tmp_path / "w.safetensors")
    loaded = locate(f"timm:resnet10t?size=32&weights={tmp_path}/w.safetensors").module
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("torchvision:squeezenet1_1?size=64", [(1, 1000)]),
        ("torchvision:lraspp_mobilenet_v3_large?size=64&batch=2", [(2, 21, 64, 64)]),
        ("torchvision:r3d_18?size=32", [(1, 400)]),
    ],
)
def test_torchvision_kinds(spec, shapes):
    assert [tuple(t.shape) for t in tensors_in(run(locate(spec)))] == shapes


def test_torchvision_detection_takes_a_list_of_pictures():
    subject = locate("torchvision:ssdlite320_mobilenet_v3_large?size=96&batch=2")
    (pictures,) = subject.inputs[0].args
    assert [tuple(p.shape) for p in pictures] == [(3, 96, 96)] * 2


def test_transformers_text():
    subject = locate(f"transformers:bert?length=12&batch=2&{BERT}")
    assert subject.samples["input_ids"].shape == subject.samples["attention_mask"].shape == (2, 12)
    assert type(run(subject)).__name__.startswith("BaseModelOutput")
    assert subject.module.config.num_hidden_layers == 1


def test_transformers_decoder_has_no_cache():
    subject = locate("transformers:GPT2LMHeadModel?n_layer=1&n_embd=32&n_head=2&vocab_size=90&length=8")
    output = run(subject)
    assert list(output) == ["logits"]
    assert output.logits.shape == (1, 8, 90)


def test_transformers_pictures():
    options = "num_hidden_layers=1&hidden_size=32&num_attention_heads=2&intermediate_size=32&image_size=32"
    subject = locate(f"transformers:vit?{options}")
    assert subject.samples["pixel_values"].shape == (1, 3, 32, 32)
    assert run(subject).last_hidden_state.shape == (1, 5, 32)


def test_transformers_encoder_decoder():
    subject = locate("transformers:t5?num_layers=1&num_decoder_layers=1&d_model=32&d_ff=32&num_heads=2&d_kv=8&length=6")
    assert set(subject.samples) == {"input_ids", "attention_mask", "decoder_input_ids"}
    assert run(subject).last_hidden_state.shape == (1, 6, 32)


def test_transformers_whisper():
    options = (
        "encoder_layers=1&decoder_layers=1&d_model=32&encoder_attention_heads=2&decoder_attention_heads=2"
        "&encoder_ffn_dim=32&decoder_ffn_dim=32&max_source_positions=20&vocab_size=60&pad_token_id=0&length=4"
    )
    subject = locate(f"transformers:whisper?{options}")
    assert subject.samples["input_features"].shape == (1, 80, 40)
    assert run(subject).last_hidden_state.shape == (1, 4, 32)


def test_transformers_folder_with_and_without_weights(tmp_path):
    module = locate(f"transformers:BertModel?{BERT}", seed=1).module
    module.save_pretrained(tmp_path / "whole")
    loaded = locate(f"transformers:{tmp_path / 'whole'}?length=5").module
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), module.parameters(), strict=True))
    (tmp_path / "whole" / "model.safetensors").unlink()
    fresh = locate(f"transformers:{tmp_path / 'whole'}?length=5").module
    assert type(fresh) is type(module)
    assert not torch.equal(fresh.embeddings.word_embeddings.weight, module.embeddings.word_embeddings.weight)


def test_transformers_pickled_weights_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "bert", "architectures": ["BertModel"]}), encoding="utf-8"
    )
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(SubjectError, match="does not unpickle"):
        locate(f"transformers:{tmp_path}")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"attn_implementation": "someone/kernel"}, "someone/kernel.*downloaded"),
        ({"_attn_implementation": "someone/kernel:call"}, "someone/kernel.*downloaded"),
        ({"experts_implementation": "someone/kernel"}, "someone/kernel.*downloaded"),
    ],
)
def test_transformers_code_to_download_is_refused(tmp_path, changes, expected):
    document = {"model_type": "bert", "architectures": ["BertModel"], **changes}
    (tmp_path / "config.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(SubjectError, match=expected):
        locate(f"transformers:{tmp_path}")


@pytest.mark.parametrize(
    "named", ["evil.bin", "../other.safetensors", "/etc/passwd", "a/b.safetensors", "..safetensors"]
)
def test_transformers_weights_are_read_from_safetensors_of_the_folder_alone(tmp_path, named):
    document = {"model_type": "bert", "architectures": ["BertModel"]}
    (tmp_path / "config.json").write_text(json.dumps(document), encoding="utf-8")
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": named}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(SubjectError, match="not a safetensors file of the folder"):
        locate(f"transformers:{tmp_path}")


def test_a_transformers_adapter_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SubjectError, match="adapter"):
        locate(f"transformers:{tmp_path}")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("transformers:bert?num_hiden_layers=2", "did you mean 'num_hidden_layers'"),
        ("transformers:brt", "did you mean 'bert'"),
        ("transformers:BertModle", "did you mean 'BertModel'"),
        ("timm:resnet5O", "did you mean 'resnet50'"),
        ("torchvision:resnet5O", "did you mean 'resnet50'"),
    ],
)
def test_unknown_names_get_the_nearest(spec, expected):
    with pytest.raises(UnknownNameError, match=expected):
        locate(spec)


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_the_catalogue_agrees_with_the_package(package):
    import timm
    import torchvision

    listed = set(timm.list_models() if package == "timm" else torchvision.models.list_models())
    missing = listed - catalogue.names(package)
    assert not missing


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(catalogue, "_folder", lambda _: None)
    with pytest.raises(SubjectError, match="pip install timm"):
        locate("timm:resnet50")


def test_a_model_that_is_not_there_is_not_downloaded():
    with pytest.raises(SubjectError, match="downloads nothing"):
        locate("transformers:someone/some-model")


def test_live_in_leaves_no_layer_that_does_nothing():
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
    nn.init.zeros_(module[3].weight)
    nn.init.zeros_(module[1].weight)
    before = module[0].weight.clone()
    vary_constants(module, seed=0).eval()
    output = module(torch.rand(1, 3, 2, 2))
    assert torch.equal(module[0].weight, before)
    assert output.std() > 0
    assert (module[1].running_var != 1).all()
    assert (module[1].weight > 0).all()
