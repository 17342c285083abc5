"""The contestants of ``benchmarks.programs``: one program run in several ways, each in a process of its own.

``eager`` is the program as it is; ``torch.compile`` compiles every module that the program calls itself
(``module.compile(dynamic=True)``); ``regional`` compiles what repeats inside of these (the blocks of a stack), or their
children where nothing repeats; ``togi`` puts an artifact into the program; ``own`` is the fast path that the library or
Intel offers for it: optimum-intel in full precision, silero's ONNX file, ultralytics' export to OpenVINO.

As a script this is the process of one contestant: it answers lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final

from togi.measure import Turn, Warmup, choose_passes, take_turn, warm

HERE = Path(__file__).parent
SUBJECTS = HERE / "program_subjects.py"
EAGER, COMPILED, REGIONAL, TOGI, OWN = "eager", "torch.compile", "regional", "togi", "own"
PEERS = (COMPILED, REGIONAL, OWN)
MOST_ERROR = 1e-3
"""Root mean square of the error over that of the result: float32 in another order stays far below, bfloat16 and
quantization are above."""
_WARM_S = 120.0
"""A compiled program compiles again for other sizes: that belongs to warming up."""
_MOST_READY_S = 300.0
"""To load, compile and warm up: torch.compile had not done with a detector after thirteen minutes."""


class Failed(Exception):
    """A contestant cannot run; the text says why."""


@final
class Contestant:
    """The parent's side: a process that is stopped whenever it is not its turn."""

    def __init__(self, name: str, program: str, folder: Path, *, artifact: Path | None, path: str = "") -> None:
        """``folder`` is shared by the contestants of one program; ``path`` goes before ``PYTHONPATH``.

        Raises Failed.
        """
        self.name = name
        self.log = folder / f"{name}.log"
        ours, theirs = os.pipe()
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [path, environment.get("PYTHONPATH", "")]))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, name, program, str(folder), str(artifact or ""), str(theirs)],
                pass_fds=(theirs,),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,
            )
        os.close(theirs)
        self.answers = os.fdopen(ours, encoding="utf-8")
        until = time.monotonic() + _MOST_READY_S
        ends = threading.Timer(_MOST_READY_S, self._signal, [signal.SIGKILL])
        ends.start()
        try:
            self.difference = str(self._receive("ready")["difference"])
            """How its result differs from the program's own; empty where it does not."""
            self.passes = choose_passes(Warmup.model_validate(self._ask({"warm": {}}, "warmed")).pass_ms)
        except Failed as failed:
            self.close()
            if time.monotonic() >= until:
                raise Failed(f"it was not ready within {_MOST_READY_S:g} s") from failed
            raise
        finally:
            ends.cancel()

    def turn(self, passes: int) -> Turn:
        return Turn.model_validate(self._ask({"turn": passes}, "turned"))

    def counts(self) -> dict[str, list[int]]:
        """By part: calls that an engine served, and calls that the original served."""
        return dict(self._ask({"counts": {}}, "counts"))

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.answers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, message: Mapping[str, Any], key: str) -> Any:
        assert self.process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None
        return self._receive(key)

    def _receive(self, key: str) -> Any:
        line = self.answers.readline()
        if not line:
            raise Failed(self._last_words())
        answer = json.loads(line)
        if "failed" in answer:
            raise Failed(answer["failed"])
        self._signal(signal.SIGSTOP)
        return answer[key]

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"its process ended: {lines[-1] if lines else 'it said nothing'}"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def main(name: str, program: str, folder: str, artifact: str, answers: str) -> None:
    """The process of one contestant."""
    import torch

    out = os.fdopen(int(answers), "w", buffering=1, encoding="utf-8")

    def answer(**message: Any) -> None:
        out.write(json.dumps(message) + "\n")

    try:
        from togi.worker.locate import locate

        with _built(name, program, Path(folder), artifact, locate) as (call, samples, counts):
            with torch.inference_mode():
                found = [compared(call(*given.args, **given.kwargs)) for given in (s.clone() for s in samples)]
            answer(ready={"difference": _difference(name, program, found, Path(folder) / "expected.pt")})
            with torch.inference_mode():
                for line in sys.stdin:
                    message = json.loads(line)
                    if "warm" in message:
                        answer(warmed=warm(call, samples, limit_s=_WARM_S).model_dump(mode="json"))
                    elif "turn" in message:
                        answer(turned=take_turn(call, samples, int(message["turn"])).model_dump(mode="json"))
                    else:
                        answer(counts=counts())
    except Exception as error:  # foreign code: a compiler, a converter, an engine
        import traceback

        traceback.print_exc()
        lines = str(error).strip().splitlines()
        answer(failed=f"{type(error).__name__}: {lines[0] if lines else ''}"[:300])


@contextlib.contextmanager
def _built(name: str, program: str, folder: Path, artifact: str, locate: Callable[[str], Any]) -> Iterator[Any]:
    """``(call, samples, counts)``."""
    none: Callable[[], dict[str, Any]] = dict
    if name == OWN:
        call, samples = own_path(program, folder)
        yield call, samples, none
        return
    subject = locate(f"{SUBJECTS}:{program}")
    samples = subject.inputs
    if name == TOGI:
        from togi import load
        from togi.artifact.optimized import OptimizedProgram

        loaded = load(artifact)
        if not isinstance(loaded, OptimizedProgram):
            yield loaded, samples, none
            return
        import torch

        given = samples[0].clone()
        with torch.no_grad():
            subject.module(*given.args, **given.kwargs)  # makes what the program makes in its first call
        with loaded.into(_as_given(subject.module)) as installed:
            yield subject.module, samples, lambda: installed.counts
        return
    if name in (COMPILED, REGIONAL):
        compile_parts(subject.module, samples, regional=name == REGIONAL)
    yield subject.module, samples, none


def _as_given(module: Any) -> Any:
    """What the factory returned: a plain callable was made a module."""
    from togi.subject.program import ProgramModule

    return module.forward if isinstance(module, ProgramModule) else module


def compile_parts(program: Any, samples: Sequence[Any], *, regional: bool) -> list[str]:
    """Compile in place what the program calls, or what repeats in it; the names of what was compiled."""
    import torch

    from togi.subject.program import ProgramModule

    whole = not isinstance(program, ProgramModule)
    with torch.inference_mode():
        called = {"": program} if whole else outermost_called(program, samples)
    chosen = called
    if regional:
        chosen = {f"{path}.{inner}": part for path, module in called.items() for inner, part in repeated(module)}
        chosen = chosen or {f"{path}.{inner}": c for path, m in called.items() for inner, c in m.named_children()}
    for module in chosen.values():
        module.compile(dynamic=True)
    return list(chosen)


def outermost_called(program: Any, samples: Sequence[Any]) -> dict[str, Any]:
    """The modules that the program's own code calls, by name."""
    from togi.program.calls import record_tree

    modules = dict(program.named_modules())
    tree = record_tree(program, samples)
    found, queue = {}, list(tree.children(0))
    while queue:
        place = queue.pop(0)
        if path := tree.calls[place].path:
            found[path] = modules[path]
        else:  # a module made anew in the run: what it calls
            queue += tree.children(place)
    return found


def repeated(module: Any) -> Iterator[tuple[str, Any]]:
    """Members of the outermost lists of two and more modules of one class: the blocks of a stack."""
    from torch import nn

    for name, child in module.named_children():
        members = list(child.named_children())
        alike = len(members) > 1 and len({type(member) for _, member in members}) == 1
        if alike and isinstance(child, nn.ModuleList | nn.Sequential) and list(members[0][1].children()):
            yield from ((f"{name}.{inner}", member) for inner, member in members)
        else:
            yield from ((f"{name}.{inner}", found) for inner, found in repeated(child))


def own_path(program: str, folder: Path) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The library's own fast path on the same weights and arguments.

    Raises Failed where it has none. Where optimum-intel needs another version of transformers than the subjects do, the
    model was written to ``folder`` by ``write_model`` before.
    """
    from togi.worker.locate import locate

    if program in OPTIMUM:
        import torch
        from optimum.intel import openvino  # type: ignore[import-not-found,import-untyped,unused-ignore]

        given = torch.load(folder / "arguments.pt", weights_only=True)
        # in its default mode the cache is in 8 bits and activations are quantized (openvino#25054): another result
        exact = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        model = getattr(openvino, OPTIMUM[program]).from_pretrained(folder / "model", export=True, ov_config=exact)
        return model.generate, [_inputs(given)]
    subject = locate(f"{SUBJECTS}:{program}")
    if program == "voice_activity":
        from silero_vad import load_silero_vad  # type: ignore[import-not-found,import-untyped,unused-ignore]

        return _rebound(subject.module.forward, model=load_silero_vad(onnx=True)), subject.inputs
    if program == "yolo":
        from ultralytics import YOLO  # type: ignore[import-not-found,import-untyped,unused-ignore]

        original = _closure(subject.module.forward)["model"]
        height, width = subject.inputs[0].args[0].shape[-2:]
        with contextlib.chdir(folder):
            original.model.yaml_file = "model.yaml"
            exported = Path(original.export(format="openvino", imgsz=(height, width), verbose=False)).absolute()
        return _rebound(subject.module.forward, model=YOLO(exported, task="detect")), subject.inputs
    raise Failed("the library has none")


OPTIMUM = {
    "llama_generate": "OVModelForCausalLM",
    "llama_generate_4": "OVModelForCausalLM",
    "gpt2_generate": "OVModelForCausalLM",
    "gpt2_generate_4": "OVModelForCausalLM",
    "t5_generate": "OVModelForSeq2SeqLM",
    "whisper_generate": "OVModelForSpeechSeq2Seq",
}
"""optimum-intel's class, by program."""
OWN_PATHS = {*OPTIMUM, "voice_activity", "yolo"}
_SETS = {"yolo"}
"""Programs whose result is a set of rows: boxes by confidence, of which two of nearly the same change places."""


def write_model(program: str, folder: Path) -> None:
    """The model of a ``generate`` in the library's format, and the arguments, for another version of the library."""
    import torch

    from togi.worker.locate import locate

    subject = locate(f"{SUBJECTS}:{program}")
    subject.module.forward.__self__.save_pretrained(folder / "model")
    torch.save(dict(subject.inputs[0].kwargs), folder / "arguments.pt")


def _inputs(arguments: Mapping[str, Any]) -> Any:
    from togi.subject.inputs import Inputs

    return Inputs((), arguments)


def _closure(function: Any) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def _rebound(function: Any, **values: Any) -> Any:
    """The same function with other values in its closure."""
    import types

    cells = tuple(types.CellType(value) for value in (_closure(function) | values).values())
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)


def compared(output: Any) -> list[Any]:
    """All that it holds and that is compared, as tensors: arrays and numbers too, and the characters of texts."""
    import torch

    from togi.subject.compared import as_compared
    from togi.subject.nested import ENTER, replaced, tensors_in

    def spelled(part: Any) -> Any:
        return torch.tensor([*map(ord, part)], dtype=torch.int64) if isinstance(part, str) else ENTER

    return [tensor.clone() for tensor in tensors_in(replaced(as_compared(output), spelled))]


def _difference(name: str, program: str, found: list[list[Any]], expected: Path) -> str:
    """What is not as in the program's own result; that is written by the first contestant, plain eager."""
    import torch

    if name == EAGER:
        torch.save(found, expected)
        return ""
    pairs = list(zip(found, torch.load(expected, weights_only=True), strict=True))
    if any([t.shape for t in mine] != [t.shape for t in theirs] for mine, theirs in pairs):
        return "other sizes"
    worst, flipped, decisions = 0.0, 0, 0
    for mine, theirs in ((a, b) for one, other in pairs for a, b in zip(one, other, strict=True)):
        if theirs.is_floating_point():
            mine = _as_sorted(mine, theirs) if program in _SETS else mine
            size = theirs.double().square().mean().sqrt().item() if theirs.numel() else 0.0
            error = (mine.double() - theirs.double()).square().mean().sqrt().item() if theirs.numel() else 0.0
            worst = max(worst, error / size if size else error)
        else:
            flipped, decisions = flipped + int((mine != theirs).sum()), decisions + theirs.numel()
    if flipped:
        return f"{flipped} of {decisions} decisions differ"
    return f"relative error {worst:.1e}" if not worst <= MOST_ERROR else ""


def _as_sorted(mine: Any, theirs: Any) -> Any:
    """My rows in the order in which they are nearest to theirs; as they are where one would be taken twice."""
    import torch

    nearest = torch.cdist(theirs.double(), mine.double()).argmin(dim=1)
    return mine[nearest] if len(nearest.unique()) == len(mine) else mine


def folder_of(program: str) -> tempfile.TemporaryDirectory[str]:
    """What the contestants of one program share."""
    return tempfile.TemporaryDirectory(prefix=f"programs-{program}-")


if __name__ == "__main__":
    main(*sys.argv[1:])
