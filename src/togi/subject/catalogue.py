"""Names of the models in timm, torchvision and transformers, read from their sources: no import, so no torch.

The lists serve to find a misspelt name at once. Where a package changed its layout and nothing is found, every name
passes here and the package itself has the last word.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

from togi.core.errors import SubjectError, UnknownNameError, nearest

EXAMPLES = {
    "timm": "resnet50",
    "torchvision": "resnet50",
    "transformers": "bert",
    "hf": "ORG/NAME",
    "sentence-transformers": "FOLDER",
    "diffusers": "FOLDER",
    "ultralytics": "FILE.pt",
}
_TIMM = re.compile(r"^@register_model\s*\ndef (\w+)", re.MULTILINE)
_TORCHVISION = re.compile(r"^@register_model\((?:name=\"(\w+)\")?\)\s*\n(?:@.*\n|[ )].*\n)*?def (\w+)", re.MULTILINE)
_MODEL_TYPE = re.compile(r"^\s*\(\"([\w.\-]+)\", \"\w+Config\"\)", re.MULTILINE)
_TASK = re.compile(r"^    \"([a-z0-9\-]+)\": (?:\{\s*\n\s+\"impl\"|\"[a-z0-9\-]+\",$)", re.MULTILINE)
_DEFINED = re.compile(r"^(?:class )?([A-Z]\w+)(?:\(.*\)?:?$| = )", re.MULTILINE)
_ARCHITECTURE = re.compile(r"^class ([A-Z]\w+)\(.*\):", re.MULTILINE)


def check_installed(package: str) -> None:
    """Raises SubjectError with the command that installs the package when it is missing."""
    if _folder(package) is None:
        raise SubjectError(f"{package}:... needs {package}, which is not installed here. pip install {package}")


def check_name(package: str, name: str) -> None:
    """Raises UnknownNameError with the nearest name when the package has no such model."""
    if package == "transformers":
        return _check_transformers(name)
    known = names(package)
    plain = name.removeprefix("hf-hub:") if package == "timm" else name
    if known and plain.partition(".")[0] not in known:
        listing = f'To list them: python -c "import {package}; print({_LISTING[package]})"'
        raise UnknownNameError(f"{package} has no model '{name}'{nearest(name, known) or '.'} {listing}")


_LISTING = {"timm": "timm.list_models()", "torchvision": "torchvision.models.list_models()"}


@functools.cache
def names(package: str) -> frozenset[str]:
    """Model names (timm, torchvision) or model types (transformers); empty when the package is not there."""
    folder = _folder(package)
    if folder is None:
        return frozenset()
    if package == "transformers":
        sources = [folder / "models" / "auto" / name for name in ("auto_mappings.py", "configuration_auto.py")]
        return frozenset(model_type for source in sources for model_type in _MODEL_TYPE.findall(_read(source)))
    pattern = _TIMM if package == "timm" else _TORCHVISION
    matches = (match for source in (folder / "models").rglob("*.py") for match in pattern.findall(_read(source)))
    return frozenset(match if isinstance(match, str) else (match[0] or match[1]) for match in matches)


def check_task(name: str) -> None:
    """Raises UnknownNameError with the nearest name when transformers has no pipeline for the task."""
    folder = _folder("transformers")
    known = set(_TASK.findall(_read(folder / "pipelines" / "__init__.py"))) if folder is not None else set()
    if known and name not in known:
        raise UnknownNameError(
            f"transformers has no task '{name}'{nearest(name, known) or '.'} It has {', '.join(sorted(known))}"
        )


@functools.cache
def architectures() -> frozenset[str]:
    """Class names in transformers' modelling files, such as ``GPT2LMHeadModel``."""
    folder = _folder("transformers")
    sources = (folder / "models").glob("*/modeling_*.py") if folder is not None else ()
    return frozenset(architecture for source in sources for architecture in _ARCHITECTURE.findall(_read(source)))


@functools.cache
def _readers() -> frozenset[str]:
    """Class names of transformers' tokenizers and processors."""
    folder = _folder("transformers")
    kinds = ("tokenization", "processing", "image_processing", "feature_extraction")
    files = [] if folder is None else [file for kind in kinds for file in folder.glob(f"models/*/{kind}_*.py")]
    files += [] if folder is None else [*folder.glob("tokenization_*.py"), *folder.glob("*processing_*.py")]
    return frozenset(name for file in files for name in _DEFINED.findall(_read(file)))


def is_reader(name: str) -> bool:
    """Whether transformers has a tokenizer or a processor of that name; newer versions have one class for two."""
    known = _readers()
    return not known or name in known or name.removesuffix("Fast") in known


@functools.cache
def pipeline_modules() -> frozenset[str]:
    """Packages of diffusers whose classes a pipeline may name by the package alone."""
    folder = _folder("diffusers")
    found = (folder / "pipelines").glob("[a-z]*") if folder is not None else ()
    return frozenset(path.stem for path in found)


def _check_transformers(name: str) -> None:
    path = Path(name).expanduser()
    if path.exists():
        config = path / "config.json" if path.is_dir() else path
        if not config.is_file() or config.suffix != ".json":
            raise SubjectError(
                f"transformers:{name}: {path} holds no config.json, which says what model it is: "
                "model.save_pretrained(FOLDER) writes one."
            )
        return
    types = names("transformers")
    if not types or name in types:
        return
    if "/" in name:
        raise SubjectError(
            f"transformers:{name}: there is no such folder, and togi downloads nothing. For a model of the Hub in the "
            f"cache of this machine give hf:{name}; 'hf download {name}' puts it there, or --download"
        )
    classes = architectures()
    if name not in classes:
        near = nearest(name, types) or nearest(name, classes)
        raise UnknownNameError(
            f"transformers has no model type or architecture '{name}'{near or '.'} "
            "Give a local folder with a config.json, a type such as 'bert', or a class such as 'BertModel'."
        )


def _folder(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
