"""Models of other people, to draw from: name -> (what is called, its sample), as their documentation calls them.

Architectures of timm, torchvision, transformers and diffusers with random weights (hubs are not asked); those of
transformers and diffusers in a small configuration.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

LARGEST = 100e6
"""Parameters. A larger one is drawn again: on two cores its float64 truth alone takes minutes."""
SHARES = {"timm": 10, "torchvision": 8, "transformers": 9, "diffusers": 3}
"""How many of thirty are drawn from each library."""

Made = tuple[Any, Any]
"""What is called, and one sample of its inputs."""


def drawn(seed: int) -> list[str]:
    """``library:name`` of thirty models."""
    chance = random.Random(seed)
    names: list[str] = []
    for library, count in SHARES.items():
        every = sorted(_NAMES[library]())
        chance.shuffle(every)
        fitting = (f"{library}:{name}" for name in every if _fits(library, name))
        names.extend(name for name, _ in zip(fitting, range(count), strict=False))
    return names


def make(name: str) -> Made:
    """Raises KeyError for a name that is none."""
    torch.manual_seed(0)
    library, _, model = name.partition(":")
    return _MAKERS[library](model)


def _fits(library: str, name: str) -> bool:
    if library in ("transformers", "diffusers"):
        return True
    with torch.device("meta"):
        try:
            model = _built(library, name)
        except Exception:  # some read their own numbers while they are built, which meta tensors have none of
            return False
    return sum(parameter.numel() for parameter in model.parameters()) <= LARGEST


def _built(library: str, name: str) -> Any:
    if library == "timm":
        import timm

        return timm.create_model(name, pretrained=False).eval()
    import torchvision

    quiet = {"weights": None}
    builder = torchvision.models.get_model_builder(name)
    if "weights_backbone" in inspect.signature(builder).parameters:
        quiet["weights_backbone"] = None
    return builder(**quiet).eval()


def _timm(name: str) -> Made:
    model = _built("timm", name)
    channels, height, width = model.default_cfg["input_size"]
    return model, torch.randn(1, channels, height, width)


def _torchvision(name: str) -> Made:
    model = _built("torchvision", name)
    kind = type(model).__module__
    if ".detection" in kind:
        return model, ([torch.rand(3, 320, 320)],)
    if ".optical_flow" in kind:
        return model, (torch.rand(1, 3, 128, 160), torch.rand(1, 3, 128, 160))
    if ".video" in kind:
        return model, torch.rand(1, 3, 16, 112, 112) if "mvit" not in name and "swin" not in name else torch.rand(
            1, 3, 16, 224, 224
        )
    size = 299 if name == "inception_v3" else 224
    return model, torch.rand(1, 3, size, size)


def _timm_names() -> list[str]:
    import timm

    return list(timm.list_models())


def _torchvision_names() -> list[str]:
    import torchvision

    return [name for name in torchvision.models.list_models() if not name.startswith("quantized")]


def _tokens(length: int = 32, vocabulary: int = 1000, batch: int = 2) -> dict[str, Tensor]:
    ids = torch.randint(5, vocabulary, (batch, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


_SMALL = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _text(family: str, head: str = "Model", **more: Any) -> Callable[[], Made]:
    def build() -> Made:
        import transformers

        config = getattr(transformers, f"{family}Config")(**(_SMALL | more))
        return getattr(transformers, f"{family}{head}")(config).eval(), _tokens()

    return build


def _writes(family: str, head: str, **more: Any) -> Callable[[], Made]:
    def build() -> Made:
        from togi import Inputs

        model, given = _text(family, head, **more)()
        asked = {"input_ids": given["input_ids"][:1], "attention_mask": given["attention_mask"][:1]}
        return model.generate, Inputs((), {**asked, "max_new_tokens": 16, "do_sample": False})

    return build


def _pictures(family: str, head: str, size: int = 224, **more: Any) -> Callable[[], Made]:
    def build() -> Made:
        import transformers

        config = getattr(transformers, f"{family}Config")(**more)
        model = getattr(transformers, f"{family}{head}")(config).eval()
        return model, {"pixel_values": torch.randn(1, 3, size, size)}

    return build


def _speech(family: str) -> Callable[[], Made]:
    def build() -> Made:
        import transformers

        small = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
        model = getattr(transformers, f"{family}ForCTC")(getattr(transformers, f"{family}Config")(**small)).eval()
        return model, {"input_values": torch.randn(1, 16000)}

    return build


_VISION = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 768}
_T5 = {"d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 4, "num_heads": 4, "decoder_start_token_id": 0}
_BART = {
    "d_model": 256,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_TRANSFORMERS: Mapping[str, Callable[[], Made]] = {
    "bert": _text("Bert"),
    "roberta": _text("Roberta", "ForSequenceClassification"),
    "electra": _text("Electra", embedding_size=128),
    "albert": _text("Albert", embedding_size=128),
    "mpnet": _text("MPNet"),
    "deberta_v2": _text("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "distilbert": _text("DistilBert", "ForSequenceClassification", dim=256, n_layers=4, n_heads=4, hidden_dim=512),
    "roformer": _text("RoFormer", embedding_size=256),
    "mamba": _text("Mamba", "ForCausalLM", state_size=16),
    "llama": _writes("Llama", "ForCausalLM", num_key_value_heads=2),
    "mistral": _writes("Mistral", "ForCausalLM", num_key_value_heads=2),
    "qwen2": _writes("Qwen2", "ForCausalLM", num_key_value_heads=2),
    "gpt_neox": _writes("GPTNeoX", "ForCausalLM"),
    "opt": _writes("OPT", "ForCausalLM", ffn_dim=512, word_embed_proj_dim=256),
    "gpt2": _writes("GPT2", "LMHeadModel", n_embd=256, n_layer=4, n_head=4),
    "bloom": _writes("Bloom", "ForCausalLM", n_layer=4, n_head=4),
    "t5": _writes("T5", "ForConditionalGeneration", **_T5),
    "bart": _writes("Bart", "ForConditionalGeneration", **_BART),
    "vit": _pictures("ViT", "ForImageClassification", **_VISION),
    "deit": _pictures("DeiT", "ForImageClassification", **_VISION),
    "dinov2": _pictures(
        "Dinov2", "Model", **{key: value for key, value in _VISION.items() if key != "intermediate_size"}
    ),
    "convnext": _pictures("ConvNext", "ForImageClassification", depths=[2, 2, 4, 2], hidden_sizes=[48, 96, 192, 384]),
    "swin": _pictures("Swin", "ForImageClassification", depths=[2, 2, 2, 2], embed_dim=48),
    "segformer": _pictures("Segformer", "ForSemanticSegmentation"),
    "resnet": _pictures("ResNet", "ForImageClassification", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512]),
    "mobilevit": _pictures("MobileViT", "ForImageClassification", 256),
    "wav2vec2": _speech("Wav2Vec2"),
    "hubert": _speech("Hubert"),
    "wavlm": _speech("WavLM"),
}

_BLOCKS = {
    "block_out_channels": (32, 64),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "sample_size": 32,
}
_CROSS = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 64,
}


_ENCODING = {
    "block_out_channels": (32, 64),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}


def _picture() -> dict[str, Any]:
    return {"sample": torch.randn(1, 3, 64, 64)}


def _diffuses(family: str, sample: Callable[[], dict[str, Any]], **config: Any) -> Callable[[], Made]:
    def build() -> Made:
        import diffusers

        return getattr(diffusers, family)(**config).eval(), sample()

    return build


def _noisy(channels: int = 4, **more: Callable[[], Tensor]) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "sample": torch.randn(2, channels, 32, 32),
        "timestep": torch.tensor(10),
        **{key: value() for key, value in more.items()},
    }


_DIFFUSERS: Mapping[str, Callable[[], Made]] = {
    "unet_2d": _diffuses("UNet2DModel", _noisy(3), in_channels=3, out_channels=3, **_BLOCKS),
    "unet_2d_condition": _diffuses(
        "UNet2DConditionModel", _noisy(encoder_hidden_states=lambda: torch.randn(2, 7, 64)), **(_BLOCKS | _CROSS)
    ),
    "autoencoder_kl": _diffuses("AutoencoderKL", _picture, **_ENCODING),
    "vq": _diffuses("VQModel", _picture, **_ENCODING),
    "dit": _diffuses(
        "DiTTransformer2DModel",
        lambda: {
            "hidden_states": torch.randn(2, 4, 16, 16),
            "timestep": torch.tensor([10, 10]),
            "class_labels": torch.tensor([1, 2]),
        },
        num_attention_heads=4,
        attention_head_dim=32,
        num_layers=4,
        sample_size=16,
        in_channels=4,
    ),
    "autoencoder_tiny": _diffuses("AutoencoderTiny", _picture),
}

_NAMES: Mapping[str, Callable[[], list[str]]] = {
    "timm": _timm_names,
    "torchvision": _torchvision_names,
    "transformers": lambda: list(_TRANSFORMERS),
    "diffusers": lambda: list(_DIFFUSERS),
}
_MAKERS: Mapping[str, Callable[[str], Made]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": lambda name: _TRANSFORMERS[name](),
    "diffusers": lambda name: _DIFFUSERS[name](),
}
