"""An editor that speaks the Language Server Protocol over standard input and output, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from togi.lint import server
from togi.lint.fix import UnfixableError, fix_paths, fixed_text
from togi.lint.settings import Overrides

FAULT = """import torch


def outer(a, b):
    result = torch.ger(a, b)
    return result
"""
MENDED = FAULT.replace("torch.ger", "torch.outer")
RISKY = """import torch
for x, y in loader:
    optimizer.zero_grad()
    loss = model(x)
    loss.backward()
    optimizer.step()
    total += loss
"""
SERVER = """
import sys
sys.modules["torch"] = None  # which it does not need
from togi.cli import main
main(["check", "--server", *sys.argv[1:]])
"""


class Editor:
    """Sends messages and reads answers, as the protocol frames them."""

    def __init__(self, folder: Path, *arguments: str, encodings: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._number = 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
        )
        general = {"positionEncodings": list(encodings)} if encodings else {}
        self.offers = self.ask(
            "initialize", processId=None, rootUri=folder.as_uri(), capabilities={"general": general}
        )["capabilities"]
        self.tell("initialized")

    def tell(self, method: str, **params: Any) -> None:
        self._send({"method": method, "params": params})

    def ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        return self._received(lambda message: message.get("id") == self._number and "method" not in message)["result"]

    def diagnostics(self) -> list[dict[str, Any]]:
        """Those that are published next."""
        published = self._received(lambda message: message.get("method") == "textDocument/publishDiagnostics")
        found: list[dict[str, Any]] = published["params"]["diagnostics"]
        return found

    def shows(self, text: str, name: str = "train.py") -> list[dict[str, Any]]:
        """What is found in a file that is opened."""
        self.uri = (self.folder / name).as_uri()
        self.tell(
            "textDocument/didOpen",
            textDocument={"uri": self.uri, "languageId": "python", "version": 1, "text": text},
        )
        return self.diagnostics()

    def actions(self, line: int, *only: str) -> list[dict[str, Any]]:
        place = {"line": line, "character": 0}
        context = {"diagnostics": [], **({"only": list(only)} if only else {})}
        found: list[dict[str, Any]] = self.ask(
            "textDocument/codeAction",
            textDocument={"uri": self.uri},
            range={"start": place, "end": {"line": line, "character": 200}},
            context=context,
        )
        return found

    def close(self) -> int:
        self.ask("shutdown")
        self._send({"method": "exit"})
        return self.process.wait(timeout=20)

    def _send(self, message: dict[str, Any]) -> None:
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        self.process.stdin.flush()

    def _received(self, wanted: Any) -> dict[str, Any]:
        while True:
            message = self._next()
            if wanted(message):
                return message

    def _next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        length = 0
        while (line := self.process.stdout.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length, "the server ended"
        message: dict[str, Any] = json.loads(self.process.stdout.read(length))
        return message


@pytest.fixture
def editor(tmp_path: Path) -> Iterator[Editor]:
    editor = Editor(tmp_path)
    yield editor
    editor.process.kill()
    editor.process.wait()


def applied(text: str, action: dict[str, Any], uri: str) -> str:
    """The text after the action, as an editor applies it (its units are those of UTF-16)."""
    lines = text.split("\n")
    starts = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]

    def offset(position: dict[str, int]) -> int:
        before = lines[position["line"]].encode("utf-16-le")[: 2 * position["character"]]
        return starts[position["line"]] + len(before.decode("utf-16-le"))

    edits = sorted(action["edit"]["changes"][uri], key=lambda edit: -offset(edit["range"]["start"]))
    for edit in edits:
        start, end = offset(edit["range"]["start"]), offset(edit["range"]["end"])
        text = text[:start] + edit["newText"] + text[end:]
    return text


def test_what_is_found_is_shown_at_its_place_and_mended_by_a_quick_fix(editor: Editor) -> None:
    (found,) = editor.shows(FAULT)
    assert (found["source"], found["code"], found["severity"]) == ("togi", "deprecated-function", 2)
    assert found["range"] == {"start": {"line": 4, "character": 13}, "end": {"line": 4, "character": 22}}
    assert ". Instead: write torch.outer(...)" in found["message"]
    fixes = [action for action in editor.actions(4, "quickfix") if action.get("isPreferred")]
    assert editor.actions(0, "quickfix") == []
    assert [applied(FAULT, fix, editor.uri) for fix in fixes] == [MENDED]
    assert editor.close() == 0


def test_what_may_change_results_says_so_and_is_not_done_with_the_rest(editor: Editor) -> None:
    (finding,) = editor.shows(RISKY)
    offered = editor.actions(finding["range"]["start"]["line"])
    (risky,) = [action for action in offered if action["title"].endswith(" (may change results)")]
    assert not risky["isPreferred"]
    assert applied(RISKY, risky, editor.uri) == RISKY.replace("+= loss", "+= loss.detach()")
    assert not [action for action in offered if action["kind"] == "source.fixAll"]


def test_an_ignore_comment_is_offered_and_silences_the_finding(editor: Editor) -> None:
    (finding, *_) = editor.shows(FAULT)
    (ignore, *_) = [a for a in editor.actions(finding["range"]["start"]["line"]) if a["title"].startswith("Ignore")]
    text = applied(FAULT, ignore, editor.uri)
    assert f"# togi: ignore[{finding['code']}]" in text
    editor.tell(
        "textDocument/didChange",
        textDocument={"uri": editor.uri, "version": 2},
        contentChanges=[{"text": text}],
    )
    assert finding["code"] not in [each["code"] for each in editor.diagnostics()]


def test_all_safe_fixes_at_once_are_what_the_command_line_does(editor: Editor, tmp_path: Path) -> None:
    text = FAULT + FAULT
    editor.shows(text)
    (whole,) = editor.actions(0, "source.fixAll")
    (tmp_path / "other.py").write_text(text, encoding="utf-8")
    fix_paths([tmp_path / "other.py"], cache=False)
    assert applied(text, whole, editor.uri) == (tmp_path / "other.py").read_text(encoding="utf-8") == MENDED + MENDED


def test_only_the_last_of_several_changes_is_checked(editor: Editor) -> None:
    editor.shows(FAULT)
    for number, text in enumerate(["import torch\nx = (", FAULT, MENDED], start=2):
        editor.tell(
            "textDocument/didChange",
            textDocument={"uri": editor.uri, "version": number},
            contentChanges=[{"text": text}],
        )
    assert editor.diagnostics() == []
    editor.tell("textDocument/didSave", textDocument={"uri": editor.uri})
    assert editor.diagnostics() == []
    editor.tell("textDocument/didClose", textDocument={"uri": editor.uri})
    assert editor.diagnostics() == []


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_columns_are_those_of_the_editor(editor: Editor, end: str) -> None:
    """A character beyond the basic plane counts twice in UTF-16, and a form feed ends no line."""
    text = FAULT.replace("    result =", "    '\U0001f600\x0c'; result =")
    editor.shows(text.replace("\n", end))
    (fix,) = [action for action in editor.actions(4, "quickfix") if action.get("isPreferred")]
    assert applied(text, fix, editor.uri) == text.replace("torch.ger", "torch.outer")


def test_settings_of_the_project_and_of_the_command_apply(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.togi.check]\nexclude = ['left_out/']\n", encoding="utf-8")
    (tmp_path / "left_out").mkdir()
    editor = Editor(tmp_path)
    try:
        assert editor.shows(FAULT, "left_out/train.py") == []
        found = [each["code"] for each in editor.shows(FAULT)]
        assert found
        (tmp_path / "pyproject.toml").write_text(f"[tool.togi.check]\nignore = {found}\n", encoding="utf-8")
        editor.tell("textDocument/didSave", textDocument={"uri": editor.uri})
        assert editor.diagnostics() == []
        (tmp_path / "pyproject.toml").write_text("[tool.togi.check]\nignored = []\n", encoding="utf-8")
        editor.tell("textDocument/didSave", textDocument={"uri": editor.uri})
        (problem,) = editor.diagnostics()
        assert "Not checked" in problem["message"]
        assert "ignored" in problem["message"]
    finally:
        editor.process.kill()
        editor.process.wait()
    other = Editor(tmp_path / "left_out", "--ignore", ",".join(found))
    try:
        (tmp_path / "pyproject.toml").unlink()
        assert other.shows(FAULT) == []
    finally:
        other.process.kill()
        other.process.wait()


@pytest.mark.parametrize(
    "text", ["", "import torch\nx = (", "import torch\n# -*- coding: latin-1 -*-\nx = '\u20ac'\n", "\x00 torch"]
)
def test_nothing_that_is_typed_ends_the_server(editor: Editor, text: str) -> None:
    editor.shows(text)
    editor.actions(0)
    assert editor.shows(FAULT, "other.py")
    assert editor.close() == 0


def test_without_the_extra_it_says_what_to_type(tmp_path: Path) -> None:
    code = SERVER.replace("import sys\n", "import sys\nsys.modules['pygls'] = None\n")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "pip install 'togi[lsp]'" in ended.stderr


def test_a_path_has_no_part_in_it(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SERVER, "src"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ended.returncode == 2
    assert "checks what an editor opens, and src was named: leave it out" in ended.stderr


@pytest.mark.parametrize("uri", ["vscode-notebook-cell:{}/a.ipynb#W0", "git:{}/train.py?ref=HEAD", "file://{}/a.ipynb"])
def test_what_is_no_file_of_source_gets_no_findings(uri: str, editor: Editor, tmp_path: Path) -> None:
    """A cell has its notebook's path, and would be read as JSON."""
    document = {"uri": uri.format(tmp_path), "languageId": "python", "version": 1, "text": FAULT}
    editor.tell("textDocument/didOpen", textDocument=document)
    assert editor.diagnostics() == []
    assert editor.shows(FAULT)


def test_who_asks_for_all_of_the_source_gets_what_mends_it(editor: Editor) -> None:
    editor.shows(FAULT)
    assert [action["kind"] for action in editor.actions(4, "source")] == ["source.fixAll"]
    assert editor.actions(4, "refactor") == []


def test_characters_that_the_declared_encoding_lacks_stay(editor: Editor) -> None:
    """The whole text cannot be written so, and no other is offered; one edit leaves the rest alone."""
    text = f"# -*- coding: latin-1 -*-\n{FAULT}# 10 \u20ac\n"
    editor.shows(text)
    assert editor.actions(5, "source.fixAll") == []
    (fix,) = [action for action in editor.actions(5) if action.get("isPreferred")]
    assert applied(text, fix, editor.uri) == text.replace("torch.ger", "torch.outer")
    with pytest.raises(UnfixableError, match="lacks"):
        fixed_text(text, editor.folder / "train.py", Overrides())


def test_a_whole_file_is_mended_once_for_each_version_and_only_where_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = pytest.importorskip("lsprotocol.types")
    mended: list[str] = []
    monkeypatch.setattr(server, "fixed_text", lambda text, *_: mended.append(text) or MENDED)
    document = SimpleNamespace(
        uri=(tmp_path / "x.py").as_uri(),
        path=str(tmp_path / "x.py"),
        source=FAULT,
        version=1,
        position_codec=SimpleNamespace(position_to_client_units=lambda _, position: position),
    )
    answers = server._Answers(
        SimpleNamespace(workspace=SimpleNamespace(get_text_document=lambda _: document)), types, Overrides()
    )
    place = types.Position(line=4, character=0)

    def offered(*only: str) -> list[str]:
        asked = SimpleNamespace(
            text_document=document,
            range=types.Range(start=place, end=types.Position(line=4, character=99)),
            context=SimpleNamespace(only=list(only)),
        )
        return [action.kind for action in answers.actions(asked)]

    assert "source.fixAll" not in offered("quickfix")
    assert not mended
    assert [offered("source.fixAll"), offered()[-1:], offered("source")] == [["source.fixAll"]] * 3
    document.version = 2
    offered()
    assert mended == [FAULT] * 2
