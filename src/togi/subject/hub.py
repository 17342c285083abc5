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
from togi.subject.model_folders import CONFIG, ENTRIES, MODULES, PIPELINE, lacking
from togi.subject.own_code import check_own_code

if TYPE_CHECKING:
    from togi.subject.locator import Form, Spec

_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")
_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w.\-/]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PLAIN = ("*.json", "*.txt", "*.model", "*.jinja", "*.safetensors")
_LEFT_OUT = ("*.fp16.*", "*.non_ema.*", "onnx/*", "openvino/*", "original/*")
"""Files of the same weights in other forms."""


_SAVED_BY = {
    "hf": ("AutoModel.from_pretrained('{}').save_pretrained('DIR')", "transformers"),
    "diffusers": ("DiffusionPipeline.from_pretrained('{}').save_pretrained('DIR')", "diffusers"),
    "sentence-transformers": ("SentenceTransformer('{}').save('DIR')", "sentence-transformers"),
}


class NotCachedError(SubjectError):
    """Something of a model is not in the cache, and a download would put it there, if the Hub has it.

    Args:
        what: names the missing files.
    """

    def __init__(self, message: str, what: str = "what togi needs of it") -> None:
        super().__init__(message)
        self.what = what


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
    revision = locator.options.get("revision")
    moves = revision is None or not _COMMIT.fullmatch(revision)
    folder = or_downloaded(locator, found, locator.target, files, revision, always=moves)
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


def check_files(locator: Spec, folder: Path | None = None) -> None:
    """That transformers reads weights from safetensors of the folder alone: of what an index names, it unpickles files
    that end otherwise.

    Raises SubjectError.
    """
    folder = locator.path if folder is None else folder
    if (folder / "adapter_config.json").exists():
        raise SubjectError(
            f"{locator.text}: it holds an adapter (adapter_config.json), whose base may be downloaded: merge it into "
            "the model, and save that with save_pretrained(NEW_DIR)"
        )
    for index in folder.glob("*.index.json"):
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError):
            raise SubjectError(
                f"{locator.text}: {index.name} cannot be read as a list of weights: it is damaged. Get the folder again"
            ) from None
        strange = [name for name in named if not re.fullmatch(r"[\w\-][\w.\-]*\.safetensors", str(name))]
        if strange and "safetensors" in index.name:
            raise SubjectError(
                f"{locator.text}: {index.name} names {strange[0]!r}, which is not a safetensors file of the folder, "
                "and togi does not unpickle. AutoModel.from_pretrained(DIR).save_pretrained(NEW_DIR) writes safetensors"
            )


def or_downloaded(
    locator: Spec,
    find: Callable[[], Path],
    name: str,
    files: Sequence[str],
    revision: str | None = None,
    *,
    always: bool = False,
) -> Path:
    """What ``find`` finds; with the permit for it, after a download of ``files`` (patterns) where that raises
    NotCachedError.

    Args:
        always: with the permit, ask the Hub for what is there too: names of files do not tell whether all are there,
            and what is there is not fetched again.

    Raises SubjectError where the Hub does not hold what is missing either.
    """
    found = _found(find)
    if not permitted(Permit.DOWNLOAD) or (isinstance(found, Path) and not always):
        return _given(found)
    try:
        _download(locator, name, [*files, *(["*.py"] if permitted(Permit.REMOTE_CODE) else [])], revision)
    except SubjectError:
        if isinstance(found, Path):
            return found  # without a network, too
        raise
    downloaded = _found(find)
    if isinstance(downloaded, NotCachedError):
        raise SubjectError(
            f"{locator.text}: {name} was downloaded, and the Hub does not hold {downloaded.what}, so it cannot be "
            f"loaded as {locator.form}. Look at its page there for what it is: weights in another form than "
            "safetensors must be converted, and another kind of model has another name in togi (hf:, diffusers:)"
        )
    return downloaded


def _found(find: Callable[[], Path]) -> Path | NotCachedError:
    try:
        return find()
    except NotCachedError as error:
        return error


def _given(found: Path | NotCachedError) -> Path:
    if isinstance(found, NotCachedError):
        raise found
    return found


def _check_name(locator: Spec) -> None:
    catalogue.check_installed("huggingface_hub")
    name, revision = locator.target, locator.options.get("revision")
    if not _NAME.fullmatch(name):
        raise SubjectError(f"{locator.text}: '{name}' is not a name of a model on the Hub, which is ORG/NAME")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise SubjectError(f"{locator.text}: revision={revision} is not a commit, a branch or a tag")


def _cached_folder(locator: Spec) -> Path:
    name, revision = locator.target, locator.options.get("revision")
    entry = ENTRIES.get(locator.form, CONFIG)
    found = cached_file(name, entry, revision)
    if found is not None:
        return found.parent
    if entry == CONFIG and cached_file(name, PIPELINE, revision) is not None:
        raise SubjectError(f"{locator.text}: it is a pipeline of diffusers: name it as diffusers:{name}")
    if entry == MODULES and cached_file(name, CONFIG, revision) is not None:
        raise NotCachedError(
            f"{locator.text}: the cache holds it without its {MODULES}, which says how tokens become one vector, and "
            f"togi does not guess that. Type: hf download {name}, or add {Permit.DOWNLOAD.how}. If the Hub has no such "
            f"file either, it is not a model of sentence-transformers: SentenceTransformer('{name}').save('DIR') "
            "writes the file of what the library guesses, for sentence-transformers:DIR",
            f"its {MODULES}",
        )
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
        f"{Permit.DOWNLOAD.how}",
        f"a {ENTRIES.get(locator.form, CONFIG)} of it",
    )


def _check_loadable(locator: Spec, folder: Path) -> None:
    """All of it is there, its weights as safetensors, and its own code is either not needed or trusted."""
    task = locator.options.get("task")
    missing = lacking(locator.text, locator.form, folder, task)
    if any(name.endswith(".safetensors") and any((folder / name).parent.glob("*model*.bin")) for name in missing):
        written, form = _SAVED_BY[locator.form]
        raise NotCachedError(
            f"{locator.text}: its weights are pickled, and togi does not unpickle. Convert them once: "
            f"{written.format(locator.target)} writes safetensors. Then name {form}:DIR",
            "its weights as safetensors",
        )
    if missing:
        more = f" and {len(missing) - 3} more files" if len(missing) > 3 else ""
        what, revision = ", ".join(missing[:3]) + more, locator.options.get("revision")
        option = "" if revision is None else f" --revision {revision}"
        raise NotCachedError(
            f"{locator.text}: the cache holds it without {what}, and a Hub name means the whole model. "
            f"Type: hf download {locator.target}{option}, or add {Permit.DOWNLOAD.how}",
            what,
        )
    check_own_code(locator.text, locator.form, folder, reads=task is not None)


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
