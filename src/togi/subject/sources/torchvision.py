"""Subjects ``torchvision:NAME``: any model of torchvision, with random weights or published ones, at the size its
weights were made for.

Covers classification, segmentation, detection (a list of images in, a list of dicts out), video and optical flow.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import torch

from togi.core.errors import SubjectError, UnknownNameError, nearest
from togi.core.permits import Permit, permitted
from togi.subject.inputs import Subject
from togi.subject.locator import Spec
from togi.subject.made_inputs import made_tensor
from togi.subject.sources.weights import give_weights, unpickling

_DETECTION_SIZE = (480, 640)
"""Height and width of a camera picture; the model resizes it by itself."""
_FLOW_SIZE = (256, 320)
_FLOW_MINIMUM = 128
_VIDEO_FRAMES = 16


def from_torchvision(locator: Spec, seed: int) -> Subject:
    """Options: ``batch`` (1), ``size`` (pixels), ``classes``, ``weights`` (a .safetensors file, or the name of
    published weights: ``DEFAULT``, ``IMAGENET1K_V2``).

    Raises SubjectError when torchvision cannot build it or it does not take that size.
    """
    weights = _published(locator)
    module = _create(locator, weights)
    if weights is None:
        give_weights(module, locator, seed)
    generator = torch.Generator().manual_seed(seed)
    return Subject(module.eval(), _sample(locator, generator))


def _create(locator: Spec, weights: Any) -> Any:
    import torchvision

    options: dict[str, Any] = {"weights": weights}
    kind = _kind(locator.target)
    if kind in ("detection", "segmentation"):
        options["weights_backbone"] = None
    if locator.integer("classes") is not None:
        options["num_classes"] = locator.integer("classes")
    size = locator.integer("size")
    if size is not None and locator.target.startswith("vit_"):
        options["image_size"] = size
    try:
        with unpickling(trusted=False):
            return torchvision.models.get_model(locator.target, **options)
    except Exception as error:  # foreign code
        raise locator.failed("torchvision cannot build it", error) from error


def _published(locator: Spec) -> Any:
    """The published weights that ``weights`` names, once their file is in torch's cache; None where it names a file or
    nothing. Raises UnknownNameError for a name that there is not, SubjectError where the file is not there."""
    import torchvision

    name = locator.options.get("weights")
    if name is None or Path(name).suffix:
        return None
    known = torchvision.models.get_model_weights(locator.target).__members__
    if name not in known:
        raise UnknownNameError(
            f"{locator.text}: torchvision has no weights '{name}' of it{nearest(name, known) or '.'} It has "
            f"{', '.join(known) or 'none'}; a file ends in .safetensors"
        )
    if "classes" in locator.options:
        raise SubjectError(f"{locator.text}: the published weights have classes of their own: leave 'classes' out")
    _check_file(locator, known[name].url)
    return known[name]


def _check_file(locator: Spec, url: str) -> None:
    """That torch's cache holds the file whose digest is in its name, so that loading asks nobody for it."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    digest = re.search(r"-([a-f0-9]{8,})\.", file.name)
    if not file.is_file():
        if not permitted(Permit.DOWNLOAD):
            raise SubjectError(
                f"{locator.text}: its published weights are not in torch's cache, and togi downloads nothing unasked. "
                f"Put {url} there as {file}, or add {Permit.DOWNLOAD.how}"
            )
        _download(locator, url, file, digest and digest[1])
    if digest is not None and not hashlib.sha256(file.read_bytes()).hexdigest().startswith(digest[1]):
        raise SubjectError(
            f"{locator.text}: {file} is damaged: its SHA-256 does not begin with {digest[1]}, which its name says. "
            "Delete it, and get it again"
        )


def _download(locator: Spec, url: str, file: Path, digest: str | None) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(file), digest, progress=False)
    except (OSError, RuntimeError) as error:
        raise SubjectError(f"{locator.text}: {url} cannot be downloaded to {file}: {error}") from error


def _kind(name: str) -> str:
    """classification, detection, segmentation, video, optical_flow or quantization: torchvision's own folder names."""
    import torchvision

    module = torchvision.models.get_model_builder(name).__module__
    parts = module.removeprefix("torchvision.models.").split(".")
    return parts[0] if len(parts) > 1 else "classification"


def _sample(locator: Spec, generator: torch.Generator) -> Any:
    batch, size = locator.integer("batch") or 1, locator.integer("size")
    kind = _kind(locator.target)

    def image(*shape: int) -> torch.Tensor:
        return made_tensor(torch.float32, shape, generator)

    if kind == "detection":
        height, width = (size, size) if size else _DETECTION_SIZE
        return ([torch.rand(3, height, width, generator=generator) for _ in range(batch)],)
    if kind == "optical_flow":
        height, width = (size, size) if size else _FLOW_SIZE
        if height % 8 or height < _FLOW_MINIMUM:
            raise SubjectError(
                f"{locator.text}: {locator.target} takes sizes from {_FLOW_MINIMUM} on, in multiples of 8."
            )
        return image(batch, 3, height, width).tanh(), image(batch, 3, height, width).tanh()
    side = size or _preset_size(locator.target)
    if kind == "video":
        return image(batch, 3, _frames(locator.target), side, side)
    return image(batch, 3, side, side)


def _preset_size(name: str) -> int:
    """Side of the square picture that the published weights of this model were evaluated on."""
    import torchvision

    arguments = getattr(torchvision.models.get_model_weights(name).DEFAULT.transforms, "keywords", {})
    size = arguments.get("crop_size", arguments.get("resize_size", 224))
    return int(size[0]) if isinstance(size, tuple | list) else int(size)


def _frames(name: str) -> int:
    import torchvision

    weights = torchvision.models.get_model_weights(name).DEFAULT
    frames = int(weights.meta.get("min_temporal_size", _VIDEO_FRAMES))
    return frames if frames > 1 else _VIDEO_FRAMES
