"""What survives: processes that are killed at random, files that are changed, a full disk, two runs at once, a stop.

    python benchmarks/reliability.py --kills 200 --mutants 2000 --seed 0

Every experiment is a real ``togi tune`` of a tiny model in a home, a journal and a temporary folder of its own. Counted
is what must not happen: a finished trial that is not in the journal, a process or a file that is left behind, damage
that is loaded as if it were whole, code of an artifact that is executed, an end that is called a defect.

``kills`` takes about 10 s each, ``mutants`` about 10 a second. ``tests/test_reliability.py`` runs a short form.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from togi.artifact.manifest import MANIFEST, document_hash
from togi.core.errors import ArtifactError, JournalError, TogiError
from togi.journal import Journal

SUBJECT = """
import torch

def subject():
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten())
    return torch.nn.Sequential(*layers), torch.randn(2, 3, 8, 8)
"""
TECHNIQUES = "fold_batch_norm,channels_last,torchscript,inference_mode"
ENGINES = ("torchscript", "onnxruntime", "openvino")
"""Whose artifacts are changed; those that are not installed are left out."""
_MARK = "TOGI_RELIABILITY"
_GONE_S = 30.0
"""Until everything of a killed run must be gone; a server that is importing torch looks up when it has done so."""
_LONGEST_S = 240.0


class Place:
    """A home, a journal, a temporary folder and the subject; ``togi`` runs that can be found again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary, self.mark = folder / "tmp", uuid.uuid4().hex
        self.journal, self.out = folder / "journal.sqlite", folder / "out.togi"
        self.temporary.mkdir(parents=True)
        (folder / "tiny.py").write_text(SUBJECT, encoding="utf-8")
        self.environment = {
            **os.environ,
            "TOGI_HOME": str(folder / "home"),
            "TMPDIR": str(self.temporary),
            "OMP_NUM_THREADS": "1",
            _MARK: self.mark,
        }

    def start(self, *options: str, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "togi", "tune", "tiny.py:subject", "--only", TECHNIQUES, "--time-limit", "20s"]
        return subprocess.Popen(
            [*command, "--journal", str(self.journal), "--out", str(self.out), "--force", *options],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before,
        )

    def processes(self) -> list[int]:
        """Those of its runs that live."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"{_MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def left(self, within_s: float = _GONE_S) -> list[str]:
        """Processes and temporary files that are still there after a while."""
        until = time.monotonic() + within_s
        while True:
            files = [str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*")]
            found = [f"process {pid}" for pid in self.processes()] + files
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.2)

    def recorded(self) -> Counter[str]:
        """Labels of the trials in the journal."""
        if not self.journal.exists() or not self.journal.stat().st_size:
            return Counter()
        with Journal.open(self.journal, create=False) as journal:
            return Counter(trial.recipe.label for entry in journal.studies() for trial in journal.read(entry.id).trials)


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def kills(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Runs of which one process, drawn by chance, is killed at a moment that is drawn by chance."""
    rng = random.Random(seed)
    found: dict[str, Any] = {"kills": 0, "of": Counter(), "lost": [], "left": [], "odd ends": []}
    number = 0
    while found["kills"] < count:
        if number % 5 == 0:  # a new study; the other four resume it
            place = Place(folder / f"kill-{number}")
        number += 1
        killed, code, told = _killed_run(place, rng.choice(("driver", "server", "trial")), rng.uniform(0.2, 20.0))
        if killed is None:  # it had ended before
            shutil.rmtree(place.folder, ignore_errors=True)
            number += -number % 5
            continue
        found["kills"] += 1
        found["of"][killed] += 1
        found["left"] += [f"{killed}: {what}" for what in place.left()]
        found["lost"] += sorted(_ended(told) - place.recorded())
        if code not in {"driver": (-signal.SIGKILL,), "server": (0, 2), "trial": (0, 2)}[killed]:
            found["odd ends"].append(f"{killed} killed: exit code {code}: {told[-300:]}")
    return found


def _killed_run(place: Place, target: str, after_s: float) -> tuple[str | None, int, str]:
    """What was killed (None where the run was over), the exit code, and what it had said."""
    with place.start() as run:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(after_s)
        driver = run.pid
        servers = [pid for pid in place.processes() if parent(pid) == driver]
        trials = [pid for pid in place.processes() if parent(pid) in servers]
        chosen = {"driver": [driver], "server": servers, "trial": trials}[target] or [driver]
        killed: str | None = target if chosen != [driver] else "driver"
        if run.poll() is not None:
            killed = None
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chosen[0], signal.SIGKILL)
        _, told = run.communicate(timeout=_LONGEST_S)
    return killed, run.returncode, told


_TRIAL = re.compile(r"^\[[^\]]*\] \d+\. (.*?): ")


def _ended(told: str) -> Counter[str]:
    """Labels of the trials of which a run said that they had ended."""
    return Counter(match[1] for line in told.splitlines() if (match := _TRIAL.match(line)))


def leaves(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths to all values of a JSON document, containers too."""
    if path:
        yield path
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from leaves(value, (*path, key))


OTHERS = (None, True, -1, 2**63, 1e308, "", "../../x", "__import__('os').system('touch pwned')", [], [[]], {}, {"a": 1})


def changed(document: Any, path: tuple[str | int, ...], value: Any) -> Any:
    made = copy.deepcopy(document)
    holder = made
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return made


def artifacts(folder: Path) -> Iterator[Path]:
    """One of each engine that is installed, with its fallback, made of the subject without a study."""
    import torch

    from togi.artifact.links import write_links
    from togi.artifact.save import write_manifest
    from togi.core.records import Outcome, Trial
    from togi.techniques import all_techniques, recipe
    from togi.techniques.build import build, first_candidate
    from togi.worker.locate import locate
    from togi.worker.survey import survey

    torch.set_num_threads(1)  # a child that is forked from a process with a pool of threads hangs
    (folder / "tiny.py").write_text(SUBJECT, encoding="utf-8")
    found = locate(f"{folder / 'tiny.py'}:subject")
    known = survey(found)
    start = first_candidate(found, known.facts, known.signature)
    for engine in ENGINES:
        technique = all_techniques()[engine]
        if any(package.missing() for package in technique.packages):
            continue
        chosen = recipe(fold_batch_norm={}, no_grad={}, **{engine: dict(technique.options(known.facts)[0])})
        made = folder / f"{engine}.togi"
        made.mkdir()
        links, _ = write_links(build(chosen, start), start, chosen, made)
        write_manifest(
            made,
            subject="tiny.py:subject",
            recipe=chosen,
            signature=known.signature,
            facts=known.facts,
            proof=Trial(recipe=chosen, outcome=Outcome.OK),
            chain=links,
            environment={},
        )
        yield made


def mutants(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Changed artifacts of every engine, ``count`` in all."""
    made = list(artifacts(folder))
    found = [_mutants(count // len(made), seed, artifact, folder) for artifact in made]
    ends: Counter[str] = Counter()
    for one in found:
        ends += one["ends"]
    return {
        "mutants": sum(one["mutants"] for one in found),
        "values": {artifact.stem: one["values"] for artifact, one in zip(made, found, strict=True)},
        "ends": ends,
        "bad": [f"{artifact.stem}: {bad}" for artifact, one in zip(made, found, strict=True) for bad in one["bad"]],
    }


def _mutants(count: int, seed: int, artifact: Path, folder: Path) -> dict[str, Any]:
    """Changed copies of an artifact: every value of its manifest in turn, with and without the hash that it needs to
    be believed, and bytes of its files. Each is loaded and called in a process of its own."""

    rng = random.Random(seed)
    document = json.loads((artifact / MANIFEST).read_text(encoding="utf-8"))
    paths = list(leaves(document))
    rng.shuffle(paths)
    files = [path.relative_to(artifact) for path in artifact.rglob("*") if path.is_file() and path.name != MANIFEST]
    expected = folder / "expected.pt"
    usual = frozenset(_in_child(lambda: _answer_of(artifact, expected), folder).splitlines())
    ends: Counter[str] = Counter()
    bad = []
    for number in range(count):
        copied = Path(shutil.copytree(artifact, folder / f"mutant-{number}.togi"))
        if number % 10 == 9:
            name = rng.choice(files)
            what, sealed = f"a byte of {name}", False
            data = bytearray((copied / name).read_bytes())
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
            (copied / name).write_bytes(data)
        else:
            path, value = paths[number % len(paths)], rng.choice(OTHERS)
            sealed = rng.random() < 0.5
            what = f"{'.'.join(map(str, path))} = {value!r}"
            mutant = changed(document, path, value)
            if sealed and path != ("sha256",):
                mutant["sha256"] = document_hash(mutant)
            (copied / MANIFEST).write_text(json.dumps(mutant), encoding="utf-8")
        end = _in_child(lambda copied=copied: _loaded(copied, expected, usual), folder)
        ends[end] += 1
        if end not in ("refused", "equal", *(("call refused",) if sealed else ())):
            bad.append(f"{what}{' (sealed)' if sealed else ''}: {end}")
        shutil.rmtree(copied)
    return {"mutants": count, "values": len(paths), "ends": ends, "bad": bad}


def _sample() -> Any:
    import torch

    return torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


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

    from togi.artifact.load import load

    executed = _watched()
    found = load(artifact)(_sample())
    usual = "\n".join(executed)
    torch.save(found, expected)
    return usual


def _loaded(artifact: Path, expected: Path, usual: frozenset[str]) -> str:
    """How it ends; ``executed ...`` where anything beyond the ``usual`` was started or unpickled meanwhile."""
    import warnings

    import torch

    from togi.artifact.load import load

    executed = _watched()
    warnings.simplefilter("ignore")
    try:
        optimized = load(artifact)
    except ArtifactError:
        return f"executed {beyond}" if (beyond := set(executed) - usual) else "refused"
    except BaseException as error:
        return f"load raised {type(error).__name__}: {str(error)[:120]}"
    try:
        found = optimized(_sample())
    except (TypeError, ValueError) as error:  # of ``Signature.check``: the call is not what was proven
        return "call refused" if "proven" in str(error) or "expected" in str(error) else f"call raised {error}"
    except BaseException as error:
        return f"call raised {type(error).__name__}: {str(error)[:120]}"
    if beyond := set(executed) - usual:
        return f"executed {beyond}"
    right = torch.load(expected, weights_only=True)
    # to rounding: where the engine's part of the manifest makes no sense, the fallback answers, with a warning
    same = torch.is_tensor(found) and found.shape == right.shape and torch.allclose(found, right, rtol=1e-4, atol=1e-5)
    return "equal" if same else "other output"


def _in_child(job: Callable[[], str], folder: Path) -> str:
    """Its answer, or how its process died."""
    answer = folder / "answer"
    pid = os.fork()
    if pid == 0:
        _answer(job, answer)
    until = time.monotonic() + 60
    while (status := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hung"
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status[1])
    return answer.read_text(encoding="utf-8") if code == 0 else f"died ({code})"


def _answer(job: Callable[[], str], answer: Path) -> NoReturn:
    try:
        answer.write_text(job(), encoding="utf-8")
    except BaseException as error:
        answer.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
    os._exit(0)


def journals(count: int, seed: int, journal: Path, folder: Path) -> dict[str, Any]:
    """Journals of which bytes are changed, or the end is cut off: refused, or read as they were written."""
    rng, data = random.Random(seed), journal.read_bytes()

    def read(path: Path) -> list[str]:
        with Journal.open(path, create=False, read_only=True) as opened:
            return [opened.read(entry.id).to_json() for entry in opened.studies()]

    whole = read(journal)
    ends: Counter[str] = Counter()
    bad = []
    for _ in range(count):
        broken = bytearray(data if rng.random() < 0.8 else data[: rng.randrange(len(data))])
        for place in (rng.randrange(len(broken)) for _ in range(rng.choice((1, 3, 30)) if broken else 0)):
            broken[place] ^= rng.randrange(1, 256)
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


def full_disk(folder: Path, limits: tuple[int, ...]) -> dict[str, Any]:
    """Runs in which no file may become longer than so many bytes: as on a full disk, every write beyond it fails."""
    bad = []
    for limit in limits:
        place = Place(folder / f"full-{limit}")

        def before(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        with place.start(before=before) as run:
            _, told = run.communicate(timeout=_LONGEST_S)
        last = told.strip().rpartition("\n")[2]
        try:
            place.recorded()
        except TogiError as error:
            bad.append(f"{limit} bytes: the journal cannot be read: {error}")
        if run.returncode not in (0, 2):
            bad.append(f"{limit} bytes: exit code {run.returncode}: {last}")
        bad += [f"{limit} bytes: left {what}" for what in place.left()]
    return {"limits": len(limits), "bad": bad}


def two_at_once(folder: Path) -> dict[str, Any]:
    """The same command twice at once: both end well, and no recipe is explored by both."""
    place = Place(folder / "two")
    runs = [place.start("--out", str(folder / "two" / f"{name}.togi")) for name in ("a", "b")]
    told = [run.communicate(timeout=_LONGEST_S)[1] for run in runs]
    ended = [_ended(text) for text in told]
    bad = [f"exit code {run.returncode}: {text[-300:]}" for run, text in zip(runs, told, strict=True) if run.returncode]
    bad += [f"tried by both: {label}" for label in ended[0] & ended[1]]
    return {"recipes": [sum(found.values()) for found in ended], "bad": bad + place.left()}


def stopped(folder: Path, seconds: float) -> dict[str, Any]:
    """The driver is stopped in the midst, and goes on later."""
    place = Place(folder / "stopped")
    with place.start() as run:
        time.sleep(10.0)
        run.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        run.send_signal(signal.SIGCONT)
        _, told = run.communicate(timeout=_LONGEST_S)
    bad = [f"exit code {run.returncode}: {told[-300:]}"] if run.returncode else []
    return {"stopped_s": seconds, "trials": place.recorded().total(), "bad": bad + place.left()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--mutants", type=int, default=2000)
    parser.add_argument("--journals", type=int, default=2000)
    parser.add_argument("--stop", type=float, default=60.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reliability-") as name:
        folder = Path(name)
        results = {"stopped": stopped(folder, given.stop)}  # its journal is what is then changed
        print(results["stopped"], flush=True)
        made = folder / "stopped"
        steps: dict[str, Callable[[], dict[str, Any]]] = {
            "mutants": lambda: mutants(given.mutants, given.seed, folder),
            "journals": lambda: journals(given.journals, given.seed, made / "journal.sqlite", folder),
            "full disk": lambda: full_disk(folder, (0, 1_000, 20_000, 60_000, 100_000, 200_000, 1_000_000)),
            "two at once": lambda: two_at_once(folder),
            "kills": lambda: kills(given.kills, given.seed, folder),
        }
        for step, measure in steps.items():
            started = time.monotonic()
            results[step] = measure()
            print(f"{step} ({time.monotonic() - started:.0f} s): {results[step]}", flush=True)
    return (
        1 if any(result.get(bad) for result in results.values() for bad in ("bad", "lost", "left", "odd ends")) else 0
    )


if __name__ == "__main__":
    sys.exit(main())
