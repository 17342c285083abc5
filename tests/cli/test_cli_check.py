"""togi check: arguments, exit codes, streams, forms; explain of rules; the hook definition."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from togi.cli.app import run

CODE = "import torch\ntorch.nn.init.xavier_uniform(w)\nopt = torch.optim.SGD(p)\n"
FIXED = CODE.replace("xavier_uniform", "xavier_uniform_")
SUBJECT = """
import torch
from torch import nn

def subject():
    {failing}
    torch.nn.init.xavier_uniform
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=True), nn.BatchNorm2d(8)).eval()
    return model, torch.zeros(1, 3, 16, 16)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOGI_CACHE", str(tmp_path / ".cache"))
    (tmp_path / "a.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "clean.py").write_text("import torch\n", encoding="utf-8")
    return tmp_path


def out(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    assert run(["check", *arguments]) == code
    return capsys.readouterr().out


def test_the_exit_code_tells_findings_from_problems(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert "a.py:2:1: deprecated-function" in out(capsys, code=1)
    assert "Nothing found in 1 file." in out(capsys, "clean.py", code=0)
    assert "1 finding" in out(capsys, "--exit-zero", code=0)
    (folder / "bad.py").write_text("import torch\nx = (\n", encoding="utf-8")
    assert "bad.py:2: not checked" in out(capsys, code=2)
    out(capsys, "--exit-zero", code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.pyy"], "there is no file or folder a.pyy; did you mean 'a.py'?"),
        (["nowhere/x/y.py"], "there is no file or folder nowhere/x/y.py"),
        (["--select", "deprecated-funktion"], "--select: there is no rule 'deprecated-funktion'; did you mean"),
        (["--ignore", "everything"], "--ignore: there is no rule 'everything'"),
        (["tim:resnet50"], "did you mean 'timm'"),
        (["timm:resnet5"], "resnet50"),
        (["a.py:subjct"], "a.py has no 'subjct'"),
        (["model.pt2"], "there is no file model.pt2"),
        (["--output-format", "xml"], "sarif"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err.replace("\n", " ")
    assert "Traceback" not in captured.err


def test_select_ignore_exclude(capsys: pytest.CaptureFixture[str]) -> None:
    out(capsys, "--select", "torchscript,unsafe_load", code=0)
    out(capsys, "--ignore", "Deprecated_Function", code=0)
    out(capsys, "--exclude", "a.py", code=0)
    out(capsys, "--select", "source", code=1)


def test_a_pyproject_that_cannot_be_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pyproject.toml").write_text("[tool.togi.check]\nselekt = []\n", encoding="utf-8")
    assert run(["check"]) == 2
    assert "there is no key 'selekt'; did you mean 'select'?" in capsys.readouterr().err


def test_fix_and_diff(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "+torch.nn.init.xavier_uniform_(w)" in out(capsys, "--diff", code=1)
    assert (folder / "a.py").read_text(encoding="utf-8") == CODE
    assert "1 fixed" in out(capsys, "--fix", code=0)
    assert (folder / "a.py").read_text(encoding="utf-8") == FIXED
    assert out(capsys, "--diff", code=0) == ""


def test_ignore_comments_for_everything_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "+torch.nn.init.xavier_uniform(w)  # togi: ignore" in out(capsys, "--add-ignores", "--diff", code=1)
    assert (folder / "a.py").read_text(encoding="utf-8") == CODE
    assert "1 ignore comment written" in out(capsys, "--add-ignores", code=0)
    assert "xavier_uniform(w)  # togi: ignore[deprecated-function]\n" in (folder / "a.py").read_text(encoding="utf-8")
    assert "written" not in out(capsys, "--add-ignores", code=0)
    assert json.loads(out(capsys, "--add-ignores", "--json", code=0))["ignores_added"] == 0


def give(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))


def test_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    give(monkeypatch, CODE)
    assert "-:2:1: deprecated-function" in (shown := out(capsys, "-", code=1))
    assert "2 | torch.nn.init.xavier_uniform(w)\n" in shown
    give(monkeypatch, FIXED)
    assert "Nothing found in 1 file." in out(capsys, "-", code=0)
    give(monkeypatch, "import torch\nx = (\n")
    assert "-:2: not checked" in out(capsys, "-", code=2)
    (folder / "-").write_text(FIXED, encoding="utf-8")
    assert "Nothing found in 1 file." in out(capsys, "./-", code=0)


def test_standard_input_has_the_settings_of_the_file_it_is_named_after(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "pyproject.toml").write_text(
        '[tool.togi.check]\nper-file-ignores = {"old*.py" = ["deprecated-function"]}\n', encoding="utf-8"
    )
    (folder / "sub" / "new.py").write_text("what is on disk is not read", encoding="utf-8")
    give(monkeypatch, CODE)
    assert "sub/new.py:2:1: deprecated-function" in (
        shown := out(capsys, "-", "--stdin-filename", "sub/new.py", code=1)
    )
    assert "2 | torch.nn.init.xavier_uniform(w)\n" in shown
    give(monkeypatch, CODE)
    assert "1 ignored" in out(capsys, "-", "--stdin-filename", "sub/old_a.py", code=0)
    give(monkeypatch, json.dumps({"cells": [{"cell_type": "code", "source": CODE}]}))
    assert "n.ipynb:cell 1:2:1: deprecated-function" in out(capsys, "-", "--stdin-filename", "n.ipynb", code=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-", "a.py"], "'-' reads one file from standard input"),
        (["-", "--fix"], "standard input cannot be rewritten"),
        (["-", "--add-ignores"], "standard input cannot be rewritten"),
        (["--fix", "--add-ignores"], "run --fix first"),
    ],
)
def test_what_does_not_go_together(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", *arguments]) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_a_name_for_standard_input_that_is_not_read_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "clean.py", "--stdin-filename", "b.py"]) == 0
    assert "--stdin-filename without '-' has no effect" in capsys.readouterr().err


def test_each_finding_says_how_to_read_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  = more: togi explain deprecated-function\n" in out(capsys, code=1)
    assert run(["explain", "deprecated-function"]) == 0


@pytest.mark.parametrize("form", ["text", "concise", "json", "sarif", "github"])
def test_output_goes_where_it_is_sent(form: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = out(capsys, "--output-format", form, code=1)
    assert out(capsys, "--output-format", form, "--output-file", "report", code=1) == ""
    written = (folder / "report").read_text(encoding="utf-8")
    assert "deprecated-function" in written
    if form != "json":
        assert written == shown


@pytest.mark.thorough
@pytest.mark.usefixtures("in_this_process")
def test_tables_of_a_subject_go_there_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "s.py").write_text(SUBJECT.format(failing="pass"), encoding="utf-8")
    options = ("s.py:subject", "--select", "bias-before-norm")
    assert "layer" in (shown := out(capsys, *options, code=1))
    assert out(capsys, *options, "--output-file", "report", code=1) == ""
    written = (folder / "report").read_text(encoding="utf-8").splitlines()
    # Rows go by measured times, so their order may differ between two runs.
    assert sorted(line.split()[:1] for line in written) == sorted(line.split()[:1] for line in shown.splitlines())


def test_json_lists_the_findings(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(out(capsys, "--json", code=1))
    assert document["kind"] == "findings"
    assert document["findings"][0]["place"]["path"] == "a.py"


def test_statistics_count_findings_by_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "--statistics", code=1).startswith("     1 [*] deprecated-function  in 1 file\n")


@pytest.mark.usefixtures("in_this_process")
def test_a_subject_that_cannot_be_imported_is_a_problem_and_its_source_is_checked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "s.py").write_text(SUBJECT.format(failing="import no_such_module"), encoding="utf-8")
    document = json.loads(out(capsys, "s.py:subject", "--json", code=2))
    assert "no_such_module" in document["problems"][0]["message"]
    assert [finding["rule"] for finding in document["findings"]] == ["deprecated-function"]


@pytest.mark.thorough
def test_a_subject_is_checked_with_its_source_and_its_module(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "s.py").write_text(SUBJECT.format(failing="pass"), encoding="utf-8")
    document = json.loads(out(capsys, "s.py:subject", "--json", "--select", "module,source", code=1))
    assert {"deprecated-function", "bias-before-norm"} <= {finding["rule"] for finding in document["findings"]}
    assert document["tables"]
    assert not document["problems"]


def test_kinds_that_are_not_selected_do_not_run(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    from togi.lint import check_subject
    from togi.lint.calls import SubjectReport

    called: list[str] = []

    def answer(request: Any) -> SubjectReport:
        called.append(type(request).__name__)
        return SubjectReport(findings=())

    for name in ("EXAMINE", "WATCH"):
        monkeypatch.setattr(check_subject, name, lambda _ref, request, **_: answer(request))
    (folder / "s.py").write_text(SUBJECT.format(failing="pass"), encoding="utf-8")
    assert run(["check", "s.py:subject", "--select", "source"]) == 1
    assert called == []
    assert run(["check", "s.py:subject", "--select", "module"]) == 0
    assert called == ["ModuleRequest"]


def test_comments_in_the_source_silence_what_was_seen_in_a_run(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    from togi.lint import check_subject
    from togi.lint.calls import SubjectReport
    from togi.lint.finding import Finding, Place

    (folder / "s.py").write_text(SUBJECT.format(failing="pass  # togi: ignore[bias-before-norm]"), encoding="utf-8")
    line = SUBJECT[: SUBJECT.index("{failing}")].count("\n") + 1
    found = Finding(rule="bias-before-norm", message="m", remedy="r", place=Place(path="s.py", line=line))
    monkeypatch.setattr(check_subject, "EXAMINE", lambda *_, **__: SubjectReport(findings=(found,)))
    assert run(["check", "s.py:subject", "--select", "module"]) == 0


def test_explain_knows_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "deprecated_function"]) == 0
    shown = capsys.readouterr().out
    for heading in ("What it reports", "Why it costs", "When it stays silent", "Example", "Use instead", "Source"):
        assert f"\n{heading}\n" in shown
    assert run(["explain", "deprecated-function", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rule"]["id"] == "deprecated-function"
    assert run(["explain", "no-grad"]) == 0
    assert run(["explain", "deprecated-funktion"]) == 2
    assert "did you mean 'deprecated-function'?" in capsys.readouterr().err


def test_a_name_that_a_technique_and_a_rule_share(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "torchscript", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["technique"]["id"], document["rule"]["id"]) == ("torchscript", "torchscript")


def test_completion_of_rules() -> None:
    from togi.cli.options import complete_rule

    assert "deprecated-function" in complete_rule("deprecated_f")


def test_paths_need_neither_torch_nor_rich_nor_rules_of_modules() -> None:
    code = (
        "import sys; from togi.cli.app import run; assert run(['check']) == 1; "
        "names = ('torch', 'numpy', 'rich.console', 'safetensors', 'togi.lint.rules.module'); "
        "print([name for name in names if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"


def test_output_in_an_encoding_that_has_not_all_characters(folder: Path) -> None:
    (folder / "a.py").write_text(CODE.replace("(w)", "(w, '研')"), encoding="utf-8")
    code = "from togi.cli import main; main(['check', '--no-cache'])"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=60, check=False)
    assert done.returncode == 1
    assert b"(w, '?')" in done.stdout


def test_the_hook_runs_the_command() -> None:
    text = (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    entry = next(line.split(": ")[1] for line in text.splitlines() if line.strip().startswith("entry:"))
    assert entry.split()[:2] == ["togi", "check"]
    assert run([*entry.split()[1:], "clean.py"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "A10O"), "device: there are no figures of a device 'A10O'; did you mean 'A10'?"),
        (("--device", "cpu:3"), "give cpu, cuda or cuda:N"),
        (("--dtype", "bflot16"), "'bflot16'; did you mean 'bfloat16'? Known are"),
    ],
)
def test_a_mistyped_device_or_dtype_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    (folder / "model.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    assert run(["check", "model.py:subject", *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert not printed.out
    assert "Traceback" not in printed.err


def test_what_concerns_subjects_says_that_it_has_no_effect_on_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "clean.py", "--device", "A100", "--measure"]) == 0
    said = capsys.readouterr().err
    assert "--device without a subject has no effect" in said
    assert "--measure without a subject" in said
    assert "--train" not in said


EVIL = "import pathlib\npathlib.Path('ran').touch()\n"


@pytest.mark.parametrize("target", ["evil.py:main", "evil.pt", "evil.ts", "evil.togi", "evil:main", "x/evil.py:main"])
def test_names_that_a_shell_lists_are_never_run(folder: Path, target: str) -> None:
    (folder / "evil.py").write_text(EVIL, encoding="utf-8")
    (folder / "x").mkdir()
    (folder / target).symlink_to("nowhere")
    listed = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    assert run(["check", *listed]) == 2
    assert run(["check", target]) == 2
    assert not (folder / "ran").exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("in_this_process")
def test_a_subject_among_paths_needs_its_option(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "s.py").write_text(SUBJECT.format(failing="pass"), encoding="utf-8")
    assert run(["check", "clean.py", "s.py:subject"]) == 2
    assert "give --subject s.py:subject" in capsys.readouterr().err
    said = out(capsys, "clean.py", "--subject", "s.py:subject", "--select", "module,deprecated-function", code=1)
    assert "s.py:7" in said
    assert "bias-before-norm" in said


@pytest.mark.parametrize("name", ["--output-file=clean.py", "--fix", "-h", "--subject=evil.py:main"])
def test_an_option_that_is_also_a_file_is_refused(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "evil.py").write_text(EVIL, encoding="utf-8")
    (folder / name).write_text(CODE, encoding="utf-8")
    before = (folder / "clean.py").read_bytes(), (folder / "a.py").read_bytes()
    assert run(["check", *sorted(os.listdir(folder))]) == 2
    assert f"{name} is an option, and also a file in this folder" in capsys.readouterr().err
    assert run(["check", "--", name]) in (1, 2)
    assert ((folder / "clean.py").read_bytes(), (folder / "a.py").read_bytes()) == before
    assert not (folder / "ran").exists()
