"""Changed artifacts and journals: each is refused, or gives what was written, and nothing of it is executed."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.reliability.place import LONGEST_S, SUBJECT, Place, in_child

from togi.artifact.manifest import MANIFEST, PartEntry, document_hash, part_folder
from togi.core.errors import ArtifactError, JournalError
from togi.journal import Journal

ENGINES = {"torchscript": 0, "onnxruntime": 0, "openvino": 0, "aot_inductor": -1}
"""Whose artifacts are changed, and with which of its options (the last compiles least); those that are not installed,
or find no compiler, are left out."""


def leaves(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths to all values of a JSON document, containers too."""
    if path:
        yield path
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from leaves(value, (*path, key))


OTHERS: tuple[Any, ...] = (
    *(None, True, -1, 2**63, 1e308, "", "../../x", "__import__('os').system('touch pwned')"),
    *([], [[]], {}, {"a": 1}),
)


def changed(document: Any, path: tuple[str | int, ...], value: Any) -> Any:
    made = copy.deepcopy(document)
    holder = made
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return made


def artifacts(folder: Path) -> Iterator[Path]:
    """One of each engine that works here, with its fallback, and one of a program with a part, made without a study."""
    import torch

    from tests.artifact.artifact_maker import ArtifactMaker
    from togi.artifact.weights import weights_hash
    from togi.core.recipe import PartKey, ProgramRecipe
    from togi.subject.effects import Effects
    from togi.techniques import all_techniques, recipe
    from togi.techniques.base import Applies
    from togi.worker.locate import locate

    torch.set_num_threads(1)  # a child that is forked from a process with a pool of threads hangs
    (folder / "tiny.py").write_text(SUBJECT, encoding="utf-8")
    found = locate(f"{folder / 'tiny.py'}:subject")
    maker = ArtifactMaker.of(found, "tiny.py:subject")
    for engine, option in ENGINES.items():
        technique = all_techniques()[engine]
        works = isinstance(technique.applies(maker.facts), Applies)
        if not works or any(package.missing() for package in technique.packages):
            continue
        chosen = recipe(fold_batch_norm={}, no_grad={}, **{engine: dict(technique.options(maker.facts)[option])})
        maker.make(folder / f"{engine}.togi", chosen)
        yield folder / f"{engine}.togi"
    program = folder / "program.togi"
    shutil.copytree(folder / "torchscript.togi", part_folder(program, 0))
    weights = weights_hash(found.module)
    part = PartEntry(key=PartKey(path="0"), module="Sequential", effects=Effects(), weights=weights)
    tuned = ProgramRecipe.of({part.key: recipe(torchscript={}, no_grad={})})
    maker.write_manifest(program, tuned, (), parts=(part,))
    yield program


def mutants(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Changed copies of artifacts: every value of each manifest in turn, mostly with the hash that it needs to be
    believed, and for ten of them one byte of a file. Each is loaded and called in a process of its own."""
    rng = random.Random(seed)
    originals = [_Original(artifact) for artifact in artifacts(folder)]
    changes: list[tuple[_Original, tuple[str | int, ...] | None]] = []
    for original in originals:
        changes += [(original, path) for path in (*original.values, *[None] * (len(original.values) // 10))]
    rng.shuffle(changes)
    ends: Counter[str] = Counter()
    bad = []
    for original, path in itertools.islice(itertools.cycle(changes), count):
        copied = Path(shutil.copytree(original.artifact, folder / "mutant.togi"))
        sealed = path is not None and rng.random() < 0.8
        what = _change_byte(copied, rng) if path is None else _change_value(copied, path, rng, sealed)
        end = in_child(functools.partial(_loaded, copied, original), folder)
        ends[end] += 1
        if end not in ("refused", "equal", *(("call refused",) if sealed else ())):
            bad.append(f"{original.artifact.stem}: {what}{' (sealed)' if sealed else ''}: {end}")
        shutil.rmtree(copied)
    values = {original.artifact.stem: len(original.values) for original in originals}
    return {"mutants": count, "of": len(changes), "values": values, "ends": ends, "bad": bad}


class _Original:
    """An artifact as it was made, and what is usually started while it is loaded and called: togi asks the compiler."""

    def __init__(self, artifact: Path) -> None:
        self.artifact = artifact
        self.expected = artifact.with_suffix(".pt")
        self.values = list(leaves(json.loads((artifact / MANIFEST).read_text(encoding="utf-8"))))
        self.usual = frozenset(in_child(lambda: _answer_of(artifact, self.expected), artifact.parent).splitlines())


def _change_byte(copied: Path, rng: random.Random) -> str:
    files = sorted(path for path in copied.rglob("*") if path.is_file() and path != copied / MANIFEST)
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    file.write_bytes(data)
    return f"a byte of {file.relative_to(copied)}"


def _change_value(copied: Path, path: tuple[str | int, ...], rng: random.Random, sealed: bool) -> str:
    value, manifest = rng.choice(OTHERS), copied / MANIFEST
    mutant = changed(json.loads(manifest.read_text(encoding="utf-8")), path, value)
    if sealed and path != ("sha256",):
        mutant["sha256"] = document_hash(mutant)
    manifest.write_text(json.dumps(mutant), encoding="utf-8")
    return f"{'.'.join(map(str, path))} = {value!r}"


def _sample() -> Any:
    import torch

    return torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


def _ready(artifact: Path) -> Callable[..., Any]:
    """What the artifact gives, to be called: a part is in the program that it belongs to."""
    import torch

    from togi.artifact.load import load
    from togi.artifact.optimized import OptimizedProgram
    from togi.worker.locate import locate

    optimized = load(artifact)
    if not isinstance(optimized, OptimizedProgram):
        return optimized
    program = torch.nn.Sequential(locate(f"{artifact.parent}/tiny.py:subject").module)
    optimized.into(program)
    return program


_EXECUTION = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class")


def _watched() -> list[str]:
    """What is started or unpickled from now on in this process."""
    executed: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EXECUTION:
            executed.append(f"{event} {arguments[0] if arguments else ''}")

    sys.addaudithook(watch)
    return executed


def _answer_of(artifact: Path, expected: Path) -> str:
    """Keeps what the unchanged artifact answers; returns what is started meanwhile: togi asks for the compiler."""
    import torch

    executed = _watched()
    found = _ready(artifact)(_sample())
    usual = "\n".join(executed)
    torch.save(found, expected)
    return usual


def _loaded(artifact: Path, original: _Original) -> str:
    """How it ends; ``executed ...`` where anything beyond the usual was started or unpickled meanwhile."""
    import warnings

    import torch

    executed = _watched()
    warnings.simplefilter("ignore")
    try:
        optimized = _ready(artifact)
    except ArtifactError:
        return f"executed {beyond}" if (beyond := set(executed) - original.usual) else "refused"
    except BaseException as error:
        return f"load raised {type(error).__name__}: {str(error)[:120]}"
    try:
        found = optimized(_sample())
    except (TypeError, ValueError) as error:  # of ``Signature.check``: the call is not what was proven
        return "call refused" if "proven" in str(error) or "expected" in str(error) else f"call raised {error}"
    except BaseException as error:
        return f"call raised {type(error).__name__}: {str(error)[:120]}"
    if beyond := set(executed) - original.usual:
        return f"executed {beyond}"
    right = torch.load(original.expected, weights_only=True)
    # to rounding: where the engine's part of the manifest makes no sense, the fallback answers, with a warning
    same = torch.is_tensor(found) and found.shape == right.shape and torch.allclose(found, right, rtol=1e-4, atol=1e-5)
    return "equal" if same else "other output"


def journals(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """The journal of a run, of which bytes are changed, or the end is cut off: refused, or read as it was written."""
    place = Place(folder / "journal")
    with place.start() as run:
        run.communicate(timeout=LONGEST_S)
    rng, data = random.Random(seed), place.journal.read_bytes()

    def read(path: Path) -> list[str]:
        with Journal.open(path, create=False, read_only=True) as opened:
            return [opened.read(entry.id).to_json() for entry in opened.studies()]

    whole = read(place.journal)
    ends: Counter[str] = Counter()
    bad = []
    for _ in range(count):
        broken = bytearray(data if rng.random() < 0.8 else data[: rng.randrange(len(data))])
        for at in (rng.randrange(len(broken)) for _ in range(rng.choice((1, 3, 30)) if broken else 0)):
            broken[at] ^= rng.randrange(1, 256)
        path = folder / "broken.sqlite"
        path.write_bytes(broken)
        try:
            end = "equal" if read(path) == whole else "other content"
        except JournalError:
            end = "refused"
        except Exception as error:
            end = f"{type(error).__name__}: {error}"
        ends[end] += 1
        bad += [] if end in ("refused", "equal") else [end]
    return {"journals": count, "ends": ends, "bad": bad}
