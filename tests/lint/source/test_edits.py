"""Arguments and imports are added without touching what is there."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from togi.lint.finding import Fix
from togi.lint.fix import apply_fixes
from togi.lint.source.edits import add_argument, add_import
from togi.lint.source.model import Source


def with_argument(text: str) -> str | None:
    source = Source.parse(text)
    call = next(node for node in source.nodes(ast.Call) if getattr(node.func, "id", "") == "f")
    edit = add_argument(source, call, "w=1")
    return apply_fixes(text, [Fix(title="", edits=(edit,))])[0] if edit else None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()\n", "f(w=1)\n"),
        ("f(a, (b))\n", "f(a, (b), w=1)\n"),
        ("é = f('é', a,)\n", "é = f('é', a, w=1)\n"),
        ("f(\n    a,\n    b,  # why\n)\n", "f(\n    a,\n    b,  # why\n    w=1,\n)\n"),
        ("f(\n    a,\n    b\n)\n", "f(\n    a,\n    b,\n    w=1\n)\n"),
        ("f(\n    a,\n    b  # why\n)\n", "f(\n    a,\n    b,  # why\n    w=1\n)\n"),
        ("g(f(*a, **k), 1)\n", "g(f(*a, **k, w=1), 1)\n"),
        ("x = f('''\n)''')(2)\n", "x = f('''\n)''', w=1)(2)\n"),
        ("f(x for x in y)\n", None),
    ],
)
def test_add_argument(before: str, after: str | None) -> None:
    assert with_argument(before) == after


ARGUMENTS = st.lists(
    st.sampled_from(["a", "(b)", "'é)'", "g(1)[0]", "x=1", "*c", "**d", "'''\n'''", "# )"]), max_size=4
)


@given(ARGUMENTS, st.sampled_from([", ", ",\n    ", ",  # c\n    "]), st.sampled_from(["", ",", "\n", ",\n"]))
def test_the_call_stays_the_same_but_for_the_argument(arguments: list[str], separator: str, tail: str) -> None:
    ordered = sorted((arg for arg in arguments if arg[0] != "#"), key=lambda arg: (arg[:2] == "**", "=" in arg))
    text = f"f({separator.join(ordered)}{tail if ordered else ''})\n"
    try:
        before = ast.parse(text)
    except SyntaxError:
        return
    call = ast.parse(with_argument(text) or "").body[0].value  # type: ignore[attr-defined]
    assert [k.arg for k in call.keywords if k.arg == "w"] == ["w"]
    call.keywords = [keyword for keyword in call.keywords if keyword.arg != "w"]
    assert ast.dump(call) == ast.dump(before.body[0].value)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import os\n", "import torch\nimport os\n"),
        ('"""Doc."""\nfrom __future__ import annotations\nimport os\n', None),
        ("import torch\n", "import torch\n"),
        ("import torch.nn\n", "import torch.nn\n"),
        ("import torch as t\n", "import torch\nimport torch as t\n"),
    ],
)
def test_add_import_keeps_docstring_and_future_imports_first(before: str, after: str | None) -> None:
    edit = add_import(Source.parse(before), "torch")
    text = apply_fixes(before, [Fix(title="", edits=(edit,))])[0] if edit else before
    assert text == (after or '"""Doc."""\nfrom __future__ import annotations\nimport torch\nimport os\n')
