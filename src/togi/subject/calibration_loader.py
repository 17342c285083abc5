"""Calibration data from a ``DataLoader``: a few of its samples from all places, in place of its first batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, from all places: data are often sorted by class."""
    count = min(most, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def has_known_places(given: Any) -> bool:
    """A ``DataLoader`` whose samples can be asked for by index, in any order, and that iterates as torch's own does."""
    from torch.utils.data import DataLoader, IterableDataset

    return (
        isinstance(given, DataLoader)
        and not isinstance(given.dataset, IterableDataset)
        and type(given).__iter__ is DataLoader.__iter__
        and isinstance(given.batch_sampler if _has_own_batches(given) else given.sampler, Sized)
    )


def _has_own_batches(loader: DataLoader[Any]) -> bool:
    """Its batches are made by a sampler of the user's own."""
    return loader.batch_sampler is not None and loader.batch_size is None


def spread_loader(
    loader: DataLoader[Any], most: int, rows: int | None, is_row: Callable[[Any], bool]
) -> tuple[DataLoader[Any], int | None]:
    """A loader of about ``most`` times so many ``rows`` (None: as a batch has), and if its items may hold more, how
    many it has. The sampler says which samples there are: it may leave some out on purpose.

    ``is_row``: whether an item is a single row. Of a loader that makes no batches that is as its data set pleases.
    """
    from torch.utils.data import DataLoader

    kept: dict[str, Any] = {
        "collate_fn": loader.collate_fn,
        "num_workers": loader.num_workers,
        "worker_init_fn": loader.worker_init_fn,
    }
    if loader.batch_sampler is not None and _has_own_batches(loader):
        batches = spread(list(loader.batch_sampler), most)
        return DataLoader(loader.dataset, batch_sampler=batches, **kept), len(batches)
    places = list(loader.sampler)
    if loader.batch_size is None and places:
        chosen = spread(places, most)
        first = next(iter(DataLoader(loader.dataset, batch_size=None, sampler=chosen[:1], **kept)))
        if not is_row(first):
            return DataLoader(loader.dataset, batch_size=None, sampler=chosen, **kept), len(chosen)
    chosen = spread(places, most * (rows or loader.batch_size or 1))
    return DataLoader(loader.dataset, batch_size=loader.batch_size, sampler=chosen, **kept), None
