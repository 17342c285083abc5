"""The rule ``threads-of-whole-machine``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.loaders import assigned
from togi.lint.source.model import Source
from togi.lint.source.references import calls_of, reaching
from togi.lint.source.syntax import argument, is_constant
from togi.lint.source.value import excerpt

_COUNTS = frozenset(
    ["os.cpu_count", "multiprocessing.cpu_count", "torch.multiprocessing.cpu_count", "psutil.cpu_count"]
)
_TAKES = {
    "torch.set_num_threads": ("int", 0),
    "torch.set_num_interop_threads": ("int", 0),
    "torch.utils.data.DataLoader": ("num_workers", 5),
    "torch.multiprocessing.Pool": ("processes", 0),
    "torch.multiprocessing.spawn": ("nprocs", 2),
    "concurrent.futures.ThreadPoolExecutor": ("max_workers", 0),
    "concurrent.futures.ProcessPoolExecutor": ("max_workers", 0),
    "concurrent.futures.thread.ThreadPoolExecutor": ("max_workers", 0),
    "concurrent.futures.process.ProcessPoolExecutor": ("max_workers", 0),
    "multiprocessing.Pool": ("processes", 0),
    "multiprocessing.pool.Pool": ("processes", 0),
    "multiprocessing.pool.ThreadPool": ("processes", 0),
    "joblib.Parallel": ("n_jobs", 0),
}
"""Who starts threads or processes, by the parameter that says how many, and its position."""
_ATTRIBUTES = frozenset(["intra_op_num_threads", "inter_op_num_threads"])
"""Of ONNX Runtime's ``SessionOptions``."""
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_PASSING_ON = frozenset(["int", "str", "max", "round"])
_STEPS = 4
"""So many names are followed back to what was assigned to them."""


class ThreadsOfWholeMachine(SourceRule):
    """As many threads or workers as the machine has cores.

    What it reports: a number of threads, workers or processes that is computed from ``os.cpu_count()`` (or that of
    ``multiprocessing`` or ``psutil``): in ``torch.set_num_threads``, ``num_workers`` of a DataLoader, pools of threads
    and processes, the thread counts of ONNX Runtime, and ``OMP_NUM_THREADS`` and its like. Halves and sums of it count,
    and names that it was assigned to.

    Why it costs: ``os.cpu_count()`` counts the cores of the machine. A container, a pod or a batch job may use fewer:
    by a quota of processor time, or by a set of cores. With 64 threads on a quota of two cores, all of them compute for
    a moment, and the kernel stops them until the next period. Threads that wait for each other at the end of each
    operation wait for the slowest.

    When it stays silent: the number is capped (``min(8, os.cpu_count())``), chosen by a condition, or comes from
    ``os.sched_getaffinity``, ``os.process_cpu_count`` or a setting.

    Example::

        torch.set_num_threads(os.cpu_count())
        loader = DataLoader(dataset, num_workers=os.cpu_count())

    Use instead::

        loader = DataLoader(dataset, num_workers=int(os.environ.get("WORKERS", "4")))

    Leave ``torch.set_num_threads`` out: torch counts the cores of its set itself. Neither it nor Python sees a quota of
    time, so set ``OMP_NUM_THREADS`` where the quota is set. ``togi doctor`` shows both.

    Source: https://docs.python.org/3/library/os.html#os.cpu_count
    """

    id = "threads-of-whole-machine"

    def check(self, source: Source) -> Iterable[Finding]:
        if "cpu_count" not in source.text:
            return
        for node, number in (*_given_to_calls(source), *_assigned_to_settings(source)):
            count = _count_in(source, number, _STEPS)
            if count is not None:
                yield source.finding(
                    self.id,
                    node,
                    f"{excerpt(count)} counts the cores of the machine, of which a container may use a few",
                    "take the number from a setting, or leave it out, and set OMP_NUM_THREADS where the quota is set",
                )


def _given_to_calls(source: Source) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Calls that start threads or processes, with the number that they are given."""
    for call, name in calls_of(source, _TAKES):
        parameter, position = _TAKES[name]
        number = argument(call, parameter, position)
        if number is not None:
            yield call, number
    for call, _ in calls_of(source, {"os.environ.setdefault", "os.putenv"}):
        if len(call.args) == 2 and is_constant(call.args[0], *_VARIABLES):
            yield call, call.args[1]


def _assigned_to_settings(source: Source) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Assignments to variables of the environment and to thread counts of a session, with the number."""
    for statement in source.nodes(ast.Assign):
        for target in statement.targets:
            if _is_setting(source, target):
                yield statement, statement.value


def _is_setting(source: Source, target: ast.expr) -> bool:
    if isinstance(target, ast.Subscript) and is_constant(target.slice, *_VARIABLES):
        return source.dotted(target.value) == "os.environ"
    return isinstance(target, ast.Attribute) and target.attr in _ATTRIBUTES


def _count_in(source: Source, node: ast.expr, steps: int) -> ast.Call | None:
    """The call that counts the machine's cores, where the expression grows with it: no cap, no condition."""
    if isinstance(node, ast.BinOp):
        return _count_in(source, node.left, steps) or _count_in(source, node.right, steps)
    if isinstance(node, ast.BoolOp):
        return _count_in(source, node.values[0], steps) if isinstance(node.op, ast.Or) else None
    if isinstance(node, ast.JoinedStr):
        parts = (value.value for value in node.values if isinstance(value, ast.FormattedValue))
        return next(filter(None, (_count_in(source, part, steps) for part in parts)), None)
    if isinstance(node, ast.Call):
        name = source.dotted(node.func)
        if name in _COUNTS:
            return node
        counts = (_count_in(source, given, steps) for given in node.args)
        return next(filter(None, counts), None) if name in _PASSING_ON else None
    return _count_behind(source, node, steps)


def _count_behind(source: Source, node: ast.expr, steps: int) -> ast.Call | None:
    """The same of a name, or an attribute, that was given such a number and nothing else."""
    if steps == 0:
        return None
    if isinstance(node, ast.Name):
        value = reaching(source, node)
        return None if value is None else _count_in(source, value, steps - 1)
    if isinstance(node, ast.Attribute):
        values = assigned(source, node)
        counts = [_count_in(source, value, steps - 1) for value in values]
        return counts[0] if counts and all(counts) else None
    return None
