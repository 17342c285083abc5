"""A recipe of a training step as a function of plain PyTorch, to paste next to the user's own loop.

The lines are the techniques' own (``Technique.step_lines``). None of them needs the subject, but for the names of
blocks that repeat.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from togi.core.errors import Refused, TogiError
from togi.core.printable import one_line
from togi.core.recipe import Recipe
from togi.core.records import Facts, Record, Study
from togi.study.progress import Progress
from togi.subject.locator import check_locator
from togi.techniques import technique
from togi.techniques.engine.torch_compile import BLOCK_NAMES
from togi.worker.call import ChildCall
from togi.worker.protocol import SubjectRef

_WORD = re.compile(r"[\w.,:/+-]*")
_SCRIPT = '''"""The training step of {subject} with {label}, without togi.

Paste faster() into your script, and call it once, before the first step:

    {call}{then}

Needs torch {torch}. togi proved this recipe for {module}{optimizer}, in the step that was tuned.
"""

{imports}


def faster({arguments}):
    """{does}"""
{lines}
'''


class BlocksAsked(Record):
    """Which blocks of the subject's module repeat?"""


class BlockNames(Record):
    names: tuple[str, ...]
    """Of all of them, in the order of ``named_modules()``."""


_BLOCKS = ChildCall(
    function="togi.study.repro_folder:names_of_blocks",
    request=BlocksAsked,
    answer=BlockNames,
    purpose="looked at for its blocks",
)


def write_step_repro(study: Study, recipe: Recipe, out: Path, progress: Progress) -> Path:
    """Write ``out``, a folder with ``repro.py``. Raises TogiError: a part of the recipe has no such form."""
    if recipe.is_reference:
        raise TogiError(f"'{recipe.label}' is your own step as it is, so there is nothing to repeat")
    try:
        check_options(recipe)
        lines = _lines(recipe, study.facts)
    except Refused as refused:
        raise TogiError(
            f"'{recipe.label}' has no repro script: {refused}. Apply its record instead: "
            "togi.TrainingRecipe.read('NAME.togi').apply(module, optimizer, step=loss), where NAME.togi is what 'togi "
            "tune --out' wrote"
        ) from None
    if BLOCK_NAMES in lines:
        lines = lines.replace(BLOCK_NAMES, repr(_names(study, progress)))
    out.mkdir(parents=True, exist_ok=True)
    (out / "repro.py").write_text(_script(recipe, study, lines), encoding="utf-8")
    return out


def check_options(recipe: Recipe) -> None:
    """Options become a part of a script. Raises Refused for one that is more than a word."""
    for choice in recipe.choices:
        for name, value in choice.options.items():
            if not _WORD.fullmatch(f"{name}{value}"):
                raise Refused(f"the option {name}={value!r} of {choice.technique} is none of togi's")


def quoted(text: str) -> str:
    """Fit to stand in a script's docstring, which it cannot end."""
    return one_line(text).replace("\\", "/").replace('"', "'")


def _names(study: Study, progress: Progress) -> tuple[str, ...]:
    check_locator(study.subject)
    ref = SubjectRef.here("locator", study.subject)
    return _BLOCKS(ref, BlocksAsked(), device=study.facts.device, on_phase=progress.message).names


def _lines(recipe: Recipe, facts: Facts) -> str:
    """Those of all choices, in the order in which they are applied. Raises Refused where one has none."""
    found = []
    for choice in recipe.choices:
        lines = technique(choice.technique).step_lines(dict(choice.options), recipe, facts)
        if lines is None:
            raise Refused(f"{choice.label} is more than a few lines of PyTorch")
        found += [f"# {choice.label}\n{lines}"] * bool(lines)
    return "\n\n".join(found)


def _script(recipe: Recipe, study: Study, lines: str) -> str:
    facts = study.facts
    imports, body = _parted(lines)
    has_loss = not facts.own_loop
    arguments = ", ".join(["module", *["optimizer"] * bool(facts.optimizer), *["loss"] * has_loss])
    return _SCRIPT.format(
        subject=quoted(study.subject),
        label=quoted(recipe.label),
        call=f"loss = faster({arguments})" if has_loss else f"faster({arguments})",
        then="    # train with that one; as before, it takes a module and a batch" if has_loss else "",
        torch=quoted(facts.machine.versions.get("torch", "")),
        module=quoted(facts.module_class),
        optimizer=f" and {quoted(facts.optimizer)}" if facts.optimizer else "",
        imports="\n".join(imports),
        arguments=arguments,
        does="Change all of it in place. Returns the loss." if has_loss else "Change all of it in place.",
        lines=textwrap.indent("\n".join(body) + "\n\nreturn loss" * has_loss, "    "),
    )


def _parted(lines: str) -> tuple[Sequence[str], Sequence[str]]:
    """The imports, and all else."""
    imports = {"import torch", *(line for line in lines.splitlines() if line.startswith("import "))}
    return sorted(imports), [line for line in lines.splitlines() if line not in imports]
