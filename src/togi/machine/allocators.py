"""Faster memory allocators installed on this machine, as shared libraries that can be preloaded."""

from __future__ import annotations

import ctypes.util
import os
import sys
from pathlib import Path

KNOWN = {
    "tcmalloc": ("tcmalloc_minimal", "tcmalloc"),
    "jemalloc": ("jemalloc",),
    "mimalloc": ("mimalloc",),
}
"""Allocator -> names of its library, the leanest first."""

_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/opt/homebrew/lib",
)


def installed() -> dict[str, str]:
    """Allocator name -> absolute path of its library (or the name under which the linker finds it)."""
    found = {name: _locate(libraries) for name, libraries in KNOWN.items()}
    return {name: path for name, path in found.items() if path}


def _locate(libraries: tuple[str, ...]) -> str | None:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    folders = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *_FOLDERS]
    for library in libraries:
        for folder in folders:
            # Packages without the -dev part install only "libtcmalloc_minimal.so.4".
            matches = [*Path(folder).glob(f"lib{library}.{suffix}"), *Path(folder).glob(f"lib{library}.{suffix}.*")]
            if matches:
                return str(min(matches))
        if known := ctypes.util.find_library(library):
            return known
    return None
