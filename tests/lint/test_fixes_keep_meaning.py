"""A fix that is applied without being asked computes the same: what it would change otherwise, it leaves alone."""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from togi.lint.finding import Finding, Fix
from togi.lint.fix import apply_fixes
from togi.lint.rule import SourceRule, all_rules
from togi.lint.source.model import Source


def findings(rule: str, text: str, path: str = "x.py") -> list[Finding]:
    chosen = all_rules()[rule]
    assert isinstance(chosen, SourceRule)
    return list(chosen.check(Source.parse(textwrap.dedent(text), path)))


def safe_fixes(rule: str, text: str, path: str = "x.py") -> list[Fix]:
    return [finding.fix for finding in findings(rule, text, path) if finding.fix is not None and finding.fix.safe]


def fixed(rule: str, text: str) -> str:
    text = textwrap.dedent(text)
    return apply_fixes(text, safe_fixes(rule, text))[0]


UNFIXED = [
    # what is imported from here by others changes under them
    ("deprecated-amp", "from torch.cuda.amp import autocast\n__all__ = ['autocast']\nwith autocast():\n    pass\n"),
    # objects of the new class are none of the old one
    (
        "deprecated-amp",
        "import torch\ns = torch.cuda.amp.GradScaler()\nif isinstance(s, torch.cuda.amp.GradScaler):\n    pass\n",
    ),
    (
        "deprecated-amp",
        "import torch\nclass Mine(torch.cuda.amp.GradScaler):\n    pass\ns = torch.cuda.amp.GradScaler()\n",
    ),
    # mock.patch and its like name it in a string
    ("deprecated-amp", "import torch\npatch('torch.cuda.amp.autocast')\nwith torch.cuda.amp.autocast():\n    pass\n"),
    # quotes inside of an f-string
    ("deprecated-amp", 'import torch\nx = f"{torch.cuda.amp.GradScaler()}"\n'),
    # a comment between the parts of the name
    ("deprecated-amp", "import torch\ns = (torch.cuda  # here\n     .amp.GradScaler)()\n"),
    # arguments that nobody sees
    ("deprecated-amp", "import torch\ns = torch.cuda.amp.GradScaler(*args)\n"),
    # another name of the same spelling, elsewhere in the file
    ("deprecated-function", "from torch.nn.init import normal\nnormal(w)\ndef f(normal):\n    normal(w)\n"),
    ("deprecated-function", "from torch.nn.init import normal\nnormal(w)\ndef f(normal_):\n    normal(w)\n"),
    # parameters of other names
    (
        "deprecated-function",
        "import torch\ntorch.nn.utils.stateless.functional_call(m, parameters_and_buffers=p, args=x)\n",
    ),
    ("deprecated-function", "import torch\ntorch.library.impl_abstract(qualname='a::b')\n"),
    # other defaults
    ("deprecated-function", "import torch\ntorch._vmap_internals.vmap(f)(x)\n"),
    # objects that a collation of one's own makes need not take the argument
    (
        "blocking-transfer",
        "from torch.utils.data import DataLoader\nfor x in DataLoader(d, collate_fn=c):\n    x = x.cuda()\n",
    ),
    ("blocking-transfer", "def f(loader):\n    for x in loader:\n        x = x.cuda()\n"),
    # written by the CPU while the copy still reads it
    (
        "blocking-transfer",
        "from torch.utils.data import DataLoader\nfor x in DataLoader(d):\n    y = x.cuda()\n    x.zero_()\n",
    ),
    (
        "blocking-transfer",
        "from torch.utils.data import DataLoader\nfor x in DataLoader(d):\n    y = x.cuda()\n    x[0] = 1\n",
    ),
    # of another loader than the one whose batches are moved
    (
        "dataloader-without-pinning",
        "from torch.utils.data import DataLoader\na = DataLoader(d)\nfor x in loader:\n    x.cuda()\n",
    ),
]


@pytest.mark.parametrize(("rule", "text"), UNFIXED)
def test_what_would_change_meaning_is_not_fixed_unasked(rule: str, text: str) -> None:
    assert safe_fixes(rule, text) == []


def test_names_of_a_package_stay() -> None:
    text = "from torch.cuda.amp import autocast\nwith autocast():\n    pass\n"
    assert safe_fixes("deprecated-amp", text, "package/module.py")
    assert not safe_fixes("deprecated-amp", text, "package/__init__.py")


def test_a_file_that_gives_a_name_back_to_newer_versions_is_no_use_of_it() -> None:
    assert not findings("deprecated-function", "import torch\ntorch.ger = torch.outer\n")


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        (
            "deprecated-amp",
            "from torch.cuda.amp import autocast as cast\nwith cast(\n    True,  # on\n    torch.float16,\n):\n"
            "    pass\n",
            'from torch.amp import autocast as cast\nwith cast("cuda", enabled=\n    True,  # on\n'
            "    dtype=torch.float16,\n):\n    pass\n",
        ),
        (
            "deprecated-amp",
            '"""A module."""\n\ndef f():\n    import torch\n    with torch.cuda.amp.autocast():\n        pass\n',
            '"""A module."""\n\ndef f():\n    import torch\n    with torch.amp.autocast("cuda"):\n        pass\n',
        ),
        (
            "blocking-transfer",
            "from torch.utils.data import DataLoader\nfor x in DataLoader(d):\n    x = x.to(('cuda'),)\n",
            "from torch.utils.data import DataLoader\nfor x in DataLoader(d):\n"
            "    x = x.to(('cuda'), non_blocking=True)\n",
        ),
    ],
)
def test_form_and_comments_stay(rule: str, before: str, after: str) -> None:
    assert fixed(rule, before).replace(",)", ")") == after


AUTOCAST = ("enabled", "dtype", "cache_enabled")
VALUES = {
    "enabled": ("True", "False"),
    "dtype": ("torch.float16", "torch.bfloat16"),
    "cache_enabled": ("True", "False"),
}


@st.composite
def calls_of_autocast(draw: st.DrawFn) -> str:
    """A call with some arguments by position and others by name, on one line or several, with and without a comma."""
    arguments = [name for name in AUTOCAST if draw(st.booleans())]
    positional = [name for at, name in enumerate(AUTOCAST) if arguments[: at + 1] == list(AUTOCAST[: at + 1])]
    positional = positional[: draw(st.integers(0, len(positional)))]
    written = [draw(st.sampled_from(VALUES[name])) for name in positional]
    written += [f"{name}={draw(st.sampled_from(VALUES[name]))}" for name in arguments if name not in positional]
    separator, end = draw(st.sampled_from([(", ", ""), (",\n    ", ",\n"), (",  # why\n    ", "\n")]))
    spelling = draw(st.sampled_from(["torch.cuda.amp.autocast", "amp.autocast", "cast"]))
    return f"{spelling}({separator.join(written)}{end if written else ''})"


@given(calls_of_autocast())
def test_autocast_means_the_same_however_it_is_called(call: str) -> None:
    text = f"import torch\nfrom torch.cuda import amp\nfrom torch.cuda.amp import autocast as cast\nmade = {call}\n"
    if call.startswith("cast"):
        text = text.replace("from torch.cuda import amp\n", "")
    else:
        text = text.replace("from torch.cuda.amp import autocast as cast\n", "")
    rewritten = apply_fixes(text, safe_fixes("deprecated-amp", text))[0]
    assert "torch.cuda.amp.autocast(" not in rewritten
    assert rewritten != text
    before, after = (_made(source) for source in (text, rewritten))
    assert before == after


def _made(text: str) -> dict[str, object]:
    space: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(ast.parse(text), "x.py", "exec"), space)
    context = space["made"]
    return {name: getattr(context, name) for name in ("device", "fast_dtype", "_enabled", "_cache_enabled")}


def _spelled(name: str) -> Iterator[str]:
    yield f"import torch\n{name}(w)\n"
    parent, _, last = name.rpartition(".")
    yield f"from {parent} import {last}\n{last}(w)\n"
    yield f"from {parent} import {last} as f\nf(w)\n"
    yield f"import {parent} as m\nm.{last}(w)\n"


@pytest.mark.parametrize("name", ["torch.nn.init.normal", "torch.nn.init.orthogonal", "torch.ger"])
def test_a_renamed_function_is_called_with_what_it_was_called_with(name: str) -> None:
    for text in _spelled(name):
        result = fixed("deprecated-function", text)
        assert result.count("(w)") == 1
        ast.parse(result)
        assert not findings("deprecated-function", result)
