"""The evidence of a finding in words: what the value is, and why the place is hot."""

from __future__ import annotations

from togi.lint.source.value import Hot, Value


def grounds(value: Value, hot: Hot | None) -> str:
    """ "x is a parameter of forward; it runs in every call of Net.forward"."""
    return "; ".join(filter(None, (value.why, hot.reason if hot is not None else "")))
