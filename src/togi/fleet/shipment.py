"""The files that a subject needs on another machine, and the name that it has next to them."""

from __future__ import annotations

import hashlib
import importlib.machinery
import io
import os
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from togi.core.errors import FleetError
from togi.core.quantities import size
from togi.subject.hub import in_cache
from togi.subject.locator import Spec, check_locator

LARGEST_BYTES = 512 * 2**20
MOST_FILES = 10_000


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """``locator`` names the subject in a folder that holds ``files`` (name there -> file here)."""

    locator: str
    files: dict[str, Path] = field(default_factory=dict)

    def digests(self) -> dict[str, str]:
        """SHA-256 of each file."""
        return {name: hashlib.sha256(_content(file)).hexdigest() for name, file in self.files.items()}

    def pack(self) -> bytes:
        """A zip archive."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, file in self.files.items():
                archive.writestr(name, _content(file))
        return packed.getvalue()


def shipment(subject: str, *, without: Collection[Path]) -> Shipment:
    """Find what is shipped of a subject, by the form of its name:

    - ``file.py:factory``, and ``package.module:factory`` found in the working folder: the folder from which Python
      imports it, with all below, but for what is hidden, caches, virtual environments, links to folders, and
      ``without`` (files and folders of the command itself);
    - ``model.pt2``, a TorchScript file, an artifact, a folder of a transformers model, ``weights=FILE``: that;
    - an installed package, a model of a zoo: nothing, since it has to be installed there as it is here.

    Raises:
        SubjectError, UnknownNameError: as ``check_locator``.
        FleetError: a file cannot be read, or it is too much.
    """
    spec = check_locator(subject)
    match spec.form:
        case "file":
            root, path = _import_root(spec.path.resolve()), spec.path.resolve()
            name = f"{path.relative_to(root).as_posix()}:{spec.factory}"
            return Shipment(locator=name, files=_bounded(root, _below(root, without)))
        case "package":
            here = importlib.machinery.PathFinder.find_spec(spec.target.partition(".")[0], [os.getcwd()])
            return Shipment(locator=subject, files=_bounded(Path(), _below(Path(), without)) if here else {})
        case "hf":
            return _of_zoo(in_cache(spec), without)
        case "timm" | "torchvision" | "transformers" | "sentence-transformers" | "diffusers":
            return _of_zoo(spec, without)
        case "ultralytics" | "lightning":
            raise FleetError(
                f"{subject} cannot be shipped: what it is made of is read by your leave here, which other machines do "
                "not have. Give a function that builds it, file.py:factory"
            )
        case "exported" | "torchscript" | "artifact":
            files = _one(spec, without)
            return Shipment(locator=_with(spec.options, _name(spec)), files=_bounded(spec.path, files))


def _of_zoo(spec: Spec, without: Collection[Path]) -> Shipment:
    options, target, files = dict(spec.options), spec.target, {}
    weights = Path(options.get("weights", "")).expanduser()
    if weights.is_file():
        options["weights"] = weights.name
        files[weights.name] = weights
    if spec.form in ("transformers", "sentence-transformers", "diffusers") and spec.path.is_dir():
        target = _name(spec)
        files |= _one(spec, without)
    return Shipment(locator=_with(options, f"{spec.form}:{target}"), files=_bounded(spec.path, files))


def _with(options: dict[str, str], base: str) -> str:
    return f"{base}?{urlencode(options, safe='/:,')}" if options else base


def _one(spec: Spec, without: Collection[Path]) -> dict[str, Path]:
    """A file, or a folder with all below, under its own name."""
    if spec.path.is_file():
        return {_name(spec): spec.path}
    return {f"{_name(spec)}/{name}": file for name, file in _below(spec.path, without).items()}


def _name(spec: Spec) -> str:
    """Its own, not that of what a link points to, since its end says what it is."""
    return Path(os.path.abspath(spec.path)).name


def _import_root(path: Path) -> Path:
    """The folder that is searched for ``path``: its own, or that of the outermost package."""
    folder = path.parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def _below(root: Path, without: Collection[Path]) -> dict[str, Path]:
    files = {}
    for file in _walk(root, {path.resolve() for path in without}):
        files[file.relative_to(root).as_posix()] = file
        if len(files) > MOST_FILES:
            raise FleetError(_too_much(root, f"more than {MOST_FILES:,} files"))
    return files


def _walk(root: Path, without: Collection[Path]) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name != "__pycache__" and not (here / name / "pyvenv.cfg").exists()
            if (here / name).resolve() not in without
        )
        for name in sorted(files):
            file = here / name
            if not name.startswith(".") and file.is_file() and file.resolve() not in without:
                if file.is_symlink() and not _belongs(file.resolve(), root.resolve()):
                    raise FleetError(
                        f"{file} leads to {file.resolve()}, out of the folder that is shipped, so it could be any of "
                        "your files. Nothing was sent: put a copy in its place, or remove it"
                    )
                yield file


def _belongs(real: Path, root: Path) -> bool:
    """Return whether a link's end lies in the folder, or in the Hugging Face cache, where folders hold links."""
    blobs = root.parents[1] / "blobs" if root.parent.name == "snapshots" else root
    return real.is_relative_to(root) or real.is_relative_to(blobs)


def _bounded(root: Path, files: dict[str, Path]) -> dict[str, Path]:
    sizes = {name: file.stat().st_size for name, file in files.items()}
    if sum(sizes.values()) > LARGEST_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise FleetError(
            _too_much(root, f"{size(sum(sizes.values()))}, of which {largest} takes {size(sizes[largest])}")
        )
    return files


def _too_much(root: Path, what: str) -> str:
    return (
        f"the subject cannot be shipped: {root.absolute()} holds {what}, and at most {size(LARGEST_BYTES)} are sent to "
        "each machine. Put the subject into a folder of its own with what it needs, or install what is large there"
    )


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise FleetError(f"the subject cannot be shipped: {file} cannot be read ({error.strerror})") from None
