"""Several images with different numbers of boxes: a list of tensors in, a list of results out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from torch import Tensor

from togi.ops.arguments import check_lists

P = ParamSpec("P")
R = TypeVar("R")

Boxes = Tensor | Sequence[Tensor]


class PerImage(Protocol[P, R]):
    """A function of two sets of boxes that takes lists of them as well. One of both may be a single tensor for all
    images."""

    @overload
    def __call__(self, first: Tensor, second: Tensor, /, *args: P.args, **options: P.kwargs) -> R: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, first: Boxes, second: Boxes, /, *args: P.args, **options: P.kwargs) -> list[R]: ...


def per_image(first: str, second: str) -> Callable[[Callable[Concatenate[Tensor, Tensor, P], R]], PerImage[P, R]]:
    """Lets a function take a list of tensors for either of its first two arguments, which are named ``first`` and
    ``second``."""

    def decorate(function: Callable[Concatenate[Tensor, Tensor, P], R]) -> PerImage[P, R]:
        @functools.wraps(function)
        def call(a: Boxes, b: Boxes, *args: P.args, **options: P.kwargs) -> R | list[R]:
            images = check_lists((first, second), a, b)
            if images is None:
                return function(cast(Tensor, a), cast(Tensor, b), *args, **options)
            pairs = zip(_one_each(a, images), _one_each(b, images), strict=True)
            return [function(x, y, *args, **options) for x, y in pairs]

        return cast("PerImage[P, R]", call)

    return decorate


def _one_each(boxes: Boxes, images: int) -> Sequence[Tensor]:
    return boxes if isinstance(boxes, (list, tuple)) else [cast(Tensor, boxes)] * images
