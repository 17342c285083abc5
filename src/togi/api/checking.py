"""What costs time or memory in source, modules and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.errors import SubjectError
from togi.core.needs_torch import need_torch
from togi.worker.hand_over import handed_over

if TYPE_CHECKING:
    from togi.lint.finding import CheckResult


def check(
    *subjects: Any,
    inputs: Any = None,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    exclude: Sequence[str] = (),
    device: str = "cpu",
    dtype: str | None = None,
    measure: bool = False,
    train: bool = False,
    seed: int = 0,
    cache: bool = True,
) -> CheckResult:
    """Find pitfalls of performance and memory. Without ``subjects``, in the source below the working folder.

    Args:
        subjects: files and folders (source rules), locators such as ``"timm:resnet50"`` or ``"file.py:factory"``
            (module rules; of a file also its source and one watched run), a ``togi.Subject``, or a live ``nn.Module``.
        inputs: with a live module: one sample or a list of samples (tensor, tuple, dict or ``togi.Inputs``).
        select, ignore: rules or kinds of rules; what pyproject.toml selects is replaced, what it ignores is added to.
        exclude: patterns of files and folders to leave out, relative to the working folder.
        device: of a subject: where it runs, or the name of a GPU for which its costs are predicted.
        dtype: of a subject: predict costs as if floating-point tensors were of this dtype.
        measure: of a subject: try the techniques that remove what was found, and say what they bring.

    Returns:
        The findings. It is true when there are any; ``problems`` says what could not be checked.

    Raises:
        TogiError: a path or subject that does not exist, an unknown rule, a pyproject.toml that cannot be used.
    """
    from togi.lint.check_paths import check_paths
    from togi.lint.settings import overrides
    from togi.lint.targets import paths_and_subjects

    selection = overrides(select, ignore, exclude)
    paths, names = paths_and_subjects([str(s) for s in subjects if isinstance(s, str | Path)] if subjects else ["."])
    live = [subject for subject in subjects if not isinstance(subject, str | Path)]
    if inputs is not None and len(live) != 1:
        raise SubjectError(
            f"inputs=... belong to one live module, and {len(live)} were given: give one module, or leave inputs out"
        )
    if not names and not live:
        return check_paths(paths, selection, cache=cache)
    need_torch("checking a subject")
    from togi.lint.check_subject import SubjectOptions, check_reference, check_subjects

    options = SubjectOptions(device=device, dtype=dtype, measure=measure, train=train, seed=seed)
    result = check_subjects(check_paths(paths, selection, cache=cache), names, selection, options, cache=cache)
    for subject in live:
        with handed_over(subject, inputs, {}) as (ref, name):
            result = result.joined(check_reference(ref, name, ("module", "trace"), selection, options))
    return result
