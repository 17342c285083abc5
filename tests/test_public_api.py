"""What the package gives away: its types for type checkers, its errors, and errors for bad arguments."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import togi

SEEN = """
import togi
reveal_type(togi.tune)
reveal_type(togi.fit(None, memory="1GiB").fits)
reveal_type(togi.BudgetError("x").exit_code)
"""


def test_type_checkers_see_the_types(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(SEEN, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n", encoding="utf-8"
    )  # reading torch takes a minute
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--ignore-missing-imports"]
    done = subprocess.run(
        [*command, f"--cache-dir={tmp_path / 'cache'}", "use.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert "StudyResult" in done.stdout, done.stdout + done.stderr
    assert '"builtins.bool"' in done.stdout or '"bool"' in done.stdout
    assert '"builtins.int"' in done.stdout or '"int"' in done.stdout
    assert 'is "Any"' not in done.stdout


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
        (tune(only=[3]), "only=.* holds 3, which is no name"),
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
        (tune(seed="many"), "seed='many' cannot be used: input should be a valid integer"),
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


LISTING = Path(__file__).parent / "public_api.txt"


def listed() -> str:
    """Every public name with its parameters; of classes and modules also what is public in them."""
    lines = []
    for name in sorted(set(togi.__all__) - {"__version__"}):
        public = getattr(togi, name)
        lines.append(f"togi.{name}{parameters(public)}")
        lines += [f"togi.{name}.{inner}{parameters(getattr(public, inner, None))}" for inner in inside(public)]
    return "\n".join(lines) + "\n"


def inside(public: Any) -> list[str]:
    if inspect.ismodule(public):
        return sorted(public.__all__)
    names = [*vars(public), *getattr(public, "model_fields", ())] if inspect.isclass(public) else []
    return sorted({name for name in names if not name.startswith(("_", "model_"))})


def parameters(public: Any) -> str:
    """``(a, *, b=1)``; nothing of errors and of records, which their libraries construct."""
    record_or_error = inspect.isclass(public) and (issubclass(public, Exception) or hasattr(public, "model_fields"))
    if not callable(public) or record_or_error:
        return ""
    empty = inspect.Parameter.empty
    signature = inspect.signature(public)
    plain = [each.replace(annotation=empty) for each in signature.parameters.values() if each.name != "self"]
    return str(signature.replace(parameters=plain, return_annotation=empty))


def test_the_public_names_and_their_parameters_are_those_that_are_listed() -> None:
    """A change here is one that users notice: list it on purpose, and say it in CHANGELOG.md."""
    if listed() != LISTING.read_text(encoding="utf-8"):
        new = LISTING.with_suffix(".new")
        new.write_text(listed(), encoding="utf-8")
        pytest.fail(f"the public API has changed: compare {new} with {LISTING}, and put it in its place if so be it")
