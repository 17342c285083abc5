"""Subjects ``sentence-transformers:X``: ``encode`` of a model in a folder or in the cache of the Hub, with tokenizer.

The samples are texts of several lengths, together and one alone. Nothing is downloaded, and no code of a model is run,
without the permits for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from togi.core.errors import SubjectError
from togi.core.permits import Permit, permitted
from togi.subject.hub import check_files, in_cache
from togi.subject.inputs import Inputs, Subject
from togi.subject.locator import Spec
from togi.subject.model_folders import MODULES, modules
from togi.subject.own_code import check_own_code
from togi.subject.program import ProgramModule
from togi.subject.sources.media import TEXTS
from togi.subject.sources.missing_weights import check_made_up, noting_made_up
from togi.subject.sources.weights import unpickling


def from_sentence_transformers(locator: Spec) -> Subject:
    """Raises SubjectError where sentence-transformers cannot load it without unpickling, foreign code or made-up
    weights."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Threads that load weights may outlive the loading; a trial server that has threads cannot fork.
    os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
    folder = locator if locator.path.is_dir() else in_cache(locator)
    check_own_code(locator.text, locator.form, folder.path)
    named = modules(locator.text, folder.path) if (folder.path / MODULES).exists() else []
    for place in (folder.path, *(place for _, place in named)):
        check_files(folder, place)
    if any(folder.path.rglob("pytorch_model*.bin")) and not any(folder.path.rglob("*.safetensors")):
        raise SubjectError(
            f"{locator.text}: its weights are pickled, and togi does not unpickle. Convert them once: "
            "SentenceTransformer(DIR).save(NEW_DIR) writes safetensors"
        )
    texts = list(TEXTS)
    model = _loaded(locator, str(folder.path))
    notes = () if (folder.path / MODULES).exists() else (_guessed(folder.path, model),)
    return Subject(ProgramModule(model.encode), [Inputs((texts,)), Inputs((texts[1:2],))], notes=notes)


def _guessed(folder: Path, model: Iterable[Any]) -> str:
    """What the library made of a folder that does not say how the vectors of tokens become that of a text."""
    modes = ((type(module).__name__, getattr(module, "pooling_mode", "")) for module in model)
    made = ", ".join(f"{name} ({mode})" if mode else name for name, mode in modes)
    return (
        f"{folder} holds no {MODULES}, so it is a checkpoint of transformers, and what makes one vector of a text is "
        f"the guess of sentence-transformers: {made}. Is another meant, SentenceTransformer(modules=[...]).save(DIR) "
        "writes it down."
    )


def _loaded(locator: Spec, folder: str) -> Any:
    import sentence_transformers
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {
        "device": "cpu",
        "local_files_only": True,
        "trust_remote_code": permitted(Permit.REMOTE_CODE),
    }
    try:
        with unpickling(trusted=False), noting_made_up(transformers.PreTrainedModel) as made_up:
            model = sentence_transformers.SentenceTransformer(folder, **options).eval()
        check_made_up(locator, made_up, lambda: model.encode(list(TEXTS[1:2])), answers_count=True)
        return model
    except SubjectError:
        raise
    except Exception as error:  # foreign code
        raise locator.failed("sentence-transformers cannot load it", error) from error
