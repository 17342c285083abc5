"""The benchmarks' subjects, one factory each: ``togi tune benchmarks/models.py:resnet50``.

Kinds that behave differently: dense, depthwise and densely connected convolutions, parallel branches, transformers on
pictures and on text (with fixed and with varying length), recurrence, encoder-decoder with skips, sound, mixing by
matrix products alone. Two have published weights (``efficientnet_lite0``, ``minilm``); the others have random ones
in which no layer is the identity (``togi.subject.made_inputs``).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import togi
from togi.subject.made_inputs import vary_constants

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Subject = tuple[nn.Module, Any]
SEED = 0
_EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def resnet50() -> Subject:
    """Dense convolutions with batch norm (1x1 and 3x3). Source: arXiv:1512.03385, timm."""
    return _timm("resnet50", size=176)


def mobilenetv3_large() -> Subject:
    """Depthwise convolutions, squeeze-and-excitation, hard swish. Source: arXiv:1905.02244, timm."""
    return _timm("mobilenetv3_large_100")


def efficientnet_lite0() -> togi.Subject:
    """Pretrained, on photos: examples/photos.py."""
    return example("photos").subject()


def convnext_atto() -> Subject:
    """7x7 depthwise convolutions, layer norm in channels-last. Source: arXiv:2201.03545, timm."""
    return _timm("convnext_atto")


def vit_tiny() -> Subject:
    """A transformer on 16x16 patches. Source: arXiv:2010.11929, timm."""
    return _timm("vit_tiny_patch16_224")


def regnetx_008() -> Subject:
    """Grouped convolutions. Source: arXiv:2003.13678, timm."""
    return _timm("regnetx_008")


def densenet121() -> Subject:
    """Concatenations: batch norm stands before its convolution and cannot be folded into it. arXiv:1608.06993."""
    return _timm("densenet121", size=160)


def repvgg_a0() -> Subject:
    """In training form: three parallel branches per block. Source: arXiv:2101.03697, timm."""
    return _timm("repvgg_a0")


def vgg11() -> Subject:
    """Dense 3x3 convolutions alone, and large linear layers. Source: arXiv:1409.1556, timm."""
    return _timm("vgg11_bn", size=128)


def swin_tiny() -> Subject:
    """Attention in shifted windows. Source: arXiv:2103.14030, timm."""
    return _timm("swin_tiny_patch4_window7_224")


def efficientnetv2() -> Subject:
    """Dense and depthwise convolutions in turn. Source: arXiv:2104.00298, timm."""
    return _timm("efficientnetv2_rw_t", size=192)


def mlp_mixer() -> Subject:
    """Matrix products and layer norms only. Source: arXiv:2105.01601, timm."""
    return _timm("mixer_s32_224")


def lstm_tagger() -> Subject:
    """A two-layer bidirectional LSTM that gives every token of a sentence a tag."""
    _seed()
    return Tagger().eval(), torch.randint(0, 20_000, (1, 64))


def gru_encoder() -> Subject:
    """Two layers of GRU over 80 bands of sound, 100 steps."""
    _seed()
    return nn.GRU(80, 256, num_layers=2, batch_first=True).eval(), torch.randn(1, 100, 80)


def t5() -> Subject:
    """Encoder and decoder of T5, 3 layers each, one pass over 64 and 32 tokens without a cache. arXiv:1910.10683."""
    from transformers import T5Config, T5ForConditionalGeneration

    _seed()
    config = T5Config(d_model=384, d_ff=1024, num_layers=3, num_heads=6, vocab_size=8_192, use_cache=False)
    texts = {
        name: torch.randint(2, 8_192, (1, length)) for name, length in (("input_ids", 64), ("decoder_input_ids", 32))
    }
    return T5ForConditionalGeneration(config).eval(), texts


def speech_encoder() -> Subject:
    """wav2vec 2.0 with 4 of its 12 layers, on one second of sound. Source: arXiv:2006.11477."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    _seed()
    config = Wav2Vec2Config(
        num_hidden_layers=4, hidden_size=384, intermediate_size=1536, num_attention_heads=6, conv_dim=(256,) * 7
    )
    return Wav2Vec2Model(config).eval(), torch.randn(1, 16_000)


def yolo() -> Subject:
    """A one-stage detector without its postprocessing: YOLOv8n from the package ``ultralytics``, built from its
    description."""
    from ultralytics import YOLO

    _seed()
    return vary_constants(YOLO("yolov8n.yaml").model, SEED).eval(), torch.randn(1, 3, 256, 256)


def unet() -> Subject:
    """Encoder and decoder with skip connections. Source: arXiv:1505.04597, narrower, with batch norm."""
    _seed()
    return vary_constants(UNet(), SEED).eval(), torch.randn(1, 3, 160, 160)


def gpt2_small() -> Subject:
    """GPT-2 with 4 of its 12 layers at its full width, without a cache: one pass over 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    _seed()
    config = GPT2Config(
        n_layer=4, n_embd=512, n_head=8, vocab_size=16_384, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config).eval(), {"input_ids": torch.randint(0, config.vocab_size, (1, 64))}


def bert_mini() -> Subject:
    """BERT with 4 layers of width 256 over 128 tokens. Source: arXiv:1908.08962."""
    from transformers import BertConfig, BertModel

    _seed()
    config = BertConfig(num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    tokens = torch.randint(1000, config.vocab_size, (1, 128))
    return BertModel(config).eval(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def minilm() -> togi.Subject:
    """Pretrained, on sentences of several lengths: examples/sentences.py."""
    return example("sentences").subject()


def audio_conv() -> Subject:
    """One second of sound at 16 kHz through strided and dilated 1-d convolutions."""
    _seed()
    return vary_constants(AudioNet(), SEED).eval(), torch.randn(1, 1, 16_000)


ALL = (
    resnet50,
    mobilenetv3_large,
    efficientnet_lite0,
    convnext_atto,
    vit_tiny,
    regnetx_008,
    densenet121,
    repvgg_a0,
    vgg11,
    swin_tiny,
    efficientnetv2,
    mlp_mixer,
    lstm_tagger,
    gru_encoder,
    t5,
    speech_encoder,
    yolo,
    unet,
    gpt2_small,
    bert_mini,
    minilm,
    audio_conv,
)


class Tagger(nn.Module):
    """(batch, tokens) int64 -> (batch, tokens, tags) logits."""

    def __init__(self, vocabulary: int = 20_000, width: int = 128, hidden: int = 192, tags: int = 17) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(2 * hidden, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states)


class UNet(nn.Module):
    """(batch, 3, height, width) -> (batch, classes, height, width); sizes in multiples of 16."""

    def __init__(self, width: int = 20, depth: int = 4, classes: int = 21) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.encoder = nn.ModuleList(map(_double, [3, *widths[:-1]], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(w, w // 2, 2, stride=2) for w in reversed(widths[1:]))
        self.decoder = nn.ModuleList(_double(w, w // 2) for w in reversed(widths[1:]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, block in enumerate(self.encoder):
            x = block(x if level == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        for up, block, skip in zip(self.up, self.decoder, reversed(skips[:-1]), strict=True):
            x = block(torch.cat([skip, up(x)], dim=1))
        return self.head(x)


def _double(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class AudioNet(nn.Module):
    """(batch, 1, samples) -> (batch, classes) logits."""

    def __init__(self, width: int = 96, classes: int = 35) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(1, width, 80, stride=4, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
        for step in range(6):
            dilation = 2 ** (step % 3)
            convolution = nn.Conv1d(width, width, 5, padding=2 * dilation, dilation=dilation, bias=False)
            layers += [convolution, nn.BatchNorm1d(width), nn.ReLU(), *([nn.MaxPool1d(2)] if step % 2 else [])]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, sound: Tensor) -> Tensor:
        return self.head(self.layers(sound).mean(-1))


def _timm(name: str, size: int = 224) -> Subject:
    import timm

    _seed()
    return vary_constants(timm.create_model(name, pretrained=False), SEED).eval(), torch.randn(1, 3, size, size)


def _seed() -> None:
    torch.manual_seed(SEED)


def example(name: str) -> ModuleType:
    """A file of the examples, under a name of its own."""
    full = f"togi_examples_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, _EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]
