"""What the package gives away: its types for type checkers, its errors, and errors for bad arguments."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import griffe
import pytest

import togi

SEEN = """
import togi
reveal_type(togi.tune)
reveal_type(togi.fit(None, memory="1GiB").fits)
reveal_type(togi.BudgetError("x").exit_code)
"""
"""What a type checker is asked of the wheel (``test_release.py``)."""


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(togi.__file__).parent / "py.typed").is_file()


def test_every_public_name_is_there() -> None:
    for name in togi.__all__:
        assert getattr(togi, name) is not None
    assert issubclass(togi.BudgetError, togi.TogiError)
    assert issubclass(togi.HiddenHooksError, togi.TogiError)


def tune(**options: Any) -> Callable[[], Any]:
    return lambda: togi.tune("timm:resnet18", **options)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            tune(only="fold_batchnorm"),
            r"only: .*'fold_batchnorm'; did you mean 'fold_batch_norm'\?",
        ),
        (tune(without=["no_gradd"]), r"without: .*did you mean 'no_grad'\?"),
        (tune(allow="int9", max_error=0.1), "allow: there is no technique 'int9'"),
        (tune(only=[3]), "only=.* holds 3, which is not a name"),
        (tune(effort="insane"), "there is no effort 'insane'.*quick, normal, thorough"),
        (tune(effort="thorouh"), r"did you mean 'thorough'\?"),
        (tune(time_limit_s="5 parsecs"), "time_limit_s='5 parsecs'"),
        (tune(time_limit_s=-1), "time_limit_s=-1"),
        (tune(max_memory="2 GiBs"), "max_memory='2 GiBs' has no known unit"),
        (tune(max_error="200%"), "max_error='200%' is out of range"),
        (tune(allow="int8"), "--max-error"),
        (tune(out="model.pt"), r"give model.pt.togi"),
        (tune(out="/no/such/folder/model.togi"), "the folder /no/such/folder does not exist"),
        (lambda: togi.fit("timm:resnet18", memory="8 parsecs"), "memory='8 parsecs' has no known unit"),
        (lambda: togi.fit("timm:resnet18", memory="8GiB", time_limit_s="soon"), "time_limit_s='soon'"),
        (lambda: togi.predict_memory("timm:resnet18", memory="8 parsecs"), "memory='8 parsecs'"),
        (lambda: togi.memory("timm:resnet18", optimizer="adan", train=True), r"did you mean 'adam'\?"),
        (lambda: togi.bench("one"), "at least two"),
        (lambda: togi.bench("one", batch_sizes=[4]), "at least two"),
        (lambda: togi.bench("one", batch_sizes="4,x"), "batch_sizes='4,x' is not a list"),
        (lambda: togi.bench("one", "two", max_latency="20ms"), "give several batch sizes too"),
        *(
            (lambda call=call, given=given: call(device="toaster", **given), "there is no device 'toaster'")
            for call, given in (
                (lambda **given: togi.tune("timm:resnet18", **given), {}),
                (lambda **given: togi.fit("timm:resnet18", **given), {"memory": "8GiB"}),
                (lambda **given: togi.memory("timm:resnet18", **given), {}),
                (lambda **given: togi.memory(**given), {}),
                (lambda **given: togi.predict_memory("timm:resnet18", **given), {}),
                (lambda **given: togi.bench("timm:resnet18", "timm:resnet34", **given), {}),
            )
        ),
        (tune(device="cuda:x"), "there is no device 'cuda:x'"),
        (tune(seed="many"), "seed='many' is not a whole number"),
        (lambda: togi.memory("timm:resnet18", batch="many"), "batch='many' cannot be used"),
        (lambda: togi.bench("timm:resnet18", "timm:resnet34", seed="many"), "seed='many' cannot be used"),
        (lambda: togi.bench(object(), object()), "a subject is an object"),
    ],
)
def test_bad_arguments_are_refused_at_once_with_what_would_do(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(togi.TogiError, match=said):
        call()


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, togi; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


LISTING = Path(__file__).parent / "public_api.pyi"
ROOT = Path(__file__).parents[1]


def stub() -> str:
    """Every public name, and the classes that docs/api.md says are returned: parameters, types, what is public in
    classes. A stub that griffe reads; ``ops`` and ``graphs`` stand in it as classes."""
    package = griffe.load("togi", search_paths=[ROOT / "src"])
    lines = ["# Written by test_public_api.py."]
    for name in sorted(set(togi.__all__) - {"__version__"}):
        public = getattr(togi, name)
        if inspect.ismodule(public):
            inside = [line for each in sorted(public.__all__) for line in declared(package[name][each])]
            lines += [f"class {name}:", *(f"    {line}" for line in inside)]
        else:
            lines += declared(package[name])
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for path in re.findall(r"^::: togi\.(\S+)$", reference.partition("## What they return")[2], re.MULTILINE):
        lines += declared(package[path], constructed=False)
    return "\n".join(lines) + "\n"


def declared(public: griffe.Object | griffe.Alias, constructed: bool = True) -> list[str]:
    """Lines of a stub. ``constructed``: how it is made is public too."""
    if public.is_module:  # a function that has the name of its module
        return declared(public[public.name])
    if public.is_function:
        return [f"def {public.signature(return_type=True)}: ..."]
    if public.is_attribute:
        value = public.value if "class-attribute" in public.labels else "..."  # others are set in __init__
        return [f"{public.name}: {public.annotation}" if public.annotation else f"{public.name} = {value}"]
    hidden = () if constructed else ("__init__",)
    lines = [
        line
        for name, member in sorted(public.members.items())
        if name not in hidden and (name == "__init__" or not name.startswith(("_", "model_")))
        for line in declared(member)
    ]
    bases = f"({', '.join(map(str, public.bases))})" if public.bases else ""
    return [f"class {public.name}{bases}:", *(f"    {line}" for line in lines or ["..."])]


def broken(before: str, after: str) -> list[str]:
    """What a program that was written for the one stub may stumble over with the other, by griffe."""
    modules = [griffe.visit("togi", filepath=LISTING, code=code) for code in (before, after)]
    return [
        f"{each.obj.path}: {each.kind.value} ({getattr(each.old_value, 'name', each.old_value)})"
        for each in griffe.find_breaking_changes(*modules)
    ]


def test_the_public_names_and_their_parameters_are_those_that_are_listed() -> None:
    """A change here is one that users notice: list it on purpose, and say it in CHANGELOG.md."""
    before, after = LISTING.read_text(encoding="utf-8"), stub()
    if before != after:
        new = LISTING.with_suffix(".new")
        new.write_text(after, encoding="utf-8")
        breaks = "; ".join(broken(before, after)) or "nothing that was there"
        pytest.fail(
            f"the public API has changed: compare {new} with {LISTING}, and put it in its place. Breaks: {breaks}"
        )


def unannounced(before: str, after: str, changelog: str) -> list[str]:
    """What breaks and is not named in the changelog's first section."""
    section = changelog.partition("\n## ")[2].partition("\n## ")[0]
    return [each for each in broken(before, after) if f"`{each.partition(':')[0]}`" not in section]


def test_what_breaks_is_found_unless_the_changelog_says_so() -> None:
    stored = LISTING.read_text(encoding="utf-8")
    assert broken(stored, stored) == []
    added = stored.replace("def load(path: str | Path, *,", "def load(path: str | Path, *, more: int = 3,")
    assert added != stored
    assert broken(stored, added) == []
    (gone,) = broken(added, stored)
    assert gone == "togi.load: Parameter was removed (more)"
    assert unannounced(added, stored, "# Changelog\n\n## 2\n\n- `togi.tune`\n\n## 1\n\n- `togi.load`\n") == [gone]
    assert unannounced(added, stored, "# Changelog\n\n## 2\n\n- `togi.load` has no more `more`.\n") == []


def test_what_breaks_since_the_last_release_is_in_the_changelog() -> None:
    tag = git("describe", "--tags", "--abbrev=0", "--match=v*")
    before = tag and git("show", f"{tag}:tests/{LISTING.name}")
    if not before:
        pytest.skip("nothing was released yet, or these sources are no clone with tags")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert unannounced(before, LISTING.read_text(encoding="utf-8"), changelog) == []


def git(*command: str) -> str:
    """Its standard output; empty where it fails."""
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
