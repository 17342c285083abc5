"""Python's parser on source of others: its warnings kept from the terminal, and all its ways to fail as one."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def parser_warnings_hidden() -> Iterator[None]:
    """Invalid escapes and the like are warned of on standard error otherwise, for every file that is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def syntax_error(code: str) -> SyntaxError | None:
    """Why ``code`` (with ``\\n`` line ends) cannot be parsed, or None when it can."""
    try:
        with parser_warnings_hidden():
            ast.parse(code)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxError(f"{type(error).__name__}: {error}")
    return None
