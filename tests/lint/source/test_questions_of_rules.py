"""What several rules ask of a file: calls, words, surroundings, training loops, and fixes made of edits."""

from __future__ import annotations

import ast

import pytest

from togi.lint.fix import apply_fixes
from togi.lint.source.call_sites import calls_without, method_calls
from togi.lint.source.fixes import append, fix, replace_arguments, respell
from togi.lint.source.gradients import gradient_switches, training_loop
from togi.lint.source.identifiers import file_mentions, mentions, target_names
from togi.lint.source.model import Source
from togi.lint.source.references import calls_of
from togi.lint.source.surroundings import climb, neighbours, over_batches


def parsed(text: str) -> Source:
    return Source.parse(f"import torch\n{text}", "train.py")


def only(source: Source, kind: type[ast.AST]) -> ast.AST:
    (node,) = source.nodes(kind)
    assert isinstance(node, ast.AST)
    return node


def test_calls_are_found_by_function_and_by_method() -> None:
    source = parsed("from torch import load as l\nl(p)\ntorch.load(p)\ntorch.load\nx.load(p)\n")
    assert [(call.lineno, name) for call, name in calls_of(source, {"torch.load"})] == [
        (4, "torch.load"),
        (3, "torch.load"),
    ]
    assert [call.lineno for call, _ in method_calls(source, ("load",))] == [4, 6]


def test_calls_that_may_have_the_keyword_do_not_leave_it_open() -> None:
    text = (
        "torch.load(a)\ntorch.load(b, safe=True)\ntorch.load(c, **d)\nif torch.__version__ < '2':\n    torch.load(e)\n"
    )
    assert [call.lineno for call, _ in calls_without(parsed(text), {"torch.load"}, "safe")] == [2]


@pytest.mark.parametrize("test", ["is_compiled", "self.Compiled", "f(recompile=1)", "x == 'compile'"])
def test_identifiers_and_strings_are_mentions(test: str) -> None:
    source = parsed(f"if {test}: pass\n")
    node = only(source, ast.If)
    assert isinstance(node, ast.If)
    assert mentions(source, node.test, ("compile",))


def test_comments_are_not_mentions() -> None:
    assert not file_mentions(parsed("# gradcheck\n"), ("gradcheck",))
    assert file_mentions(parsed("from torch.autograd import gradcheck\n"), ("gradcheck",))


def test_a_loop_binds_its_targets() -> None:
    source = parsed("for i, (a, *b) in items: c = 1\n[d for e in f for g in e]\nwhile h: i = 2\n")
    loops = source.nodes(ast.For, ast.ListComp, ast.While)
    assert [target_names(source, loop) for loop in loops] == [{"i", "a", "b"}, {"e", "g"}, set()]


def test_the_neighbours_of_a_node_are_the_statements_of_its_block() -> None:
    source = parsed("if x:\n    a = 1\n    b = f()\n    c = 2\nd = 3\n")
    before, after = neighbours(source, only(source, ast.Call))
    assert [statement.lineno for statement in (*before, *after)] == [3, 5]


def test_each_step_up_tells_from_which_child() -> None:
    source = parsed("if x:\n    f()\n")
    pairs = [(type(above), type(child)) for above, child in climb(source, only(source, ast.Call))]
    assert pairs == [(ast.Expr, ast.Call), (ast.If, ast.Expr), (ast.Module, ast.If)]


@pytest.mark.parametrize(("iterated", "batches"), [("loader", True), ("enumerate(loader)", True), ("range(9)", False)])
def test_a_loop_over_a_loader_goes_through_batches(iterated: str, batches: bool) -> None:
    source = parsed(f"for x in {iterated}: pass\n")
    assert over_batches(source, only(source, ast.For)) is batches


def test_the_training_loop_is_the_innermost_that_calls_backward() -> None:
    source = parsed("for epoch in e:\n    for x in xs:\n        loss(x).backward()\n    for y in ys:\n        f(y)\n")
    f, x = (next(call for call in source.nodes(ast.Call) if ast.unparse(call.func) == name) for name in ("f", "loss"))
    for node, line in ((x, 3), (f, 2)):
        loop, calls = training_loop(source, node) or (None, [])
        assert loop is not None
        assert (loop.lineno, len(calls)) == (line, 1)


def test_gradients_are_switched_by_method_and_by_attribute() -> None:
    source = parsed("model.requires_grad_(False)\np.requires_grad = flag\nprint(p.requires_grad)\n")
    shown = [(ast.unparse(owner), value and ast.unparse(value)) for owner, value in gradient_switches(source)]
    assert shown == [("model", "False"), ("p", "flag")]


def test_fixes_append_respell_and_replace_arguments() -> None:
    source = parsed("x.requird.zero_grad(a, b)\n")
    call = only(source, ast.Call)
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    assert isinstance(call.func.value, ast.Attribute)
    edits = (respell(source, call.func.value, "required"), replace_arguments(source, call, "()"))
    repair = fix("Repair", *edits, append(source, call, ".y"))
    assert repair is not None
    assert repair.safe
    assert apply_fixes(source.text, [repair])[0] == "import torch\nx.required.zero_grad().y\n"
    assert fix("Repair", *edits, None) is None
