"""What an update of a library for GPUs would bring, where a release note, an issue or a pull request says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.version import Version

from togi.doctor.check import Check, Level
from togi.doctor.packages import Packages


@dataclass(frozen=True, kw_only=True)
class OutdatedLibrary:
    """One that an update of would bring something."""

    name: str
    distributions: tuple[str, ...]
    brought: dict[str, str]
    """What togi or torch makes use of, by the release that brought it, in order."""
    fix: str


UPDATES = (
    OutdatedLibrary(
        name="torch",
        distributions=("torch",),
        brought={
            "2.11": "togi check says without a GPU what keeps code from CUDA graphs",
            "2.14": "torch.compile's CUDA graphs may be called from several threads at once (pytorch #123177)",
        },
        fix="a torch of {release} or newer (https://pytorch.org/get-started/locally/)",
    ),
    OutdatedLibrary(
        name="ONNX Runtime",
        distributions=("onnxruntime-gpu",),
        brought={
            "1.21": "it finds the CUDA and cuDNN that pip or torch brought (onnxruntime #23744)",
            "1.26": "outputs whose sizes vary stay on the GPU, instead of going over the host (onnxruntime #27980)",
        },
        fix="pip install --upgrade 'onnxruntime-gpu>={release}'",
    ),
    OutdatedLibrary(
        name="cuDNN",
        distributions=("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
        brought={
            "9.15": "torch 2.9.1 and newer use it for three-dimensional convolutions in bfloat16, which take several "
            "times the memory without (pytorch #166643)"
        },
        fix="a torch that asks for cuDNN {release} or newer, or (against torch's metadata, as pytorch #166643 says) "
        "pip install '{distribution}>={release}'",
    ),
)
"""2026-11-25. Triton comes with torch and is not updated alone; ``gpu`` tells of a driver that is too old."""


def updates(packages: Packages) -> Iterator[Check]:
    for library in UPDATES:
        for distribution in library.distributions:
            if (version := packages.version(distribution)) is not None:
                yield from _update(library, distribution, version)


def _update(library: OutdatedLibrary, distribution: str, version: str) -> Iterator[Check]:
    brought = {new: what for new, what in library.brought.items() if Version(version) < Version(new)}
    if brought:
        told = "; ".join(f"{new}: {what}" for new, what in brought.items())
        fix = library.fix.format(release=list(brought)[-1], distribution=distribution)
        name = f"newer {library.name}"
        yield Check(topic="GPU", name=name, level=Level.OPTIONAL, found=version, why=told, fix=fix)
