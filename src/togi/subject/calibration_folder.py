"""Calibration data from a folder: files of tensors, or pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.errors import SubjectError
from togi.core.quantities import first_line
from togi.subject.inputs import Inputs

if TYPE_CHECKING:
    import torch

_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"})
_TENSORS = frozenset({".pt", ".npy", ".npz", ".safetensors"})


def files_in(folder: Path) -> list[Path]:
    """Of the folder and those below it, in the order of their names. Raises SubjectError where there are none."""
    if not folder.is_dir():
        raise SubjectError(f"calibration={str(folder)!r} is not a folder. Give one, or data.py:function")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _PICTURES | _TENSORS and path.is_file())
    if not files:
        kinds = ", ".join(sorted(_TENSORS | _PICTURES))
        raise SubjectError(f"the folder {folder} holds no calibration data: no file is one of {kinds}")
    return files


def read_file(file: Path, form: Inputs) -> Any:
    """What it holds; a picture in the form of the samples. Raises SubjectError where it cannot be read."""
    try:
        return _picture(file, form) if file.suffix.lower() in _PICTURES else _tensors(file)
    except SubjectError:
        raise
    except Exception as error:  # foreign code: decoders, on whatever the file holds
        raise SubjectError(
            f"the calibration file {file} cannot be read: {first_line(error)}. Remove it, or save it again"
        ) from error


def _tensors(file: Path) -> Any:
    """A sample as it was saved; files whose tensors have names give keyword arguments. Nothing is unpickled."""
    import numpy as np
    import torch

    match file.suffix.lower():
        case ".pt":
            return torch.load(file, map_location="cpu", weights_only=True)
        case ".npy":
            return torch.from_numpy(np.load(file, allow_pickle=False))
        case ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        case _:
            from safetensors.torch import load_file

            return load_file(str(file))


def _picture(file: Path, form: Inputs) -> torch.Tensor:
    """The middle of a picture in the size, the layout and the range of the samples, as one row."""
    import torch

    channels, height, width, last = _layout(form)
    scale = _scale(form)
    array = _pixels(file, channels, height, width)
    pixels = torch.from_numpy(array).reshape(height, width, channels)
    placed = pixels if last else pixels.permute(2, 0, 1).contiguous()
    like = form.tensors()[0]
    return (placed.to(torch.float32) * scale).to(like.dtype)[None]


def _pixels(file: Path, channels: int, height: int, width: int) -> Any:
    import numpy as np

    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise SubjectError("reading pictures for calibration needs pillow: pip install pillow") from None
    with Image.open(file) as opened:
        upright = ImageOps.exif_transpose(opened).convert("L" if channels == 1 else "RGB")
        return np.array(ImageOps.fit(upright, (width, height), Image.Resampling.BILINEAR))


def _layout(form: Inputs) -> tuple[int, int, int, bool]:
    """Channels, height and width of the sample's picture, and whether its channels come last."""
    tensors = form.tensors()
    if len(tensors) == 1 and tensors[0].dim() == 4:
        _, *sizes = tensors[0].shape
        if sizes[0] in (1, 3):
            return sizes[0], sizes[1], sizes[2], False
        if sizes[2] in (1, 3):
            return sizes[2], sizes[0], sizes[1], True
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
    raise SubjectError(
        f"a picture does not have the form of the samples ({shapes}): that takes one tensor (rows, channels, height, "
        "width) with 1 or 3 channels. Give tensors, or calibration=data.py:function"
    )


def _scale(form: Inputs) -> float:
    """By what a byte is multiplied to have the range of the samples. Raises SubjectError where they show that something
    else is done to pictures."""
    sample = form.tensors()[0]
    low, high = float(sample.amin()), float(sample.amax())
    if not sample.is_floating_point() or (low >= 0 and 1 < high <= 255):
        return 1.0
    if low >= 0 and high <= 1:
        return 1 / 255
    raise SubjectError(
        f"the samples hold values from {low:.3g} to {high:.3g}, so pictures are normalised before the model is "
        "called, and togi cannot know how: ranges of other values would make 8-bit recipes worse. Give the "
        "DataLoader with your own preprocessing, as calibration=data.py:function, or a folder of tensors"
    )
