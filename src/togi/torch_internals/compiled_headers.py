"""Where Inductor keeps the C++ headers that it compiles beforehand. Without torch: the names of folders alone.

Behind it: ``torch._inductor.codecache._HEADER_DIR``, which is ``default_cache_dir()`` (torch 2.9 to 2.15): no setting
moves it, not even ``TORCHINDUCTOR_CACHE_DIR``. When it goes, or has another name: nothing is found there, and each run
compiles its headers anew.
"""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path

__all__ = ["compiled_headers_folder"]


def compiled_headers_folder(temporary: Path) -> Path:
    """The folder in a process of this user whose folder for temporary files is ``temporary``."""
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # a number without a name: of a container
        user = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
    return temporary / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)) / "precompiled_headers"
