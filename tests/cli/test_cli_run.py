"""``togi run``: an unchanged script is reported on, tuned, and run with what was tuned."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.forked_processes import Origin, can_fork
from tests.journal.journal_records import facts
from tests.render.test_json_documents import documented
from tests.script import quick_tuning
from tests.script.run_scripts import environment, run_python, run_togi, written
from tests.study.stand_ins import FAST, trial
from togi.cli import script_runs
from togi.cli.script_runs import LEAST_S, divided
from togi.core.errors import JournalError, SubjectError, TrialServerError
from togi.core.records import REFERENCE_RECIPE, Outcome, Recipe, Study, Trial
from togi.study.failures import OutOfTime, SubjectNotRun
from togi.study.result import StudyResult

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/script.md").read_text(encoding="utf-8")
NETS = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
    def forward(self, x):
        return self.linear(x).tanh()

class Fast(Net):
    pass

class Slow(Net):
    pass

class Refused(Net):
    pass

class Locked(Net):
    pass

class Killed(Net):
    pass

class Interrupted(Net):
    pass

torch.manual_seed(0)
"""


def guides_script(folder: Path) -> Path:
    """The script of the guide: argparse, a loop over data, two modules."""
    (text,) = re.findall(r'```python title="classify.py"\n(.*?)^```$', GUIDE, re.DOTALL | re.MULTILINE)
    return written(folder, text, "classify.py")


@pytest.fixture
def classify(tmp_path: Path) -> Path:
    return guides_script(tmp_path)


_ORIGINS: list[Origin] = []


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_to_fork_from() -> Iterator[None]:
    yield
    while _ORIGINS:
        _ORIGINS.pop().close()


def quickly(script: Path, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """``togi run``, whose tuning takes no time. It is forked from a process that has imported torch, which it imports
    itself before it begins."""
    variables, folder = environment(script.parent), str(script.parent)
    variables["PYTHONPATH"] += f":{ROOT}"
    argv = [quick_tuning.__file__, "run", *options, script.name, *arguments]
    code = f"import sys\nsys.path.insert(0, {folder!r})\nfrom {quick_tuning.__name__} import run\nrun()"
    if not can_fork():
        command = [sys.executable, "-c", code, *argv[1:]]
        return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=200)
    if not _ORIGINS:
        imports = f"import {quick_tuning.__name__}, torch._dynamo, torch.export"
        _ORIGINS.append(Origin([sys.executable], imports, variables))
    with open(os.devnull, "rb") as nothing, TemporaryFile() as printed, TemporaryFile() as said:
        fds = {0: nothing.fileno(), 1: printed.fileno(), 2: said.fileno()}
        returncode = _ORIGINS[0].fork(argv, code, variables, folder, fds).wait(200)
        texts = []
        for file in (printed, said):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(argv, returncode, *texts)


def asked(script: Path) -> list[list[object]]:
    file = script.with_name(quick_tuning.ASKED)
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


@pytest.mark.thorough(20)
def test_the_report_names_the_modules_and_their_calls(classify: Path) -> None:
    arguments = ("--batches", "7", "--size", "2")
    own, done = run_python(classify, *arguments), run_togi(classify, *arguments)
    assert (done.returncode, done.stdout) == (0, own.stdout)
    encoder, head = (
        next(line for line in done.stderr.splitlines() if line.startswith(name)) for name in ("Encoder", "Head")
    )
    assert re.search(r" 7 .* float32 2x3x64x64$", encoder)
    assert re.search(r" 7 .* float32 2x64$", head)
    assert [path.name for path in classify.parent.iterdir()] == ["classify.py"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script of the guide, next to what was tuned in its first run. Not to be changed."""
    script = guides_script(tmp_path_factory.mktemp("tuned"))
    own, first = run_python(script, "--batches", "9"), quickly(script, "--batches", "9")
    assert (first.returncode, first.stdout) == (0, own.stdout), first.stderr
    assert asked(script)[0][0] == "Encoder"
    return script


@pytest.fixture
def tuned_script(tuned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tuned.parent, tmp_path / "copy")) / tuned.name


@pytest.mark.thorough(20)
def test_a_script_is_tuned_once_and_runs_with_it_from_then_on(tuned_script: Path) -> None:
    index = json.loads((tuned_script.parent / "classify.py.togi" / "index.json").read_text(encoding="utf-8"))
    tuned = [one["identity"]["module"] for one in index["modules"]]
    second = quickly(tuned_script, "--batches", "11")
    python = run_python(tuned_script, "--batches", "11")
    assert (python.returncode, python.stderr) == (0, ""), "it runs as it always did"
    assert (second.returncode, second.stdout) == (0, python.stdout), second.stderr
    assert "using" in second.stderr
    for name in tuned:
        assert f"{name}: 11 of 11 calls served by" in second.stderr
    assert len(asked(tuned_script)) == len(tuned), "it was not tuned again"
    quickly(tuned_script, "--batches", "2", options=("--again",))
    assert len(asked(tuned_script)) > len(tuned)


@pytest.mark.thorough(20)
def test_other_weights_and_other_sizes_meet_the_original(tuned_script: Path) -> None:
    text = tuned_script.read_text(encoding="utf-8")
    other_size = quickly(tuned_script, "--batches", "3", "--size", "5")
    assert other_size.stdout == run_python(tuned_script, "--batches", "3", "--size", "5").stdout
    assert "Encoder: 0 of 3 calls served" in other_size.stderr
    tuned_script.write_text(text.replace("manual_seed(0)", "manual_seed(1)"), encoding="utf-8")
    other_weights = quickly(tuned_script, "--batches", "3")
    assert other_weights.stdout == run_python(tuned_script, "--batches", "3").stdout
    assert other_weights.stderr.count("Encoder: its weights or its structure are not those that were tuned") == 1
    assert "no artifact of" in other_weights.stderr


@pytest.mark.thorough(20)
def test_gradients_switched_on_change_nothing(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        NETS
        + """
net = Fast().eval()
for number in range(5):
    answer = net(torch.full((2, 64), float(number)))
    print(answer.requires_grad, round(answer.sum().item(), 3))
if sys.argv[1:]:
    net(torch.ones(2, 64)).sum().backward()
    print(round(net.linear.weight.grad.sum().item(), 3))
""",
    )
    first, own = quickly(script), run_python(script, "train").stdout.splitlines()
    assert "torch.no_grad() round its calls saves memory" in " ".join(first.stderr.split())
    for arguments in ((), ("train",)):
        done = quickly(script, *arguments)
        assert done.stdout.splitlines() == own[: 5 + len(arguments)]
        calls = 5 + len(arguments)
        assert f"Fast: {calls - 1} of {calls} calls served" in done.stderr
        assert "the others by the original: its first call with gradients switched on" in done.stderr


@pytest.mark.thorough(20)
def test_training_is_left_alone(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        NETS
        + """
net, fixed = Net(), Fast().eval()
optimizer = torch.optim.Adam(net.parameters())
for number in range(20):
    with torch.no_grad():
        x = fixed(torch.rand(20000, 64))[:8]
    optimizer.zero_grad()
    loss = (net(x) - x).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
""",
    )
    own = run_python(script).stdout
    for _ in range(2):
        done = quickly(script)
        assert (done.returncode, done.stdout) == (0, own), done.stderr
    assert [name for name, *_ in asked(script)] == ["Fast"]
    assert "Fast: 20 of 20 calls served" in done.stderr


INTERRUPTED = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); signal.raise_signal(signal.SIGINT)"
)
"""Who started the tests may have had the signal ignored."""


@pytest.mark.thorough(20)
@pytest.mark.parametrize(
    ("last", "code", "tuned"),
    [
        ("sys.exit(3)", 3, True),
        ("import os; sys.stdout.flush(); os._exit(4)", 4, True),
        ("raise ValueError('in the middle')", 1, False),
        (INTERRUPTED, 130, False),
    ],
)
def test_what_was_called_before_an_early_end_is_reported(last: str, code: int, tuned: bool, tmp_path: Path) -> None:
    script = written(tmp_path, f"{NETS}\nwith torch.no_grad():\n    Fast().eval()(torch.ones(2, 64))\n{last}\n")
    done = quickly(script)
    assert done.returncode == code
    assert "float32 2x64" in done.stderr
    assert len(asked(script)) == tuned
    assert (tmp_path / "script.py.togi").exists() is tuned
    assert ("nothing is tuned, since it" in done.stderr) is not tuned


@pytest.mark.parametrize(("last", "code"), [("import os; os._exit(0)", 0), ("import os; os._exit(4)", 4), ("", 0)])
def test_the_document_is_printed_however_the_script_ends(last: str, code: int, tmp_path: Path) -> None:
    script = written(
        tmp_path, f"{NETS}\nprint('its own')\nwith torch.no_grad():\n    Fast()(torch.ones(2, 64))\n{last}\n"
    )
    done = run_togi(script, options=("--json", "--report"))
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"]) == (code, code)
    assert [module["module"] for module in document["modules"]] == ["Fast"]


@pytest.mark.thorough(20)
def test_each_module_has_its_result_and_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    call = """
nets = {name: kind().eval() for name, kind in list(globals().items()) if name in sys.argv[1:]}
with torch.no_grad():
    for number, net in enumerate(nets.values()):
        for _ in range(12 - 2 * number):
            net(torch.ones(64, 64))
"""
    sleeping = NETS.replace("return self", "time.sleep(0.05); return self").replace("import sys", "import sys, time")
    script = written(tmp_path, sleeping + call)
    # long enough for each to get its share, even if the first call of all waits 20 s for a core
    done = quickly(script, "Fast", "Slow", "Refused", options=("--time-limit", "20m", "--json"))
    document = json.loads(done.stdout)
    assert set(document) == documented("A run of a script")
    assert (document["kind"], document["exit_code"]) == ("script", 0)
    found = {one["identity"]["module"]: one for one in document["tuned"]}
    assert bool(found["Fast"]["artifact"])
    assert not found["Slow"]["artifact"]
    assert "nothing was faster" in found["Slow"]["why_not"]
    assert "cannot be sent" in found["Refused"]["why_not"]
    assert sum(limit for _, _, limit, _ in asked(script)) == pytest.approx(1200)  # type: ignore[misc]
    later = json.loads(quickly(script, "Fast", "Slow", options=("--json",)).stdout)
    assert [(one["module"], one["engine_calls"]) for one in later["served"]] == [("Fast", 12)]
    again = quickly(script, "Fast", "Interrupted", options=("--again", "--time-limit", "20m"))
    assert again.returncode == 130
    assert "interrupted" in again.stderr
    kept = json.loads((tmp_path / "script.py.togi" / "index.json").read_text(encoding="utf-8"))
    assert [(one["identity"]["module"], one["decided"]) for one in kept["modules"]] == [
        ("Fast", True),
        ("Interrupted", False),
    ]


@pytest.mark.parametrize("taken_s", [[5.0], [3.0, 3.0, 3.0], [9.0, 1.0], [16.0, 8.0, 4.0, 2.0, 1.0]])
@pytest.mark.parametrize("limit_s", [5.0, 20.0, 45.0, 60.0, 600.0])
def test_time_is_divided_by_share_and_nobody_gets_too_little(taken_s: list[float], limit_s: float) -> None:
    limits = divided(taken_s, limit_s)
    assert sum(limits) == pytest.approx(limit_s)
    assert [limit / limits[0] for limit in limits] == pytest.approx([s / taken_s[0] for s in taken_s[: len(limits)]])
    assert len(limits) == 1 or min(limits) >= LEAST_S
    if len(limits) < len(taken_s):
        more = taken_s[: len(limits) + 1]
        assert limit_s * more[-1] / sum(more) < LEAST_S
    assert divided([], limit_s) == []


@pytest.mark.thorough(20)
def test_a_module_for_which_there_was_no_time_is_tuned_in_the_next_run(tmp_path: Path) -> None:
    call = "\nwith torch.no_grad():\n    {'Late': Late, 'Fast': Fast}[sys.argv[1]]().eval()(torch.ones(2, 64))\n"
    script = written(tmp_path, NETS + "\nclass Late(Net):\n    pass\n" + call)
    for runs in (1, 2):
        done = quickly(script, "Late")
        assert "nothing was written" in " ".join(done.stderr.split())
        assert (len(asked(script)), (tmp_path / "script.py.togi").exists()) == (runs, False)


CHOSEN = """
import time
with torch.no_grad():
    for number, name in enumerate(sys.argv[1:]):
        net = globals()[name]().eval()
        for _ in range(12 - 2 * number):
            net(torch.ones(64, 64))
"""


@pytest.mark.thorough(20)
def test_a_failure_that_passes_decides_nothing(tmp_path: Path) -> None:
    script = written(tmp_path, NETS.replace("return self", "time.sleep(0.05); return self") + CHOSEN)
    folder, limit = tmp_path / "script.py.togi", ("--time-limit", "20m")
    done = quickly(script, "Killed", options=limit)
    assert done.returncode == 0, done.stderr
    assert "nothing was written" in " ".join(done.stderr.split())
    assert not folder.exists()
    for _ in range(2):  # nothing is faster, and not all is known: it is tried again
        done = quickly(script, "Slow", "Locked", options=limit)
        assert "not all was decided" in " ".join(done.stderr.split())
    assert [name for name, *_ in asked(script)] == ["Killed", *["Slow", "Locked"] * 2]
    done = quickly(script, "Fast", "Locked", options=("--again", *limit))
    assert "goes on with what is undecided" in " ".join(done.stderr.split())
    done = quickly(script, "Fast", "Locked")
    assert "and Locked undecided" in done.stderr
    assert "Fast: 12 of 12 calls served" in done.stderr
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    assert {one["identity"]["module"]: one["decided"] for one in index["modules"]} == {"Fast": True, "Locked": False}


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "decided"),
    [
        (SubjectError("it cannot be sent to another process"), True),
        (caused(SubjectError("it cannot be sent"), TypeError("a lock")), True),
        (caused(SubjectError("it cannot be sent"), OSError(28, "No space left on device")), False),
        (SubjectNotRun("its process was ended"), False),
        (OutOfTime("the time limit was over"), False),
        (JournalError("the journal is in use"), False),
        (TrialServerError("it was ended by SIGKILL"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_an_error_decides_only_if_it_lies_in_the_module(error: Exception, decided: bool) -> None:
    assert script_runs._lies_in_the_module(error) is decided


def ended_with(best: Trial | None, *others: Trial) -> StudyResult:
    chosen = trial(REFERENCE_RECIPE, 1.0) if best is None else best
    trials = (trial(REFERENCE_RECIPE, 1.0), *others, chosen)
    return StudyResult(Study(id="x", subject="Net", facts=facts(), trials=trials, best=chosen.recipe))


COMPARED, AS_IT_IS = trial(FAST, 1.2), trial(Recipe(), 1.0)
CRASHED = Trial(recipe=FAST, outcome=Outcome.CRASHED, reason="its process was ended by SIGKILL")


@pytest.mark.parametrize(
    ("result", "decided", "said"),
    [
        (ended_with(None, COMPARED), True, "nothing was faster beyond doubt"),
        (ended_with(None), False, "the time limit was over"),
        (ended_with(None, AS_IT_IS), False, "the time limit was over"),
        (ended_with(None, CRASHED), False, "nothing could be compared: its process was ended by SIGKILL"),
        (ended_with(COMPARED), False, "could not be saved: the study's verdict says why"),
        (ended_with(COMPARED.model_copy(update={"reason": "it has no file form"})), True, "it has no file form"),
    ],
)
def test_a_study_decides_if_it_came_to_its_end(result: StudyResult, decided: bool, said: str) -> None:
    assert script_runs._is_decided(result) is decided
    assert said in script_runs._why_not(result)


@pytest.mark.thorough(20)
def test_what_the_script_itself_put_there_is_not_replaced(tmp_path: Path) -> None:
    call = "\nwith torch.no_grad():\n    Fast().eval()(torch.ones(2, 64))\n"
    own = "import os\nos.makedirs('results')\nopen('results/index.json', 'w').write('{}')\n"
    script = written(tmp_path, NETS + call + own)
    done = quickly(script, options=("--out", "results"))
    assert done.returncode == 1
    assert "was not written by 'togi run'" in done.stderr
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["index.json"]


@pytest.mark.parametrize("last", ["", "raise SystemExit(3)"])
def test_with_json_standard_output_is_the_documents_alone(last: str, tmp_path: Path) -> None:
    """Also while Python ends."""
    text = f"{NETS}\nimport atexit, os\natexit.register(print, 'goodbye')\natexit.register(os.write, 1, b'bye')\n"
    done = run_togi(written(tmp_path, f"{text}print('its own')\n{last}\n"), options=("--json", "--report"))
    assert json.loads(done.stdout)["kind"] == "script"
    assert all(said in done.stderr for said in ("its own", "goodbye", "bye"))


@pytest.mark.parametrize("options", [("--report",), ("--report", "--json")])
@pytest.mark.parametrize(("last", "code"), [("", 0), ("sys.exit(3)", 3), ("os._exit(4)", 4)])
def test_a_script_whose_reader_has_gone_keeps_its_exit_code(
    options: tuple[str, ...], last: str, code: int, tmp_path: Path
) -> None:
    script = written(tmp_path, f"import os, sys\nprint('its own')\n{last}\n")
    read, write = os.pipe()
    os.close(read)
    variables = {**environment(tmp_path), "PYTHONUNBUFFERED": ""}  # or the script itself would notice
    command = [sys.executable, "-m", "togi", "run", *options, script.name]
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, stdout=write, stderr=subprocess.PIPE, text=True, timeout=100, check=False
    )
    os.close(write)
    assert done.returncode == code, done.stderr
    assert "called no torch module" in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.thorough(20)
def test_the_second_run_is_right_and_calls_what_was_tuned(classify: Path) -> None:
    """With real tuning. What it gains depends on the machine, and on who else computes there."""
    first = run_togi(classify, options=("--time-limit", "40s"), timeout_s=200)
    assert first.returncode == 0, first.stderr
    own, served = run_python(classify), run_togi(classify, options=(), timeout_s=100)
    assert served.returncode == 0, served.stderr
    sure = [float(re.findall(r"([\d.]+) sure", done.stdout)[0]) for done in (first, own, served)]
    assert sure == pytest.approx([sure[0]] * len(sure), abs=2e-4)
    index = json.loads((classify.parent / "classify.py.togi" / "index.json").read_text(encoding="utf-8"))
    assert any(one["artifact"] for one in index["modules"]) == ("calls served by" in served.stderr)
