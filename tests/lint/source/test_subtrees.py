"""A subtree asked of the index is what the standard library finds by walking, in the order of the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from togi.lint.check_file import check_text
from togi.lint.source.tree import Tree

CORPUS = sorted((Path(__file__).parents[1] / "corpus").rglob("*.py"))[::9]
LEFT_OUT = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.type_ignore)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_subtree_is_complete_and_in_order(path: Path) -> None:
    module = ast.parse(path.read_text(encoding="utf-8"))
    tree = Tree(module)
    for node in ast.walk(module):
        if isinstance(node, LEFT_OUT):
            continue
        expected = {child for child in ast.walk(node) if not isinstance(child, LEFT_OUT)}
        subtree = tree.walk(node)
        assert set(subtree) == expected
        assert len(subtree) == len(expected)
        assert subtree[-1] is node
        for kind in (ast.Name, ast.Call, ast.Attribute):
            assert tree.walk(node, kind) == [child for child in subtree if type(child) is kind]
        assert len(tree.walk(node, ast.Name, ast.Call)) == len(tree.walk(node, ast.Name)) + len(
            tree.walk(node, ast.Call)
        )


def test_scopes_and_functions_are_the_same_whatever_was_asked_before() -> None:
    module = ast.parse("def f(a=x):\n    def g():\n        return [lambda: y for y in a]\n    return g\n")
    nodes = [node for node in ast.walk(module) if not isinstance(node, LEFT_OUT)]
    forward, backward = Tree(module), Tree(module)
    down = {node: (forward.scope(node).node, forward.function(node)) for node in nodes}
    up = {node: (backward.scope(node).node, backward.function(node)) for node in reversed(nodes)}
    assert down == up
    (default,) = (node for node in nodes if isinstance(node, ast.Name) and node.id == "x")
    assert down[default] == (module, None)


class Interpolation(ast.expr):
    """As Python 3.14 has it: ``str`` is text."""

    _fields = ("value", "str", "conversion", "format_spec")


def test_only_nodes_are_walked() -> None:
    module = ast.parse("f'{x:{y}}'")
    (formatted,) = (node for node in ast.walk(module) if isinstance(node, ast.FormattedValue) and node.format_spec)
    text = next(node for node in ast.walk(module) if isinstance(node, ast.JoinedStr))
    kind = getattr(ast, "Interpolation", Interpolation)
    text.values = [kind(value=formatted.value, str="x", conversion=-1, format_spec=formatted.format_spec)]
    tree = Tree(module)
    expected = {node for node in ast.walk(module) if not isinstance(node, LEFT_OUT)}
    assert set(tree.walk(module)) == expected
    assert {node for nodes in tree.by_type.values() for node in nodes} == expected
    assert {name.id for name in tree.walk(text, ast.Name)} == {"x", "y"}


@pytest.mark.skipif(not hasattr(ast, "TemplateStr"), reason="Python 3.14 has template strings")
def test_a_template_string_is_read_as_an_f_string() -> None:
    text = "import torch\ns = t'{torch.ger(a, b)!r:{torch.ger(a, b)}}'\n"
    report = check_text(text, "x.py")
    assert not report.problems
    assert [(finding.rule, finding.fix) for finding in report.findings] == [("deprecated-function", None)] * 2
