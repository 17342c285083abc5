"""How findings name several layers."""

from __future__ import annotations

from collections.abc import Iterable


def layers(names: Iterable[str], most: int = 3) -> str:
    """``features.0, features.3 and 11 others``; each name once, in the order given."""
    unique = list(dict.fromkeys(name or "(the module itself)" for name in names))
    rest = len(unique) - most
    if rest > 0:
        return f"{', '.join(unique[:most])} and {rest} other{'s' * (rest > 1)}"
    return " and ".join([", ".join(unique[:-1]), unique[-1]]) if len(unique) > 1 else "".join(unique)
