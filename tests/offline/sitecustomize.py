"""Forbids a process to reach another machine. Python imports it in every process that a test starts, too.

A test that asks for the network shows a default of togi's that nobody wants. What is tried is written down, since
libraries swallow errors of a network: the fixture in ``tests/conftest.py`` fails the test that did it. Sockets within
this machine work as ever.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

TRIED = "TOGI_TESTS_TRIED"
"""The variable that names the file of what was tried."""
_NUMERIC = frozenset("0123456789abcdefABCDEF.:%")


class _WhenImported:
    """Guards ``socket`` once something imports it: few children do, and they should start no later than without."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "socket":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec: Any = next(filter(None, specs))
        execute = spec.loader.exec_module

        def execute_and_guard(module: Any) -> None:
            execute(module)
            guard(module)

        spec.loader.exec_module = execute_and_guard
        return spec


def guard(module: Any) -> None:
    """Replace what reaches other machines in the module ``socket``."""
    if getattr(module, "guarded_by_tests", False) or not hasattr(module, "getaddrinfo"):
        return
    module.guarded_by_tests = True
    for name in ("connect", "connect_ex", "sendto"):
        setattr(module.socket, name, _guarded_method(module, getattr(module.socket, name), name))
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
        setattr(module, name, _guarded_lookup(module, getattr(module, name)))


def _guarded_method(module: Any, method: Any, name: str) -> Any:
    def guarded(self: Any, *arguments: Any) -> Any:
        address = arguments[-1]
        if self.family in (module.AF_INET, module.AF_INET6) and not _is_here(module, self.family, address[0]):
            if name == "sendto" or not self.type & module.SOCK_DGRAM:  # else it sends nothing, and asks for the way
                _note(f"{name} {address}")
            raise OSError(errno.ENETUNREACH, f"tests reach no other machine, and this is {address}")
        return method(self, *arguments)

    return guarded


def _guarded_lookup(module: Any, function: Any) -> Any:
    def guarded(host: Any, *rest: Any, **options: Any) -> Any:
        if _asks_somebody(module, host):
            _note(f"look up {host}")
            raise module.gaierror(module.EAI_NONAME, f"tests ask no name server, and this is {host}")
        return function(host, *rest, **options)

    return guarded


def _asks_somebody(module: Any, host: Any) -> bool:
    text = host.decode() if isinstance(host, bytes) else host
    return not (text in (None, "", "localhost", module.gethostname()) or _NUMERIC.issuperset(text))


def _is_here(module: Any, family: int, host: str) -> bool:
    """Whether the address is one of this machine's: no other can be bound."""
    if _asks_somebody(module, host):
        return False
    try:
        with module.socket(family, module.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _note(tried: str) -> None:
    if path := os.environ.get(TRIED):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{tried} by {' '.join(sys.argv[:3])[:200]}\n")


if "socket" in sys.modules:
    guard(sys.modules["socket"])
else:
    sys.meta_path.insert(0, _WhenImported())  # type: ignore[arg-type]
