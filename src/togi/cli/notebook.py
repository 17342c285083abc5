"""``%load_ext togi``: ``%togi COMMAND`` is the command line in a notebook, ``%%togi bench`` races the lines of a cell.

IPython calls ``load_ipython_extension`` of the package ``togi``. It is not imported here before a magic fails.
"""

from __future__ import annotations

import argparse
import ast
import functools
import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from togi.core.errors import TogiError
from togi.core.interpreter import python

if TYPE_CHECKING:
    from togi.study.comparison import Comparison

_LONGEST_NAME = 60
_CELL = "<ipython-input-togi>"
"""Code of this name is the user's own (``togi.core.user_code``)."""


def load_ipython_extension(shell: Any) -> None:
    """Register the magics. ``shell``: an ``InteractiveShell``."""
    shell.register_magic_function(functools.partial(_run_line, shell), magic_kind="line", magic_name="togi")
    shell.register_magic_function(functools.partial(_run_cell, shell), magic_kind="cell", magic_name="togi")


def unload_ipython_extension(shell: Any) -> None:
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("togi", None)


def _run_line(shell: Any, line: str) -> None:
    """``%togi doctor``. It fails where the command's exit code is not 0."""
    from togi.cli.app import run

    arguments = _split(line)
    if arguments[:1] == ["run"]:  # a script becomes the main program, which the notebook is here
        shell.system(shlex.join(python("from togi.cli import main; main()", *arguments)))
        code = shell.user_ns.get("_exit_code", 0)
    else:
        code = run(arguments)
    if code:
        _fail(f"togi {line} ended with exit code {code}")


def _run_cell(shell: Any, line: str, cell: str) -> Comparison:
    """``%%togi bench``: the expressions of a cell take turns; the first is what the others are compared with."""
    try:
        options = _cell_options(_split(line))
        racers = list(_racers(shell, cell))
        if len(racers) < 2:
            raise TogiError(
                f"a cell of %%togi bench holds two expressions or more, one on a line, such as model(x) and fast(x), "
                f"and this one holds {len(racers)}. What is not an expression (x = ...) is run once, before the race"
            )
        import togi

        return togi.bench(
            *racers, inputs=(), time_limit_s=options.time_limit, gradients=options.gradients, seed=options.seed
        )
    except TogiError as error:
        _fail(str(error))


class _LineParser(argparse.ArgumentParser):
    """Parses the options of a magic, and raises where the standard one would end the process."""

    def error(self, message: str) -> NoReturn:
        raise TogiError(f"{message}. {self.format_usage().strip()}, and below it one expression on a line")


def _cell_options(arguments: list[str]) -> argparse.Namespace:
    if arguments[:1] != ["bench"]:
        given = f"%%togi {arguments[0]}" if arguments else "%%togi"
        raise TogiError(
            f"{given} is not a magic for a cell: write %%togi bench above the lines to compare, or %togi "
            "and a command on one line"
        )
    parser = _LineParser(
        prog="%%togi bench", usage="%(prog)s [--time-limit TIME] [--gradients] [--seed N]", add_help=False
    )
    parser.add_argument("--time-limit", default=None)
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments[1:])


def _racers(shell: Any, cell: str) -> Iterator[Callable[[], Any]]:
    """A function for each expression, by its source. All else is run where it stands, in the notebook's names."""
    names = shell.user_ns
    for statement in ast.parse(shell.transform_cell(cell), _CELL).body:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], type_ignores=[]), _CELL, "exec"), names)
            continue
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        made = ast.fix_missing_locations(
            ast.Expression(ast.copy_location(ast.Lambda(nothing, statement.value), statement))
        )
        racer = eval(compile(made, _CELL, "eval"), names)
        source = ast.unparse(statement.value)
        racer.__name__ = source if len(source) <= _LONGEST_NAME else f"{source[: _LONGEST_NAME - 3]}..."
        yield racer


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        _fail(f"{line!r} cannot be read as a command line: {error}")


def _fail(message: str) -> NoReturn:
    """As IPython shows what is used wrongly: one line, without a traceback."""
    from IPython.core.error import UsageError

    raise UsageError(message) from None
