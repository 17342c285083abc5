"""Models of the Hugging Face Hub in this machine's cache: found by name and revision, never downloaded. No torch."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from togi.core.errors import SubjectError, nearest
from togi.subject import catalogue

if TYPE_CHECKING:
    from togi.subject.locator import Spec

_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")
_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w.\-/]*")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_CONFIG = "config.json"


def pinned(locator: Spec) -> Spec:
    """The locator with the revision that is cached, by its commit: what is written down of a study names the very
    weights. Raises SubjectError where they are not in the cache, or are of a kind that togi does not load."""
    folder = _cached_folder(locator)
    _check_loadable(locator, folder)
    options = {**locator.options, "revision": folder.name}
    text = f"{locator.form}:{locator.target}?{urlencode(options, safe='/:,')}"
    return dataclasses.replace(locator, text=text, options=options)


def in_cache(locator: Spec) -> Spec:
    """The same model as a folder: ``transformers:FOLDER``. Raises SubjectError as ``pinned`` does."""
    options = {name: value for name, value in locator.options.items() if name != "revision"}
    folder = _cached_folder(locator)
    return dataclasses.replace(locator, form="transformers", target=str(folder), options=options)


def cached_file(name: str, file: str, revision: str | None = None) -> Path | None:
    """A file of a model in the cache; None where it is not there."""
    from huggingface_hub import constants, try_to_load_from_cache

    found = try_to_load_from_cache(name, file, cache_dir=constants.HF_HUB_CACHE, revision=revision)
    return Path(found) if isinstance(found, str) else None


def _cached_folder(locator: Spec) -> Path:
    catalogue.check_installed("huggingface_hub")
    name, revision = locator.target, locator.options.get("revision")
    if not _NAME.fullmatch(name):
        raise SubjectError(f"{locator.text}: '{name}' is not a name of a model on the Hub, which is ORG/NAME")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise SubjectError(f"{locator.text}: revision={revision} is not a commit, a branch or a tag")
    config = cached_file(name, _CONFIG, revision)
    if config is None:
        raise _not_cached(locator, revision)
    return config.parent


def _not_cached(locator: Spec, revision: str | None) -> SubjectError:
    from huggingface_hub import constants

    cache, option = Path(constants.HF_HUB_CACHE), "" if revision is None else f" --revision {revision}"
    known = [path.name.removeprefix("models--").replace("--", "/") for path in cache.glob("models--*")]
    which = "" if locator.target not in known else "the main revision of " if revision is None else "this revision of "
    near = "" if locator.target in known else nearest(locator.target, known)
    return SubjectError(
        f"{locator.text}: {which}the model is not in the cache {cache}, and togi downloads nothing{near or '.'} Type: "
        f"hf download {locator.target}{option} (for a gated model, hf auth login before)"
    )


def _check_loadable(locator: Spec, folder: Path) -> None:
    """Its weights are there, as safetensors, and none of its own code is needed."""
    if not any((folder / name).exists() for name in _WEIGHTS):
        if any(folder.glob("*.bin")):
            raise SubjectError(
                f"{locator.text}: its weights are pickled, and togi does not unpickle. Convert them once: "
                f"AutoModel.from_pretrained('{locator.target}').save_pretrained('DIR') writes safetensors. Then name "
                "transformers:DIR"
            )
        raise SubjectError(
            f"{locator.text}: the cache holds its configuration and no weights, and a Hub name means the real ones. "
            f"Type: hf download {locator.target}"
        )
    if _has_own_code(folder / _CONFIG):
        raise SubjectError(
            f"{locator.text}: it is a model whose code comes from its repository, and togi runs no downloaded code. If "
            "you trust it, load it with trust_remote_code=True in a function of yours and give 'file.py:function'"
        )


def _has_own_code(config: Path) -> bool:
    """Code that transformers would need: a type of model of its own has none else. What an installed version knows is
    built by that."""
    try:
        read = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # transformers says what is wrong with it
    known = catalogue.names("transformers")
    return isinstance(read, dict) and "auto_map" in read and bool(known) and read.get("model_type") not in known
