"""Runs a script as Python itself does: as ``__main__``, with its own arguments, import path, exit code, traceback."""

from __future__ import annotations

import builtins
import io
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from togi.core.errors import SubjectError, nearest

_OWN_FILES = str(Path(__file__).parents[1]) + os.sep
INTERRUPTED = 130


class HowItEnded(Enum):
    """The end of a script."""

    LAST_LINE = "it came to its end"
    EXIT = "it called sys.exit"
    RAISED = "it raised an exception"
    INTERRUPTED = "it was interrupted"
    LEFT = "it called os._exit"


@dataclass(frozen=True)
class ScriptEnd:
    """How a script ended, and when."""

    code: int
    how: HowItEnded
    seconds: float
    """Since its first line."""


def check_script(script: Path) -> None:
    """Raises SubjectError for something that Python could not run either."""
    if script.is_dir():
        raise SubjectError(f"{script} is a folder: give the Python file that starts the program")
    if not script.is_file():
        near = nearest(script.name, _files_next_to(script))
        more = f". For a function of a file, use 'togi tune {script}'" if ":" in str(script) else ""
        raise SubjectError(f"there is no file {script}{near or ':'} give a Python file, then its own arguments{more}")
    if script.suffix == ".ipynb":
        raise SubjectError(
            f"{script} is a notebook, and this runs Python files. In the notebook, type %load_ext togi and use "
            "togi.optimize on what it holds"
        )


def _files_next_to(script: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(script.parent)
    return []


def run_as_main(script: Path, arguments: Sequence[str], finish: Callable[[ScriptEnd], int]) -> int:
    """Run the script in this process, and call ``finish`` once when it has ended, in whichever way. Returns the exit
    code of the process, which ``finish`` knows; a script that leaves by ``os._exit`` ends with it here.

    A process that the script forked, and that comes back here, does not finish: it ends with the code of its own part.
    """
    owner, began = os.getpid(), time.perf_counter()

    def end(how: HowItEnded, code: int) -> ScriptEnd:
        return ScriptEnd(code, how, time.perf_counter() - began)

    def leave(code: int) -> int:
        if os.getpid() != owner or threading.current_thread() is not threading.main_thread():
            return code
        restore()
        return finish(end(HowItEnded.LEFT, code))

    restore, namespace = _surroundings(), _become_main(script, arguments)
    with _before_os_exit(leave):
        ended = end(*_execute(namespace))
    if os.getpid() == owner:
        with suppress(Exception):  # what the script printed comes first
            sys.stdout.flush()
        restore()
        return finish(ended)
    return ended.code


def _become_main(script: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """The namespace of the new ``__main__``. It stays: what the script defined is pickled by its name, or by value."""
    path = os.path.abspath(script)
    module = types.ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    vars(module).update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None, __annotations__={})
    sys.modules["__main__"] = module
    sys.argv[:] = [str(script), *arguments]
    sys.path[:] = [os.path.dirname(os.path.realpath(path)), *_import_path()]
    return vars(module)


def _import_path() -> list[str]:
    """``sys.path`` as ``python script.py`` has it behind the script's folder: without the folder of the ``togi``
    command, and with all of PYTHONPATH, from which ``python -m togi`` takes the working folder."""
    given = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    named = [os.path.abspath(path) for path in given if path]
    command = os.path.dirname(os.path.abspath(_COMMAND))
    found = [path for path in sys.path if path]
    if found[:1] == [command] and command not in named:
        del found[0]
    return [*named, *(path for path in found if path not in named)]


_COMMAND = sys.argv[0] if sys.argv else ""


def _execute(namespace: dict[str, Any]) -> tuple[HowItEnded, int]:
    how, code = _execute_main(namespace)
    try:
        _wait_for_threads()
    except KeyboardInterrupt as error:
        _show(error)
        return HowItEnded.INTERRUPTED, INTERRUPTED
    return how, code


def _execute_main(namespace: dict[str, Any]) -> tuple[HowItEnded, int]:
    path = namespace["__file__"]
    try:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, namespace)
    except SystemExit as leaving:
        return HowItEnded.EXIT, _code_of(leaving)
    except KeyboardInterrupt as error:
        _show(error)
        return HowItEnded.INTERRUPTED, INTERRUPTED
    except BaseException as error:  # whatever the script raises
        _show(error)
        return HowItEnded.RAISED, 1
    return HowItEnded.LAST_LINE, 0


def _code_of(leaving: SystemExit) -> int:
    """As Python does: a text is printed, and means 1."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


def _wait_for_threads() -> None:
    """Python, too, ends after the threads that are not daemons. Those of executors wait for more work until it ends."""
    pools = sys.modules.get("concurrent.futures.thread")
    workers = set() if pools is None else set(vars(pools).get("_threads_queues", ()))
    for thread in threading.enumerate():
        if thread not in workers and not thread.daemon and thread is not threading.current_thread():
            thread.join()


def _show(error: BaseException) -> None:
    """Its traceback, without the lines of togi."""
    with suppress(Exception):  # what was printed before it comes first
        sys.stdout.flush()
    shown = _of_the_script(error.__traceback__)
    sys.excepthook(type(error), error.with_traceback(shown), shown)


def _of_the_script(trace: types.TracebackType | None) -> types.TracebackType | None:
    kept: list[types.TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
            kept.append(trace)
        trace = trace.tb_next
    shown = None
    for part in reversed(kept):
        shown = types.TracebackType(shown, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return shown


@contextmanager
def _before_os_exit(then: Callable[[int], int]) -> Iterator[None]:
    """``os._exit`` ends a process without a word to anybody; it does ``then`` first, and ends with its code. A process
    that was forked leaves at once, since ``then`` looks at whose it is."""
    original = os._exit

    def leave(status: int) -> Any:
        try:
            status = then(status)
        finally:
            original(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = original


def _opened(stream: Any, descriptor: int) -> Any:
    """The stream, or another of the same file if the script closed it."""
    if stream is None or not stream.closed:
        return stream
    return open(descriptor, "r" if descriptor == 0 else "w", encoding="utf-8", errors="replace", closefd=False)


def _surroundings() -> Callable[[], None]:
    """What puts back folder, streams and Ctrl-C, which the script may change, close or take, for what comes after."""
    folder, streams = os.getcwd(), (sys.stdin, sys.stdout, sys.stderr)
    interrupt = signal.getsignal(signal.SIGINT)
    owner = os.getpid()

    def restore() -> None:
        if os.getpid() != owner:
            return
        sys.stdin, sys.stdout, sys.stderr = (_opened(stream, fd) for fd, stream in enumerate(streams))
        with suppress(OSError):
            os.chdir(folder)
        with suppress(ValueError, TypeError):  # not in the main thread, or not Python's own
            signal.signal(signal.SIGINT, interrupt)

    return restore
