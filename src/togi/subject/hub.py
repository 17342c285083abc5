"""Models of the Hugging Face Hub in this machine's cache: found by name and revision. No torch.

Nothing is downloaded without the permit for it (``togi.core.permits``); then a process of its own does it, since what
downloads starts threads, and a trial server that has threads cannot fork.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from togi.core.errors import SubjectError, nearest
from togi.core.interpreter import python
from togi.core.permits import Permit, permitted
from togi.subject import catalogue

if TYPE_CHECKING:
    from togi.subject.locator import Form, Spec

_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")
_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w.\-/]*")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_CONFIG = "config.json"
PIPELINE = "model_index.json"
"""What a folder of diffusers holds in place of a ``config.json``."""
_PLAIN = ("*.json", "*.txt", "*.model", "*.jinja", "*.safetensors")
_LEFT_OUT = ("*.fp16.*", "*.non_ema.*", "onnx/*", "openvino/*", "original/*")
"""Files of the same weights in other forms."""


_SAVED_BY = {"hf": ("AutoModel", "transformers"), "diffusers": ("DiffusionPipeline", "diffusers")}


class NotCachedError(SubjectError):
    """Something of a model is not in the cache, and a download would put it there."""


def offline() -> None:
    """Keep this process from asking the Hub for what is missing. Called by processes of togi's own, before anything is
    loaded; the environment of the user has the last word."""
    if os.environ.setdefault("HF_HUB_OFFLINE", "1") != "1":
        return
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:  # which has read the environment already
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def pinned(locator: Spec) -> Spec:
    """The locator with the revision that is cached, by its commit: what is written down of a study names the very
    weights. Raises SubjectError where they are not in the cache, or are of a kind that togi does not load."""
    _check_name(locator)

    def found() -> Path:
        folder = _cached_folder(locator)
        _check_loadable(locator, folder)
        return folder

    files = list(_PLAIN)
    if locator.form == "diffusers":  # what lies above the folders of its parts are the same weights in one file
        files[-1] = "*/*.safetensors"
    folder = or_downloaded(locator, found, locator.target, files, locator.options.get("revision"))
    options = {**locator.options, "revision": folder.name}
    text = f"{locator.form}:{locator.target}?{urlencode(options, safe='/:,')}"
    return dataclasses.replace(locator, text=text, options=options)


def in_cache(locator: Spec) -> Spec:
    """The same model as a folder: ``transformers:FOLDER``. Raises SubjectError as ``pinned`` does."""
    options = {name: value for name, value in locator.options.items() if name != "revision"}
    folder = _cached_folder(locator)
    form: Form = "transformers" if locator.form == "hf" else locator.form
    return dataclasses.replace(locator, form=form, target=str(folder), options=options)


def cached_file(name: str, file: str, revision: str | None = None) -> Path | None:
    """A file of a model in the cache; None where it is not there."""
    from huggingface_hub import constants, try_to_load_from_cache

    found = try_to_load_from_cache(name, file, cache_dir=constants.HF_HUB_CACHE, revision=revision)
    return Path(found) if isinstance(found, str) else None


def own_code(folder: Path) -> bool:
    """Whether code of the folder is needed to build the model: its type is one that transformers does not have. What an
    installed version knows is built by that."""
    try:
        read = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # transformers says what is wrong with it
    known = catalogue.names("transformers")
    return isinstance(read, dict) and "auto_map" in read and bool(known) and read.get("model_type") not in known


def check_own_code(text: str, folder: Path) -> bool:
    """Return whether the model's own code is run. Raises SubjectError where it is needed without the permit for it."""
    if not own_code(folder):
        return False
    if not permitted(Permit.REMOTE_CODE):
        raise SubjectError(
            f"{text}: it is a model whose code comes with its weights, and togi runs no downloaded code unasked: it "
            f"may do whatever you may. Read the .py files in {folder}. If you trust them, add {Permit.REMOTE_CODE.how}"
        )
    return True


def check_files(locator: Spec) -> None:
    """That transformers reads weights from safetensors of the folder alone: of what an index names, it unpickles files
    that end otherwise.

    Raises SubjectError.
    """
    if (locator.path / "adapter_config.json").exists():
        raise SubjectError(
            f"{locator.text}: it holds an adapter (adapter_config.json), whose base may be downloaded: merge it into "
            "the model, and save that with save_pretrained(NEW_DIR)"
        )
    for index in locator.path.glob("*.index.json"):
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError):
            raise SubjectError(
                f"{locator.text}: {index.name} cannot be read as a list of weights: it is damaged"
            ) from None
        strange = [name for name in named if not re.fullmatch(r"[\w\-][\w.\-]*\.safetensors", str(name))]
        if strange and "safetensors" in index.name:
            raise SubjectError(
                f"{locator.text}: {index.name} names {strange[0]!r}, which is not a safetensors file of the folder, "
                "and togi does not unpickle. AutoModel.from_pretrained(DIR).save_pretrained(NEW_DIR) writes safetensors"
            )


def or_downloaded(
    locator: Spec, find: Callable[[], Path], name: str, files: Sequence[str], revision: str | None = None
) -> Path:
    """What ``find`` finds; with the permit for it, after a download of ``files`` (patterns) where that raises
    NotCachedError."""
    try:
        return find()
    except NotCachedError:
        if not permitted(Permit.DOWNLOAD):
            raise
    _download(locator, name, [*files, *(["*.py"] if permitted(Permit.REMOTE_CODE) else [])], revision)
    return find()


def _check_name(locator: Spec) -> None:
    catalogue.check_installed("huggingface_hub")
    name, revision = locator.target, locator.options.get("revision")
    if not _NAME.fullmatch(name):
        raise SubjectError(f"{locator.text}: '{name}' is not a name of a model on the Hub, which is ORG/NAME")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise SubjectError(f"{locator.text}: revision={revision} is not a commit, a branch or a tag")


def _cached_folder(locator: Spec) -> Path:
    name, revision = locator.target, locator.options.get("revision")
    entry = PIPELINE if locator.form == "diffusers" else _CONFIG
    found = cached_file(name, entry, revision)
    if found is not None:
        return found.parent
    if entry == _CONFIG and cached_file(name, PIPELINE, revision) is not None:
        raise SubjectError(f"{locator.text}: it is a pipeline of diffusers: name it as diffusers:{name}")
    raise _not_cached(locator, revision)


def _not_cached(locator: Spec, revision: str | None) -> SubjectError:
    from huggingface_hub import constants

    cache, option = Path(constants.HF_HUB_CACHE), "" if revision is None else f" --revision {revision}"
    known = [path.name.removeprefix("models--").replace("--", "/") for path in cache.glob("models--*")]
    which = "" if locator.target not in known else "the main revision of " if revision is None else "this revision of "
    near = "" if locator.target in known else nearest(locator.target, known)
    return NotCachedError(
        f"{locator.text}: {which}the model is not in the cache {cache}, and togi downloads nothing{near or '.'} Type: "
        f"hf download {locator.target}{option} (for a gated model, hf auth login before), or add "
        f"{Permit.DOWNLOAD.how}"
    )


def _check_loadable(locator: Spec, folder: Path) -> None:
    """Its weights are there, as safetensors, and its own code is either not needed or trusted."""
    there = (
        any(folder.glob("*/*.safetensors"))
        if locator.form == "diffusers"
        else any((folder / name).exists() for name in _WEIGHTS)
    )
    if not there:
        if any(folder.rglob("*.bin")):
            cls, form = _SAVED_BY.get(locator.form, _SAVED_BY["hf"])
            raise SubjectError(
                f"{locator.text}: its weights are pickled, and togi does not unpickle. Convert them once: "
                f"{cls}.from_pretrained('{locator.target}').save_pretrained('DIR') writes safetensors. Then name "
                f"{form}:DIR"
            )
        raise NotCachedError(
            f"{locator.text}: the cache holds its configuration and no weights, and a Hub name means the real ones. "
            f"Type: hf download {locator.target}, or add {Permit.DOWNLOAD.how}"
        )
    check_own_code(locator.text, folder)


_DOWNLOAD = """
import json, sys
from huggingface_hub import snapshot_download
asked = json.loads(sys.argv[1])
try:
    snapshot_download(**asked)
    answer = []
except BaseException as error:
    answer = [[kind.__name__ for kind in type(error).__mro__], str(error) or type(error).__name__]
print(json.dumps(answer))
"""
_WHY = {
    "GatedRepoError": "it is gated: ask for access on its page on the Hub, type 'hf auth login', and try again",
    "RevisionNotFoundError": "the Hub has no such revision of it: look at its page for branches and tags",
    "RepositoryNotFoundError": "the Hub has no such model, or it is private: look at the name, or type 'hf auth login'",
    "LocalEntryNotFoundError": "the Hub cannot be reached from here: try again once there is a network",
    "PermissionError": "the cache may not be written by you: set HF_HOME to a folder of yours",
}
"""By classes of errors: what to do then."""


def _download(locator: Spec, name: str, files: Sequence[str], revision: str | None) -> None:
    """Raises SubjectError where it cannot be downloaded, with what to do."""
    from huggingface_hub import constants

    asked = {
        "repo_id": name,
        "revision": revision,
        "cache_dir": constants.HF_HUB_CACHE,
        "allow_patterns": list(files),
        "ignore_patterns": list(_LEFT_OUT),
    }
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_OFFLINE")}
    ended = subprocess.run(
        python(_DOWNLOAD, json.dumps(asked)), env=environment, stdout=subprocess.PIPE, encoding="utf-8", check=False
    )
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        answer = [[], f"the process that downloads ended with code {ended.returncode}"]
    if answer:
        kinds, message = answer
        why = next((_WHY[kind] for kind in kinds if kind in _WHY), message.splitlines()[0])
        raise SubjectError(f"{locator.text}: {name} cannot be downloaded: {why}")
