"""The models that ``python -m benchmarks.gpu`` tunes, written in plain torch: a bare machine needs nothing else.

Each name has two factories: the model as it was published, for a GPU, and ``small_*``, the same code with fewer and
narrower layers, on which the same programs run on a CPU. Weights are random.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from benchmarks.models import UNet
from torch import Tensor, nn
from torch.nn import functional

from togi.subject.made_inputs import vary_constants

SEED = 0
Made = tuple[nn.Module, Tensor | tuple[Tensor, ...]]


def _resnet(depths: Sequence[int], width: int, size: int, batch: int) -> Made:
    """ResNet-50 where the depths are 3, 4, 6, 3 and the width 64. Source: arXiv:1512.03385."""
    torch.manual_seed(SEED)
    layers: list[nn.Module] = [_conv(3, width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for level, depth in enumerate(depths):
        for block in range(depth):
            layers.append(_Bottleneck(channels, width * 2**level, stride=2 if level and not block else 1))
            channels = width * 2**level * 4
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    return vary_constants(net, SEED).eval(), torch.randn(batch, 3, size, size)


def _conv(inputs: int, outputs: int, size: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *(_conv(inputs, width, 1), nn.ReLU(), _conv(width, width, 3, stride=stride), nn.ReLU()),
            _conv(width, 4 * width, 1),
        )
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else _conv(inputs, 4 * width, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.branch(x) + self.shortcut(x))


_MOBILENET = (  # size, expanded, out, squeezed, activation, stride: MobileNetV3-Large, arXiv:1905.02244, table 1
    *((3, 16, 16, False, nn.ReLU, 1), (3, 64, 24, False, nn.ReLU, 2), (3, 72, 24, False, nn.ReLU, 1)),
    *((5, 72, 40, True, nn.ReLU, 2), (5, 120, 40, True, nn.ReLU, 1), (5, 120, 40, True, nn.ReLU, 1)),
    *((3, 240, 80, False, nn.Hardswish, 2), (3, 200, 80, False, nn.Hardswish, 1), (3, 184, 80, False, nn.Hardswish, 1)),
    *((3, 184, 80, False, nn.Hardswish, 1), (3, 480, 112, True, nn.Hardswish, 1), (3, 672, 112, True, nn.Hardswish, 1)),
    *((5, 672, 160, True, nn.Hardswish, 2), (5, 960, 160, True, nn.Hardswish, 1), (5, 960, 160, True, nn.Hardswish, 1)),
)


def _mobilenet(every: int, size: int) -> Made:
    """MobileNetV3-Large; ``every``: of its blocks only each such one, and channels in that proportion."""
    torch.manual_seed(SEED)
    layers: list[nn.Module] = [_conv(3, 16, 3, stride=2), nn.Hardswish()]
    channels = 16
    for kernel, wide, out, squeezed, activation, stride in _MOBILENET[::every]:
        block = [_conv(channels, wide // every, 1), activation()]
        block += [_conv(wide // every, wide // every, kernel, stride=stride, groups=wide // every)]
        block += [_Squeezed(wide // every), activation()] if squeezed else [activation()]
        layers.append(_Residual(nn.Sequential(*block, _conv(wide // every, out, 1)), channels == out and stride == 1))
        channels = out
    head = [_conv(channels, 960 // every, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    head += [nn.Linear(960 // every, 1280 // every), nn.Hardswish(), nn.Linear(1280 // every, 1000)]
    return vary_constants(nn.Sequential(*layers, *head), SEED).eval(), torch.randn(1, 3, size, size)


class _Squeezed(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * functional.hardsigmoid(self.up(functional.relu(self.down(x.mean((2, 3), keepdim=True)))))


class _Residual(nn.Module):
    def __init__(self, block: nn.Module, added: bool) -> None:
        super().__init__()
        self.block, self.added = block, added

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.added else self.block(x)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projection, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = self.heads_of(x)
        return self.merged(functional.scaled_dot_product_attention(query, key, value, attn_mask=mask))

    def heads_of(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.projection(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def merged(self, attended: Tensor) -> Tensor:
        return self.output(attended.transpose(1, 2).flatten(2))


def _wide(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class _Layer(nn.Module):
    """A transformer's, with its norms before (ViT, GPT-2) or after (BERT) what they norm."""

    def __init__(self, width: int, heads: int, before: bool) -> None:
        super().__init__()
        self.attention, self.wide, self.before = _Attention(width, heads), _wide(width), before
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.before:
            x = x + self.attention(self.norm_1(x), mask)
            return x + self.wide(self.norm_2(x))
        x = self.norm_1(x + self.attention(x, mask))
        return self.norm_2(x + self.wide(x))


class _Vit(nn.Module):
    """Source: arXiv:2010.11929."""

    def __init__(self, layers: int, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (size // 16) ** 2 + 1, width))
        self.layers = nn.Sequential(*(_Layer(width, heads, before=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.norm(self.layers(tokens)[:, 0]))


def _vit(layers: int, width: int, heads: int, size: int) -> Made:
    torch.manual_seed(SEED)
    return _Vit(layers, width, heads, size).eval(), torch.randn(1, 3, size, size)


class _Bert(nn.Module):
    """Source: arXiv:1810.04805."""

    def __init__(self, layers: int, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(_Layer(width, heads, before=False) for _ in range(layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]])
        seen = mask.bool()[:, None, None]
        for layer in self.layers:
            x = layer(x, seen)
        return x


def _bert(layers: int, width: int, heads: int, words: int, tokens: int) -> Made:
    torch.manual_seed(SEED)
    ids, mask = torch.randint(words, (8, tokens)), torch.ones(8, tokens)
    mask[1::2, tokens // 2 :] = 0
    return _Bert(layers, width, heads, words).eval(), (ids, mask)


class _Gpt2Step(nn.Module):
    """One token through GPT-2, with the keys and values of those before it: the logits, and its own key and value in
    each layer. Source: Radford et al., Language Models are Unsupervised Multitask Learners (2019)."""

    def __init__(self, layers: int, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
        self.layers = nn.ModuleList(_Layer(width, heads, before=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``ids`` (batch, 1); keys and values (layers, batch, heads, tokens, width of a head)."""
        x = self.words(ids) + self.places.weight[keys.shape[3]]
        new_keys, new_values = [], []
        for number, layer in enumerate(self.layers):
            query, key, value = layer.attention.heads_of(layer.norm_1(x))
            seen = torch.cat([keys[number], key], 2), torch.cat([values[number], value], 2)
            x = x + layer.attention.merged(functional.scaled_dot_product_attention(query, *seen))
            x = x + layer.wide(layer.norm_2(x))
            new_keys.append(key)
            new_values.append(value)
        return self.norm(x) @ self.words.weight.T, torch.stack(new_keys), torch.stack(new_values)


def _gpt2_step(layers: int, width: int, heads: int, words: int, tokens: int) -> Made:
    torch.manual_seed(SEED)
    past = (layers, 1, heads, tokens, width // heads)
    inputs = torch.randint(words, (1, 1)), torch.randn(past), torch.randn(past)
    return _Gpt2Step(layers, width, heads, words).eval(), inputs


def _unet(width: int, depth: int, size: int) -> Made:
    """Source: arXiv:1505.04597, with batch norm."""
    torch.manual_seed(SEED)
    return vary_constants(UNet(width=width, depth=depth), SEED).eval(), torch.randn(1, 3, size, size)


class _RetinaNet(nn.Module):
    """Boxes of all anchors and their scores, before any of them is left out. Source: arXiv:1708.02002, on a feature
    pyramid (arXiv:1612.03144) of a ResNet."""

    def __init__(self, depths: Sequence[int], width: int, channels: int, classes: int, size: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
        self.levels, inputs = nn.ModuleList(), width
        for level, depth in enumerate(depths):
            blocks = []
            for block in range(depth):
                blocks.append(_Bottleneck(inputs, width * 2**level, stride=2 if level and not block else 1))
                inputs = width * 2**level * 4
            self.levels.append(nn.Sequential(*blocks))
        taken = [4 * width * 2**level for level in range(1, len(depths))]
        self.across = nn.ModuleList(nn.Conv2d(each, channels, 1) for each in taken)
        self.smooth = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in taken)
        self.coarser = nn.ModuleList(nn.Conv2d(each, channels, 3, 2, 1) for each in (taken[-1], channels))
        self.scores, self.moves = _head(channels, 9 * classes), _head(channels, 9 * 4)
        self.register_buffer("anchors", _anchors(size, [8 * 2**level for level in range(len(taken) + 2)]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, found = self.stem(x), []
        for level in self.levels:
            x = level(x)
            found.append(x)
        merged = [self.across[-1](x)]
        for at in range(len(self.across) - 2, -1, -1):
            above = functional.interpolate(merged[0], scale_factor=2.0, mode="nearest")
            merged.insert(0, self.across[at](found[at + 1]) + above)
        maps = [smooth(each) for smooth, each in zip(self.smooth, merged, strict=True)]
        maps.append(self.coarser[0](x))
        maps.append(self.coarser[1](functional.relu(maps[-1])))
        moves = torch.cat([_by_anchor(self.moves(each)) for each in maps], 1)
        scores = torch.cat([_by_anchor(self.scores(each)) for each in maps], 1).sigmoid()
        centers = self.anchors[:, :2] + moves[..., :2] * self.anchors[:, 2:]
        half = self.anchors[:, 2:] * moves[..., 2:].clamp(max=4.0).exp() / 2
        return torch.cat([centers - half, centers + half], -1), scores


def _head(channels: int, outputs: int) -> nn.Sequential:
    layers = [each for _ in range(4) for each in (nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*layers, nn.Conv2d(channels, outputs, 3, padding=1))


def _by_anchor(found: Tensor) -> Tensor:
    """``[batch, 9 * k, rows, columns]`` as ``[batch, anchors, k]``."""
    return found.permute(0, 2, 3, 1).reshape(len(found), -1, found.shape[1] // 9)


def _anchors(size: int, strides: Sequence[int]) -> Tensor:
    """Centers and sides of nine at each place of each level."""
    ratios, scales = torch.tensor([0.5, 1.0, 2.0]).sqrt(), 2.0 ** (torch.arange(3) / 3)
    sides = (scales[:, None, None] * torch.stack([1 / ratios, ratios], -1)).reshape(9, 2)
    levels = []
    for stride in strides:
        at = (torch.arange(-(-size // stride)) + 0.5) * stride
        centers = torch.stack([at.repeat(len(at)), at.repeat_interleave(len(at))], -1)
        levels.append(torch.cat([centers.repeat_interleave(9, 0), (4 * stride * sides).repeat(len(centers), 1)], -1))
    return torch.cat(levels)


def _retinanet(depths: Sequence[int], width: int, channels: int, classes: int, size: int) -> Made:
    torch.manual_seed(SEED)
    net = _RetinaNet(depths, width, channels, classes, size)
    return vary_constants(net, SEED).eval(), torch.randn(1, 3, size, size)


resnet50 = partial(_resnet, (3, 4, 6, 3), 64, 224, 1)
resnet50_batch64 = partial(_resnet, (3, 4, 6, 3), 64, 224, 64)
vit_b = partial(_vit, 12, 768, 12, 224)
mobilenetv3 = partial(_mobilenet, 1, 224)
bert_base = partial(_bert, 12, 768, 12, 30_522, 128)
gpt2_step = partial(_gpt2_step, 12, 768, 12, 50_257, 256)
unet = partial(_unet, 64, 4, 256)
retinanet = partial(_retinanet, (3, 4, 6, 3), 64, 256, 80, 512)

small_resnet50 = partial(_resnet, (1, 1, 1), 16, 64, 1)
small_resnet50_batch64 = partial(_resnet, (1, 1), 8, 32, 64)
small_vit_b = partial(_vit, 2, 96, 4, 64)
small_mobilenetv3 = partial(_mobilenet, 4, 64)
small_bert_base = partial(_bert, 2, 64, 4, 1000, 16)
small_gpt2_step = partial(_gpt2_step, 2, 96, 4, 1000, 32)
small_unet = partial(_unet, 8, 2, 64)
small_retinanet = partial(_retinanet, (1, 1, 1, 1), 8, 16, 4, 64)

CONVOLUTIONAL_AT_BATCH_1 = frozenset({"resnet50", "mobilenetv3", "unet"})
DENSE = frozenset({"vit_b", "bert_base", "resnet50_batch64"})
"""Their products are large enough for the units that multiply 16 bits."""


def locator(name: str, device: str) -> str:
    """What ``togi tune`` is given for it."""
    return f"{__file__}:{name if device == 'cuda' else f'small_{name}'}"
