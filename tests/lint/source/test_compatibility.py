"""Code for several versions of torch is left alone, however it chooses; code that does not choose is not."""

from __future__ import annotations

import re
import textwrap

import pytest

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule, all_rules
from togi.lint.source.model import Source

OLD = {
    "deprecated-amp": "torch.cuda.amp.GradScaler(enabled=True)",
    "deprecated-function": "torch.nn.init.xavier_uniform(w)",
    "unsafe-load": "torch.load(path)",
    "checkpoint-without-use-reentrant": "torch.utils.checkpoint.checkpoint(f, x)",
}
NEW = {
    "deprecated-amp": 'torch.amp.GradScaler("cuda", enabled=True)',
    "deprecated-function": "torch.nn.init.xavier_uniform_(w)",
    "unsafe-load": "torch.load(path, weights_only=True)",
    "checkpoint-without-use-reentrant": "torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)",
}
CHOICES = {
    "a flag of this file": """
        from packaging import version
        NEWER = version.parse(torch.__version__) >= version.parse("2.4")
        a = NEW if NEWER else OLD
        """,
    "a flag of another file": """
        from mine.versions import TORCH_2_4
        if not TORCH_2_4:
            a = OLD
        """,
    "any flag, where the other side is new": """
        def make(modern):
            if modern:
                return NEW
            return OLD
        """,
    "a flag of a flag": """
        MAJOR = int(torch.__version__.split(".")[0])
        MODERN = MAJOR >= 2
        OLDER = not MODERN
        if OLDER:
            a = OLD
        """,
    "an attribute": """
        class Trainer:
            def __init__(self):
                self.modern = hasattr(torch.amp, "GradScaler")

            def make(self):
                return NEW if self.modern else OLD

            def older(self):
                if not self.modern:
                    return OLD
        """,
    "a function of this file": """
        def modern():
            return hasattr(torch, "inference_mode")

        if not modern():
            a = OLD
        """,
    "a function that is given a version": """
        from mine import at_least
        if not at_least("2.4"):
            a = OLD
        """,
    "set while a name was tried": """
        try:
            from torch.amp import GradScaler
            HAS = True
        except ImportError:
            HAS = False
        if not HAS:
            a = OLD
        """,
    "an exception": """
        try:
            a = NEW
        except TypeError:
            a = OLD
        """,
    "contextlib.suppress": """
        import contextlib
        with contextlib.suppress(AttributeError):
            a = OLD
        """,
    "the version of Python": """
        import sys
        a = NEW if sys.version_info >= (3, 10) else OLD
        """,
    "match": """
        match torch.__version__:
            case "2.3":
                a = OLD
        """,
    "a function that is called for old versions": """
        def older():
            return OLD

        a = NEW if torch.__version__ > "2.4" else older()
        """,
    "numbers of a version": """
        major, minor = map(int, torch.__version__.split(".")[:2])
        if (major, minor) < (2, 4):
            a = OLD
        b = NEW if major >= 2 else OLD
        """,
    "a flag of a class": """
        class Trainer:
            MODERN = hasattr(torch, "compile")

            def make(self):
                if not self.MODERN:
                    return OLD
        """,
    "a flag of a module, named after versions": """
        import mine.env as env
        if not env.TORCH_GE_24:
            a = OLD
        """,
    "a test that is skipped": """
        import pytest

        @pytest.mark.skipif(torch.__version__ >= "2.4", reason="gone")
        def test_old():
            return OLD
        """,
    "an early return": """
        def make():
            if hasattr(torch.amp, "GradScaler"):
                return NEW
            return OLD
        """,
}
PLAIN = {
    "settings": """
        import config
        def make(config):
            if config.USE_AMP:
                return OLD
        """,
    "a flag of something else": """
        FAST = True
        if FAST:
            a = OLD
        """,
    "both sides old": """
        def make(flag):
            return OLD if flag else [OLD]
        """,
    "a value that came from anywhere": """
        def make(model, x):
            x = model(x, version=3)
            y = x
            if y is not None:
                return OLD
        """,
    "under another exception": """
        try:
            a = OLD
        except ValueError:
            a = None
        """,
}


def findings(rule: str, template: str) -> list[Finding]:
    texts = {"OLD": OLD[rule], "NEW": NEW[rule]}
    code = re.sub(r"\b(OLD|NEW)\b", lambda match: texts[match[0]], textwrap.dedent(template))
    chosen = all_rules()[rule]
    assert isinstance(chosen, SourceRule)
    return list(chosen.check(Source.parse(f"import torch\nimport torch.utils.checkpoint\n{code}", "x.py")))


@pytest.mark.parametrize("rule", OLD)
@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_between_versions_is_left_alone(rule: str, choice: str) -> None:
    assert findings(rule, CHOICES[choice]) == []


@pytest.mark.parametrize("rule", OLD)
@pytest.mark.parametrize("plain", PLAIN)
def test_what_chooses_nothing_is_reported(rule: str, plain: str) -> None:
    assert findings(rule, PLAIN[plain])
