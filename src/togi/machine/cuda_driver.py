"""CUDA's driver library, made linkable: AOTInductor links its programs with ``-lcuda``.

A linker wants a file named ``libcuda.so``. The driver always brings ``libcuda.so.1``; the name without a number comes
with the toolkit's stubs or a development package, and a container or a virtual machine often has neither.

Source: torch/_inductor/cpp_builder.py (``libraries += ["cuda", "torch_cuda"]``); https://gcc.gnu.org/onlinedocs/gcc/
Environment-Variables.html (``LIBRARY_PATH``, which clang reads too).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from togi.machine.limits import read_text

_SEARCHED = "LIBRARY_PATH"


@contextmanager
def driver_to_link_with() -> Iterator[None]:
    """Inside, compilers find the driver library that this process has loaded as ``libcuda.so``, after the folders that
    they are given (``-L``). Nothing changes where none is loaded."""
    driver, before = loaded_driver(), os.environ.get(_SEARCHED)
    if driver is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="togi-driver-") as folder:
        (Path(folder) / "libcuda.so").symlink_to(driver)
        os.environ[_SEARCHED] = os.pathsep.join(filter(None, (before, folder)))
        try:
            yield
        finally:
            os.environ.pop(_SEARCHED)
            os.environ.update({} if before is None else {_SEARCHED: before})


def loaded_driver() -> Path | None:
    """The driver library in this process (proc(5), ``/proc/pid/maps``); torch loads it when CUDA starts."""
    places = (line.split(maxsplit=5)[5:] for line in read_text(Path("/proc/self/maps")).splitlines())
    files = (Path(place[0]) for place in places if place)
    return next((file for file in files if file.name.startswith("libcuda.so") and file.is_file()), None)
