"""Code that comes with a model: found before the library that would run it is imported. No torch.

Libraries differ in what they refuse, and older ones trust a local folder, which a snapshot in the cache is. So togi
reads itself which classes a folder names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from togi.core.errors import SubjectError
from togi.core.permits import Permit, permitted
from togi.subject import catalogue
from togi.subject.model_folders import CONFIG, MODULES, PIPELINE, components, modules, read_json

_MODULE = re.compile(r"sentence_transformers(\.[A-Za-z]\w*)+")
_CLASS = re.compile(r"(torch\.nn|sentence_transformers)(\.[A-Za-z]\w*)+")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_NAMES_A_CLASS = re.compile(r"types?|(.*_)?(class|function|fn|type)")
"""Keys of configurations whose dotted values are imported."""
_VOCABULARIES = frozenset({"tokenizer.json", "vocab.json"})
"""Files of megabytes, which no module takes for its configuration."""
_READERS = {
    "tokenizer_config.json": ("tokenizer_class",),
    "preprocessor_config.json": ("image_processor_type", "feature_extractor_type", "processor_class"),
    "processor_config.json": ("processor_class",),
}
"""Configurations of tokenizers and processors, and where they name their class."""


def check_own_code(text: str, form: str, path: Path, *, reads: bool = False) -> bool:
    """Return whether the model's own code is run.

    Args:
        path: its folder, or the file of its configuration.
        reads: its tokenizer or processor is loaded as well.

    Raises SubjectError where it is needed without the permit for it, or what names its parts is damaged.
    """
    why = next(_found(text, form, path, reads=reads), None)
    if why is None:
        return False
    if not permitted(Permit.REMOTE_CODE):
        raise SubjectError(
            f"{text}: it has code of its own ({why}), and togi runs no downloaded code unasked: it may do whatever you "
            f"may. Read the .py files in {path}. If you trust them, add {Permit.REMOTE_CODE.how}"
        )
    return True


def _found(text: str, form: str, path: Path, *, reads: bool) -> Iterator[str]:
    """Reasons to believe that code is needed which does not belong to an installed library."""
    if form == "diffusers":
        yield from _of_pipeline(text, path)
    elif form == "sentence-transformers":
        yield from _of_modules(text, path)
    else:
        yield from _of_model(path if path.is_file() else path / CONFIG)
        yield from _of_readers(path) if reads else ()


def _of_model(config: Path) -> Iterator[str]:
    """What the installed transformers knows is built by that: its type, and the class that the weights are of."""
    known = catalogue.names("transformers")
    for read in _configs(read_json(config)) if known else ():
        own = read.get("auto_map")
        if not own:
            continue
        if read.get("model_type") not in known:
            yield f"transformers does not know the type {read.get('model_type')!r} of {config.name}"
        architectures = read.get("architectures")
        named = architectures[0] if isinstance(architectures, list) and architectures else None
        has_model = isinstance(own, dict) and any(str(name).startswith("AutoModel") for name in own)
        if named is not None and has_model and named not in catalogue.architectures():
            yield f"transformers has no class {named!r}, which {config.name} names"


def _configs(document: Any) -> Iterator[dict[str, Any]]:
    """A configuration and those of its parts."""
    waiting = [document]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += each.values()


def _of_readers(folder: Path) -> Iterator[str]:
    for file, keys in _READERS.items():
        read = read_json(folder / file)
        if not isinstance(read, dict) or not read.get("auto_map"):
            continue
        named = [read[key] for key in keys if read.get(key)]
        strange = [name for name in named if not catalogue.is_reader(str(name))]
        if strange or not named:
            yield f"transformers has no class {strange[0]!r}, which {file} names" if strange else f"{file} names it"


def _of_modules(text: str, folder: Path) -> Iterator[str]:
    named = modules(text, folder) if (folder / MODULES).exists() else []
    for kind, _ in named:
        if not _MODULE.fullmatch(kind):
            yield f"{MODULES} names {kind!r}, which is not a class of sentence-transformers"
    for place in dict.fromkeys([folder, *(place for _, place in named)]):
        yield from _of_model(place / CONFIG)
        yield from _of_readers(place)
        for file in (file for file in place.glob("*.json") if file.name not in _VOCABULARIES):
            for key, value in _values(read_json(file)):
                yield from _of_setting(file.name, key, value)


def _of_setting(file: str, key: str, value: Any) -> Iterator[str]:
    if key == "trust_remote_code" and value:
        yield f"{file} sets trust_remote_code"
    imported = isinstance(value, str) and _NAMES_A_CLASS.fullmatch(key) and _DOTTED.fullmatch(value)
    if imported and not _CLASS.fullmatch(value):
        yield f"{file} names {value!r}, which is neither a class of sentence-transformers nor of torch.nn"


def _values(document: Any) -> Iterator[tuple[str, Any]]:
    """All values below a document, each with the nearest key above it."""
    waiting = [("", document)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(key if key == "types" else name, inner) for name, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(key, inner) for inner in value]
        else:
            yield key, value


def _of_pipeline(text: str, folder: Path) -> Iterator[str]:
    parts = components(text, folder)
    cls = read_json(folder / PIPELINE).get("_class_name")
    if not isinstance(cls, str):
        yield f"{PIPELINE} names the pipeline {cls!r}, which is not a class of diffusers"
    elif cls.endswith("CombinedPipeline") and (folder / "README.md").exists():
        yield f"{cls} loads other models as well, those that README.md names"
    if (folder / "None.py").exists():  # diffusers 0.42 takes it for a pipeline that was asked for
        yield "None.py"
    for name, (library, _) in parts.items():
        if library not in {"diffusers", "transformers", *catalogue.pipeline_modules()}:
            yield f"{PIPELINE} names {library!r} for {name}, which is neither diffusers nor transformers"
        if (folder / name / f"{library}.py").exists():
            yield f"{name}/{library}.py"
        yield from _of_model(folder / name / CONFIG)
        yield from _of_readers(folder / name)
        if (folder / name / PIPELINE).exists():
            yield from _of_pipeline(text, folder / name)
