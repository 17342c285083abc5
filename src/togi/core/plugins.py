"""Find plug-ins: one class a file, in the files of a package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping
from typing import TypeVar

from togi.core.errors import TogiError

T = TypeVar("T")


def instances_in(package: str, base: type[T]) -> list[T]:
    """One instance of every concrete subclass of ``base`` that a module directly in ``package`` defines, by file name.

    A module that cannot be imported raises: a plug-in is never dropped in silence.
    """
    plugins: list[T] = []
    folder = importlib.import_module(package)
    for entry in sorted(pkgutil.iter_modules(folder.__path__), key=lambda entry: entry.name):
        module = importlib.import_module(f"{package}.{entry.name}")
        own = (c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__)
        plugins += [c() for c in own if issubclass(c, base) and not inspect.isabstract(c)]
    return plugins


def by_id(plugins: Iterable[T], what: str) -> Mapping[str, T]:
    """Plug-ins by their ``id``, in the order given.

    Raises TogiError where two share one: ids name files, comments, settings and journal entries.
    """
    known: dict[str, T] = {}
    for plugin in plugins:
        id = str(getattr(plugin, "id"))  # noqa: B009 (an attribute of every kind of plug-in, which share no base)
        if id in known:
            raise TogiError(
                f"two {what} share the id {id} ({type(known[id]).__module__} and {type(plugin).__module__}): rename "
                "one, ids name files, settings and journal entries"
            )
        known[id] = plugin
    return known
