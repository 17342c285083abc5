"""``togi.optimize`` and ``togi.restore``: what is tuned goes into an object of the user's own, which stays that object.

The study is that of ``togi.tune``. What it chose stands for the ``forward`` of the modules inside the object
(``artifact/installed``), as in a script that ``togi run`` serves.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from togi.artifact.installed import Installed, installed_in
from togi.artifact.load import put_in_place
from togi.artifact.manifest import Manifest, read_manifest
from togi.artifact.optimized import OptimizedModule
from togi.artifact.save import SUFFIX
from togi.artifact.settings import changed_setting, is_other_code
from togi.artifact.signing import Trusted
from togi.artifact.weights import weights_hash
from togi.core.errors import ArtifactError, SubjectError
from togi.core.interrupt import interrupted_after
from togi.core.quantities import a_type
from togi.script.switch import ScriptSwitch
from togi.subject.behaviour import SavedBuffers, kept_generators, seed_all
from togi.subject.inputs import Inputs, Subject
from togi.subject.leaves import is_array
from togi.subject.nested import tensors_in
from togi.subject.prepare import copy_to_ask, training_parts
from togi.subject.program import ProgramModule, find_module, is_called_otherwise
from togi.subject.remembered import changed_since, remembered
from togi.torch_internals.modules import has_own_call, users_hooks
from togi.torch_internals.tensors import tensors_of

_TEXT_METHODS = {"SentenceTransformer": "encode"}
"""Modules of sentence-transformers whose users call a method with texts, by class."""
_MOST_TEXTS = 32
"""In one call: as many as the library puts into a batch. A longer list is a collection."""
_OF_A_COLLECTION = ((1 / 8, 4), (1 / 2, 2), (7 / 8, 1))
"""Where in the order of lengths the texts of a call lie, and how many: of long ones few, which cost most."""
IN_FOLDER = f"optimized{SUFFIX}"
"""The artifact next to the files of a saved model."""
_CALLED = "module"
"""What ``_calls_of`` calls the module that it calls."""
_ASK_S = 60.0
"""For calls that show what a module keeps."""


class DropInSwitch(ScriptSwitch):
    """As in a script, but whoever called ``togi.optimize`` hears why an original serves calls, once."""

    def _warn_once(self, of: str, text: str) -> None:
        super(ScriptSwitch, self)._warn_once(of, text)


def tuned_object(obj: Any, inputs: Any) -> tuple[nn.Module, list[Inputs]]:
    """What ``togi.tune`` is given for an object of the user's, and the samples.

    Raises SubjectError where it is not an object that anything can be put into, or is not ready for that.
    """
    _check_object(obj)
    samples = _samples(inputs, reads_text=_reads_text(obj))
    program = _program(obj, with_texts=not any(tensors_in((s.args, dict(s.kwargs))) for s in samples))
    if installed_in(program):
        raise SubjectError(
            f"{_name(program)} is optimized already: call togi.restore on it first, then togi.optimize again"
        )
    trained = [] if isinstance(program, ProgramModule) else list(training_parts(program))
    if trained:
        raise SubjectError(
            f"{_name(program)} is in training mode, in which the original would serve every call: call .eval() on it "
            "first"
        )
    if not isinstance(program, ProgramModule):
        hooked = has_own_call(program) or any(map(users_hooks, program.modules()))
        if hooked or _keeps_tensors(program, samples[0]):
            # what stands for a whole module is ``forward`` alone, and leaves nothing behind; a part leaves its state
            program = _calls_of(program)
    _warn_of_hooks(program)
    return program, samples


def put_into(program: nn.Module, artifact: Path, samples: list[Inputs]) -> Installed:
    """Put in what was just tuned for it. ``samples``: for a program that makes its modules in its first call.

    Raises ArtifactError where what decides the answers of a module is another one in the copy that was tuned.
    """
    manifest = read_manifest(artifact)
    for part in manifest.parts:
        find_module(program, part.key.path, samples[0])
    if is_other_code(manifest.settings, program):
        raise ArtifactError(
            f"{_name(program)} was tuned as a copy in a process of its own, where its code, or a number that this "
            "names, is another than here. What was changed since its file was imported stays behind: change it in the "
            "file, and optimize it again"
        )
    return put_in_place(artifact, program, DropInSwitch, manifest=manifest)


def put_saved_into(obj: Any, artifact: Path, *, native: bool, trusted: Trusted | None) -> Installed:
    """Put in what was tuned earlier. ``native``, ``trusted``: as for ``togi.load``. Raises ArtifactError where it was
    tuned for another object."""
    _check_object(obj)
    manifest = read_manifest(artifact, trusted)
    program = _program(obj, with_texts=manifest.facts.program)
    called = {part.key.path.partition(".")[0] for part in manifest.parts} == {_CALLED}
    if called and isinstance(program, nn.Module) and not isinstance(program, ProgramModule):
        program = _calls_of(program)
    _check_same(program, artifact, manifest)
    return put_in_place(artifact, program, DropInSwitch, native=native, manifest=manifest)


def restore(obj: Any) -> None:
    """Take out all that is in the modules of an object. Raises SubjectError where no module can be found from it."""
    program = obj if isinstance(obj, nn.Module) else ProgramModule(obj)
    for installed in installed_in(program):
        installed.remove()


def artifact_at(path: str | Path) -> Path:
    """The artifact, or its place next to the files of a model that was saved in this folder."""
    path = Path(path)
    return path / IN_FOLDER if path.is_dir() and path.suffix != SUFFIX else path


def device_of(module: nn.Module) -> str:
    """Where its first weight is."""
    weight = next(module.parameters(), next(module.buffers(), None))
    return "cpu" if weight is None else str(weight.device)


def _warn_of_hooks(program: nn.Module) -> None:
    """Those inside: round what stands for a module its own hooks are called as ever."""
    outermost = set(map(id, program.children() if isinstance(program, ProgramModule) else [program]))
    inner = {name: part for name, part in program.named_modules() if part is not program and id(part) not in outermost}
    if hooked := [name for name, part in inner.items() if users_hooks(part)]:
        more = f" (and {len(hooked) - 1} more)" if hooked[1:] else ""
        warnings.warn(
            f"{hooked[0]}{more} has forward hooks. What they compute is in what togi puts in, which does not call "
            "them: what they note down elsewhere stays as it is",
            stacklevel=4,
        )


def _keeps_tensors(module: nn.Module, sample: Inputs) -> bool:
    """Whether its calls leave other tensors in its buffers or attributes each time: a state, or what they found on the
    way."""
    with suppress(Exception), interrupted_after(_ASK_S), kept_generators(), torch.no_grad():  # foreign code
        asked = copy_to_ask(Subject(module, sample))
        _call(asked, sample)  # what is made once, is made in the first call
        buffers, before = SavedBuffers(asked), remembered(asked)
        for given in (sample, sample.map(_with_other_values)):
            _call(asked, given)
            changed, now = changed_since(before, asked), remembered(asked)
            if buffers.changed() or any(tensors_of((before.get(name), now.get(name))) for name in changed):
                return True
    return False


def _call(module: nn.Module, sample: Inputs) -> None:
    given = sample.clone()
    seed_all(0)
    module(*given.args, **given.kwargs)


def _with_other_values(tensor: Tensor) -> Tensor:
    """Of those that it holds, or near them."""
    return tensor * 0.5 if tensor.is_floating_point() else tensor.flip(-1) if tensor.dim() else tensor


def _calls_of(module: nn.Module) -> ProgramModule:
    """The program that calls it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    call.__name__ = type(module).__name__
    with suppress(TypeError, ValueError):  # TorchScript has none
        call.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
    return ProgramModule(call, in_parts=True)


def _check_object(obj: Any) -> None:
    if isinstance(obj, OptimizedModule):
        raise SubjectError("it is an artifact of togi, and so optimized already: give the original object")
    if isinstance(obj, str | Path | Subject):
        raise SubjectError(
            f"togi.optimize makes a live object faster, and this is {a_type(obj)}: give a module, a pipeline or a "
            "bound method such as model.generate. togi.tune takes locators and togi.Subject"
        )
    if isinstance(obj, type | ExportedProgram) or not callable(obj):
        raise SubjectError(
            f"the object is {a_type(obj)}: give an nn.Module, or what can be called and runs modules, such as a "
            "pipeline or the bound method model.generate"
        )
    if isinstance(obj, torch.jit.ScriptModule):
        raise SubjectError(
            "it is TorchScript, whose forward nothing can stand for: togi.tune(module, inputs=...).best.load() gives "
            "another module to call in its place"
        )


def _samples(inputs: Any, *, reads_text: bool) -> list[Inputs]:
    """As ``togi.tune`` takes them. What would not be a sample is the one argument of a call: a text, a list of texts, a
    picture. Texts come in all lengths, so they are followed by a shorter one: what is proven for one size alone would
    leave all others to the original."""
    if inputs is None:
        raise SubjectError(
            "togi.optimize needs inputs=...: one sample or a list of samples, called with which the object is to be "
            "faster. For an artifact that was saved earlier give using='NAME.togi'"
        )
    if isinstance(inputs, list) and inputs and all(map(_is_sample, inputs)):
        return [Inputs.of(sample) for sample in inputs]
    if _is_sample(inputs):
        return [Inputs.of(inputs)]
    calls = _calls_with(inputs) if reads_text else [inputs]
    other = _of_other_length(calls[0]) if reads_text else None
    return [Inputs((given,)) for given in (*calls, other) if given is not None]


def _calls_with(texts: Any) -> list[Any]:
    """What the calls of a study are given. A long list is a collection, all of which would take the time of the whole
    study in every turn. Libraries make batches of it, of texts of like lengths, and so do these calls."""
    if not isinstance(texts, list) or len(texts) <= _MOST_TEXTS or not all(isinstance(text, str) for text in texts):
        return [texts]
    by_length = sorted(texts, key=len)
    return [by_length[int(place * len(texts)) :][:count] for place, count in _OF_A_COLLECTION]


def _of_other_length(texts: Any) -> Any:
    """A text of another length than this one, or one shorter text in place of several. None for anything else."""
    if isinstance(texts, str):
        words = texts.split()
        return " ".join(words[: len(words) // 2] or [texts, texts])
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return [_of_other_length(texts[0])]
    return None


def _reads_text(obj: Any) -> bool:
    """Not a pipeline of pictures or sound, for which a text is the name of a file."""
    if isinstance(obj, nn.Module):
        return bool(_text_method(obj))
    owner = getattr(obj, "__self__", obj)
    reads = [getattr(owner, name, None) is not None for name in ("tokenizer", "image_processor", "feature_extractor")]
    return bool(isinstance(owner, nn.Module) and _text_method(owner)) or reads == [True, False, False]


def _is_sample(value: Any) -> bool:
    named = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    return named or isinstance(value, torch.Tensor | tuple | Inputs) or is_array(value)


def _program(obj: Any, *, with_texts: bool) -> nn.Module:
    """The module, or what is called of it with texts. All that is not a module is tuned in parts: nothing can stand for
    a pipeline or a function as a whole."""
    if isinstance(obj, ProgramModule):
        obj = obj.forward
    if with_texts and isinstance(obj, nn.Module) and (method := _text_method(obj)):
        obj = getattr(obj, method)
    elif isinstance(obj, nn.Module) and is_called_otherwise(obj):
        obj = obj.__call__
    return obj if isinstance(obj, nn.Module) else ProgramModule(obj, in_parts=True)


def _text_method(module: nn.Module) -> str:
    bases = [base.__name__ for base in type(module).__mro__ if base.__module__.startswith("sentence_transformers.")]
    return next((_TEXT_METHODS[name] for name in bases if name in _TEXT_METHODS), "")


def _check_same(program: nn.Module, artifact: Path, manifest: Manifest) -> None:
    """That it is what was tuned. Of parts each knows by itself of which module it is."""
    again = "tune this one: togi.optimize(obj, inputs=...)"
    if manifest.facts.program != isinstance(program, ProgramModule):
        raise ArtifactError(
            f"{artifact} was made of {manifest.subject}, and this is {_name(program)}: give togi.optimize what was "
            f"tuned, such as the method itself (model.generate), or {again}"
        )
    if manifest.parts:
        return
    if isinstance(program, ProgramModule):
        raise ArtifactError(
            f"{artifact} stands for the whole of {manifest.subject}, and what is put into {program.name} stands for "
            f"modules inside: {again}"
        )
    if not manifest.weights:
        raise ArtifactError(f"{artifact} does not say of which weights it was made (an earlier togi wrote it): {again}")
    if weights_hash(program) != manifest.weights:
        raise ArtifactError(
            f"{artifact} was made of a {manifest.facts.module_class} with other weights or of another structure than "
            f"this {type(program).__name__}, so it would answer for that one: {again}"
        )
    if changed := changed_setting(manifest.settings, program):
        raise ArtifactError(
            f"{artifact} was made of a {manifest.facts.module_class} of which {changed} was another than here, so it "
            f"would answer for that: {again}"
        )


def _name(program: nn.Module) -> str:
    return program.name if isinstance(program, ProgramModule) else type(program).__name__
