"""``togi check --server``: what the rules find, in an editor. It speaks the Language Server Protocol over its standard
input and output.

A file is checked when it is opened, changed and saved, as its text stands in the editor: as ``togi check -`` does, and
as its pyproject.toml says. What a rule can rewrite is offered as a quick fix, and so is an ignore comment.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.errors import TogiError
from togi.core.version import version
from togi.lint.add_ignores import ignore_comments_for
from togi.lint.check_paths import check_stdin
from togi.lint.files import is_excluded
from togi.lint.finding import Edit, Finding, Fix, Problem
from togi.lint.fix import UnfixableError, apply_fixes, fixed_text
from togi.lint.pages import page_address
from togi.lint.settings import Overrides
from togi.lint.source_text import encode, syntax_error, unify_line_ends

if TYPE_CHECKING:
    from lsprotocol import types as lsp

_PAUSE_S = 0.2
"""A file is checked once nothing was typed for so long."""
_INSTALL = "pip install 'togi[lsp]'"


class MissingServerError(TogiError, ImportError):
    """The package that speaks the protocol is not installed."""


@dataclass(frozen=True)
class _Checked:
    """What was found in one version of a document."""

    text: str
    findings: tuple[Finding, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass
class _CheckedText:
    """One version of a document."""

    version: int | None
    checked: _Checked
    mended: str | None = None
    """Its text after all safe fixes, once somebody asked for it; the same text where nothing can be mended."""


def serve(settings: Overrides) -> None:
    """Answer an editor until it ends. Raises MissingServerError where the extra ``lsp`` is not installed."""
    server = server_of(settings)
    # It closes what it is given. Whatever else is printed would be taken for a message.
    with (
        os.fdopen(os.dup(sys.stdin.fileno()), "rb") as asked,
        os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answered,
        contextlib.redirect_stdout(sys.stderr),
    ):
        server.start_io(asked, answered)


def server_of(settings: Overrides) -> Any:
    """The language server. Raises MissingServerError."""
    try:
        from lsprotocol import types
        from pygls.lsp.server import LanguageServer
    except ModuleNotFoundError as error:
        raise MissingServerError(
            f"a language server needs {error.name}, which is not installed here: {_INSTALL}"
        ) from None
    # Whole texts: those who divide a text into lines otherwise than Python would make another text of its changes.
    server = LanguageServer("togi", version(), text_document_sync_kind=types.TextDocumentSyncKind.Full)
    answers = _Answers(server, types, settings)
    kinds = [types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll]
    for answer, feature, options in (
        (answers.opened, types.TEXT_DOCUMENT_DID_OPEN, None),
        (answers.changed, types.TEXT_DOCUMENT_DID_CHANGE, None),
        (answers.saved, types.TEXT_DOCUMENT_DID_SAVE, None),
        (answers.closed, types.TEXT_DOCUMENT_DID_CLOSE, None),
        (answers.actions, types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=kinds)),
    ):
        server.feature(feature, options)(functools.partial(answer))  # it sets attributes, which methods do not take
    return server


class _Answers:
    """Of one editor."""

    def __init__(self, server: Any, types: Any, settings: Overrides) -> None:
        self._server = server
        self._types = types
        self._settings = settings
        self._known: dict[str, _CheckedText] = {}

    def opened(self, params: Any) -> None:
        self._publish(params.text_document.uri)

    def saved(self, params: Any) -> None:
        """Check it again, since the settings may have changed."""
        self._known.pop(params.text_document.uri, None)
        self._publish(params.text_document.uri)

    async def changed(self, params: Any) -> None:
        await asyncio.sleep(_PAUSE_S)
        document = self._server.workspace.get_text_document(params.text_document.uri)
        if document.version == params.text_document.version:
            self._publish(document.uri)

    def closed(self, params: Any) -> None:
        self._known.pop(params.text_document.uri, None)
        self._send(params.text_document.uri, None, [])

    def actions(self, params: Any) -> list[lsp.CodeAction]:
        """Quick fixes of what lies in the range that the editor asks about, and one that mends the whole file."""
        document = self._server.workspace.get_text_document(params.text_document.uri)
        known = self._now(document)
        checked = known.checked
        lines = _Positions(self._types, document, checked.text)
        asked = params.range
        here = [f for f in checked.findings if f.place is not None and _touches(lines.of_finding(f), asked)]
        offered: list[lsp.CodeAction] = []
        if self._is_asked(params, self._types.CodeActionKind.QuickFix):
            offered += self._quick_fixes(here, checked.text, lines)
        if self._is_asked(params, self._types.CodeActionKind.SourceFixAll):
            offered += self._fix_all(document, known, lines)
        return offered

    def _is_asked(self, params: Any, kind: str) -> bool:
        """Whether an editor wants actions of a kind. Kinds are names with dots: who asks for ``source`` gets
        ``source.fixAll``, too."""
        only = params.context.only
        return not only or any(kind == asked or kind.startswith(asked + ".") for asked in only)

    def _publish(self, uri: str) -> None:
        document = self._server.workspace.get_text_document(uri)
        checked = self._now(document).checked
        lines = _Positions(self._types, document, checked.text)
        found = [lines.diagnostic(finding) for finding in checked.findings]
        self._send(uri, document.version, [*found, *(lines.problem(problem) for problem in checked.problems)])

    def _send(self, uri: str, number: int | None, diagnostics: list[Any]) -> None:
        self._server.text_document_publish_diagnostics(
            self._types.PublishDiagnosticsParams(uri=uri, version=number, diagnostics=diagnostics)
        )

    def _now(self, document: Any) -> _CheckedText:
        known = self._known.get(document.uri)
        if known is None or known.version != document.version:
            checked = _Checked(document.source)
            if _is_source(document):
                checked = _check(Path(document.path), document.source, self._settings)
            self._known[document.uri] = known = _CheckedText(document.version, checked)
        return known

    def _quick_fixes(self, findings: Iterable[Finding], text: str, lines: _Positions) -> Iterator[lsp.CodeAction]:
        for finding in findings:
            if finding.fix is not None and _can_be_applied(finding.fix, text):
                risk = "" if finding.fix.safe else " (may change results)"
                yield self._action(finding, f"{finding.fix.title.rstrip('.')}{risk}", finding.fix, lines)
            for fix in ignore_comments_for(text, [finding]):
                yield self._action(finding, f"Ignore {finding.rule} here", fix, lines)

    def _action(self, finding: Finding, title: str, fix: Fix, lines: _Positions) -> lsp.CodeAction:
        types = self._types
        action: lsp.CodeAction = types.CodeAction(
            title=title,
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[lines.diagnostic(finding)],
            is_preferred=fix is finding.fix and fix.safe,
            edit=lines.edit([types.TextEdit(range=lines.of_edit(edit), new_text=edit.text) for edit in fix.edits]),
        )
        return action

    def _fix_all(self, document: Any, known: _CheckedText, lines: _Positions) -> Iterator[lsp.CodeAction]:
        if known.mended is None:
            known.mended = _mended(known.checked, Path(document.path), self._settings)
        if known.mended != known.checked.text:
            types = self._types
            whole = types.TextEdit(range=lines.whole(), new_text=known.mended)
            kind = types.CodeActionKind.SourceFixAll
            yield types.CodeAction(title="togi: fix what is safe to fix", kind=kind, edit=lines.edit([whole]))


def _is_source(document: Any) -> bool:
    """A file, or one that was not saved yet. A cell of a notebook has the notebook's path, and an old version in a
    diff view that of the file."""
    return document.uri.partition(":")[0] in ("file", "untitled") and not document.path.endswith(".ipynb")


def _check(path: Path, text: str, settings: Overrides) -> _Checked:
    text = unify_line_ends(text)
    try:
        if is_excluded(path, settings):
            return _Checked(text)
        result = check_stdin(encode(text), str(path), settings)
    except TogiError as error:  # of a pyproject.toml
        return _Checked(text, problems=(Problem(path=str(path), message=str(error)),))
    return _Checked(text, result.findings, result.problems)


def _mended(checked: _Checked, path: Path, settings: Overrides) -> str:
    """The text after all safe fixes; the same one where there are none, or none can be made."""
    if any(finding.fix is not None and finding.fix.safe for finding in checked.findings):
        with contextlib.suppress(UnfixableError):
            return fixed_text(checked.text, path, settings)
    return checked.text


def _can_be_applied(fix: Fix, text: str) -> bool:
    after, count = apply_fixes(text, [fix])
    return count == 1 and syntax_error(after) is None


def _touches(one: lsp.Range, other: lsp.Range) -> bool:
    return _order(one.start) <= _order(other.end) and _order(other.start) <= _order(one.end)


def _order(position: lsp.Position) -> tuple[int, int]:
    return position.line, position.character


class _Positions:
    """Places of a checked text as an editor counts: from 0, and in code units of the encoding that it asked for."""

    def __init__(self, types: Any, document: Any, text: str) -> None:
        self._types = types
        self._document = document
        self._lines = text.split("\n")

    def of_edit(self, edit: Edit) -> lsp.Range:
        return self._range(edit.line, edit.column, edit.end_line, edit.end_column)

    def of_finding(self, finding: Finding) -> lsp.Range:
        """To the end of the line where it has no end."""
        place = finding.place
        assert place is not None
        return self._range(place.line, place.column, place.end_line or place.line, place.end_column)

    def whole(self) -> lsp.Range:
        return self._range(1, 1, len(self._lines), None)

    def diagnostic(self, finding: Finding) -> lsp.Diagnostic:
        types, address = self._types, page_address(finding.rule)
        diagnostic: lsp.Diagnostic = types.Diagnostic(
            range=self.of_finding(finding),
            message=f"{finding.message.rstrip('.')}. Instead: {finding.remedy}",
            severity=types.DiagnosticSeverity.Warning,
            code=finding.rule,
            code_description=types.CodeDescription(href=address) if address else None,
            source="togi",
        )
        return diagnostic

    def problem(self, problem: Problem) -> lsp.Diagnostic:
        types, line = self._types, min(problem.line or 1, len(self._lines))
        diagnostic: lsp.Diagnostic = types.Diagnostic(
            range=self._range(line, 1, line, None),
            message=f"Not checked: {problem.message}",
            severity=types.DiagnosticSeverity.Error,
            source="togi",
        )
        return diagnostic

    def edit(self, edits: list[Any]) -> lsp.WorkspaceEdit:
        made: lsp.WorkspaceEdit = self._types.WorkspaceEdit(changes={self._document.uri: edits})
        return made

    def _range(self, line: int, column: int, end_line: int, end_column: int | None) -> lsp.Range:
        end_line = min(end_line, len(self._lines))
        end = len(self._lines[end_line - 1]) if end_column is None else end_column - 1
        made: lsp.Range = self._types.Range(start=self._at(line - 1, column - 1), end=self._at(end_line - 1, end))
        return made

    def _at(self, line: int, character: int) -> lsp.Position:
        position = self._types.Position(line=line, character=character)
        at: lsp.Position = self._document.position_codec.position_to_client_units(self._lines, position)
        return at
