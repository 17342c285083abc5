"""Folders of models as libraries write them: which parts they name, and which files of these are missing. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from togi.core.errors import SubjectError

CONFIG = "config.json"
PIPELINE = "model_index.json"
"""What a folder of diffusers holds in place of a ``config.json``."""
MODULES = "modules.json"
"""What a folder of sentence-transformers holds."""
ENTRIES = {"diffusers": PIPELINE, "sentence-transformers": MODULES}
"""The file that says what a folder is, by form; of all others ``CONFIG``."""
TOKENIZER = "tokenizer.json tokenizer_config.json vocab.txt vocab.json tokenizer.model spiece.model".split()
PROCESSOR = "preprocessor_config.json processor_config.json".split()
READS = {
    "text": "feature-extraction fill-mask ner sentiment-analysis summarization text-classification text-generation "
    "text2text-generation token-classification translation zero-shot-classification",
    "picture": "depth-estimation image-classification image-feature-extraction image-segmentation image-to-text "
    "mask-generation object-detection zero-shot-image-classification zero-shot-object-detection",
    "sound": "audio-classification automatic-speech-recognition zero-shot-audio-classification",
}
"""Tasks by what togi makes for them; a task that reads several things at once needs inputs of the user's."""
_OTHER_FORM = re.compile(r"-\d+-of-\d+|\.fp16\.|\.non_ema\.")
"""Files of weights that are not the whole weights by themselves, or that no one asked for."""
_TRANSFORMERS = frozenset({"Transformer", "MLMTransformer"})
"""Classes of sentence-transformers whose folder is one of transformers."""
_TOKENIZE = _TRANSFORMERS | {"StaticEmbedding", "SparseStaticEmbedding"}
"""Those that hold a tokenizer, or what reads pictures."""
_WITH_WEIGHTS = frozenset("CLIPModel CNN Dense LSTM LayerNorm SparseAutoEncoder StaticEmbedding WordEmbeddings".split())
_WITH_SETTINGS = frozenset("BoW Dense Dropout Pooling SpladePooling WeightedLayerPooling WordWeights".split())
"""Of classes that are in neither set nothing is known to be missing; the library says what it does not find."""


def reads(task: str) -> str | None:
    """The kind of input that togi makes for the task; None where it makes none."""
    return next((kind for kind, tasks in READS.items() if task in tasks.split()), None)


def read_json(file: Path) -> Any:
    """The document; None where it is missing or damaged, of which the library that reads it has more to say."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None


def modules(text: str, folder: Path) -> list[tuple[str, Path]]:
    """The class and the folder of each module that ``modules.json`` names, those inside of routers too.

    Raises SubjectError where it is damaged, or names a folder that is somewhere else.
    """
    document = read_json(folder / MODULES)
    try:
        waiting = [(entry["type"], _inside(folder, entry.get("path") or "")) for entry in document]
        found = []
        while waiting:
            kind, place = waiting.pop()
            found.append((_text(kind), place))
            waiting += [(inner, _below(place, name)) for name, inner in _routed(place)]
    except (TypeError, KeyError, AttributeError, ValueError):
        raise SubjectError(
            f"{text}: {MODULES}, or what it names, cannot be read as modules in folders below {folder}: it is damaged. "
            "Get the folder again, or save it anew"
        ) from None
    return found


def components(text: str, folder: Path) -> dict[str, tuple[str, str]]:
    """Library and class of each component of a pipeline that ``model_index.json`` names.

    Raises SubjectError where it is damaged.
    """
    document = read_json(folder / PIPELINE)
    if not isinstance(document, dict):
        raise SubjectError(
            f"{text}: {PIPELINE} cannot be read as a list of components: it is damaged. Get the folder again, or save "
            "it anew"
        )
    pairs = ((name, value) for name, value in document.items() if not name.startswith("_") and isinstance(value, list))
    # a list of other things is an argument of the pipeline
    return {name: (value[0], str(value[1])) for name, value in pairs if len(value) == 2 and isinstance(value[0], str)}


def lacking(text: str, form: str, folder: Path, task: str | None = None) -> list[str]:
    """The files that a subject of the form needs and the folder does not hold, relative to it.

    Raises SubjectError where a file that lists others is damaged.
    """
    if not (folder / ENTRIES.get(form, CONFIG)).exists():
        return [ENTRIES.get(form, CONFIG)]
    if form == "diffusers":
        found = [file for name in components(text, folder) for file in _of_component(folder / name)]
    elif form == "sentence-transformers":
        found = [file for kind, place in modules(text, folder) for file in _of_module(kind.rpartition(".")[2], place)]
    else:
        found = [*_weights(folder, "model"), *_pieces(folder, task)]
    return [file.relative_to(folder).as_posix() for file in found]


def _of_component(folder: Path) -> Iterator[Path]:
    """A model has a ``config.json``; tokenizers, schedulers and processors have files of other names."""
    if not any(folder.glob("*.json")) and not any(folder.glob("*.txt")):
        yield folder / "*"
    elif (folder / CONFIG).exists():
        yield from _weights(folder, "*")


def _of_module(kind: str, folder: Path) -> Iterator[Path]:
    if kind in _TOKENIZE and not _has(folder, [*TOKENIZER, *PROCESSOR]):
        yield folder / TOKENIZER[0]
    if kind in _TRANSFORMERS and not (folder / CONFIG).exists():
        yield folder / CONFIG
    if kind in _WITH_SETTINGS and not any(folder.glob("*.json")):
        yield folder / CONFIG
    if kind in _TRANSFORMERS:
        yield from _weights(folder, "model")
    elif kind in _WITH_WEIGHTS and not (folder / "pytorch_model.bin").exists():  # which is read as weights alone
        yield from _weights(folder, "*")


def _weights(folder: Path, name: str) -> list[Path]:
    """What is missing of weights in safetensors: all files of an index, or one file."""
    whole = (file for file in folder.glob(f"{name}.safetensors") if not _OTHER_FORM.search(file.name))
    if any(file.exists() for file in whole):
        return []
    indexes = [file for file in folder.glob(f"{name}.safetensors.index.json") if not _OTHER_FORM.search(file.name)]
    if not indexes:
        return [folder / f"{name}.safetensors"]
    named = read_json(indexes[0])
    named = named.get("weight_map") if isinstance(named, dict) else None
    files = {str(file) for file in named.values()} if isinstance(named, dict) else {indexes[0].name}
    return [folder / file for file in sorted(files) if file == indexes[0].name or not (folder / file).exists()]


def _pieces(folder: Path, task: str | None) -> list[Path]:
    """What a pipeline needs besides the model, as far as the name of its task says it."""
    if task is None:
        return []
    files = {"text": TOKENIZER, "picture": PROCESSOR, "sound": PROCESSOR}.get(reads(task) or "", TOKENIZER + PROCESSOR)
    return [] if _has(folder, files) else [folder / files[0]]


def _has(folder: Path, files: list[str]) -> bool:
    return any((folder / file).exists() for file in files)


def _routed(folder: Path) -> list[tuple[str, Any]]:
    """A router (once called Asym) names further modules: their folders by their classes."""
    for name in ("router_config.json", CONFIG):
        document = read_json(folder / name)
        if isinstance(document, dict) and isinstance(document.get("types"), dict):
            return list(document["types"].items())
    return []


def _below(folder: Path, name: str) -> Path:
    if not PurePosixPath(name).parts:
        raise ValueError(name)
    return _inside(folder, name)


def _inside(folder: Path, name: str) -> Path:
    path = PurePosixPath(_text(name))
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ValueError(name)
    return folder / path


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
