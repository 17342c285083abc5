"""A reader of pickles that can only make plain values: containers, numbers, strings, bytes, None, True, False.

``pickle.load`` runs whatever a file asks for, and keeps everything that it ever made. This reader has no opcode that
imports, calls or builds an object (all of those are refused by name), reads the file in lifetimes, and gives every
finished dict to ``shapes``, which may put something smaller in its place.

Source of the format: ``pickletools`` of the standard library, protocols 2 to 5.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from togi.footprint.snapshot.file import AHEAD_BYTES, SnapshotError, Window, truncated
from togi.footprint.snapshot.refusal import damaged, refused, second_time, too_much
from togi.footprint.snapshot.values import HANDED_OVER, Frame, Items, Mapping

_STOPPED: Final = 2**62
_PLAIN_LIMIT: Final = 5_000_000
_STACK_LIMIT: Final = 50_000_000
_MEMO_LIMIT: Final = 400_000_000
_BATCH: Final = 1000
"""Python's pickler appends to a list in batches of so many."""
_KNOWN_RUNS: Final = 20_000

_REFERENCES = re.compile(rb"\](?:\x94|q(.)|r(.{4}))\(((?:h.|j.{4})+)e", re.DOTALL)
"""A list that holds nothing but references: how the frames of a traceback are written."""
_REFERENCE = re.compile(rb"h(.)|j(.{4})", re.DOTALL)

Handler = Callable[[bytes, int], int]


class Shapes(Protocol):
    """What knows the forms of a snapshot."""

    def finished(self, mapping: Mapping, holder: Items | None) -> Any:
        """What to keep of a dict that is complete; ``holder`` is the list that it is going to be an item of."""

    def line_of(self, frames: list[Frame]) -> str:
        """What to keep of a traceback."""


class _MoreNeeded(Exception):
    def __init__(self, position: int, count: int) -> None:
        self.position = position
        self.count = count


class Machine:
    """The pickle's stack, its marks and its memo."""

    def __init__(self, window: Window, shapes: Shapes) -> None:
        self._window = window
        self._shapes = shapes
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: list[Any] = []
        self._strings: dict[str, str] = {}
        self._tuples: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._runs: dict[bytes, str] = {}
        self._plain = 0
        self._handlers = self._table()

    def run(self) -> Any:
        """The value of the pickle. Raises SnapshotError."""
        window, handlers, position = self._window, self._handlers, 0
        while position < _STOPPED:
            data = window.data
            safe = len(data) if window.ended else len(data) - AHEAD_BYTES
            try:
                while position < safe:
                    position = handlers[data[position]](data, position + 1)
            except _MoreNeeded as more:
                window.forward(more.position, more.count)
                position = 0
                continue
            except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error) as error:
                raise damaged(window, position, error) from error
            if position < _STOPPED:
                if window.ended:
                    raise truncated(window.total_bytes)
                self._keep_within_limits()
                window.forward(position)
                position = 0
        return self._stack.pop()

    def _keep_within_limits(self) -> None:
        if len(self._stack) > _STACK_LIMIT or len(self._memo) > _MEMO_LIMIT or len(self._below) > _PLAIN_LIMIT:
            raise too_much(_PLAIN_LIMIT)

    def _refuse(self, data: bytes, position: int) -> int:
        raise refused(self._window, position - 1)

    def _table(self) -> list[Handler]:
        table: list[Handler] = [self._refuse] * 256
        for opcode, handler in self._opcodes().items():
            table[opcode[0]] = handler
        return table

    def _opcodes(self) -> dict[bytes, Handler]:
        constants = {pickle.NONE: None, pickle.NEWTRUE: True, pickle.NEWFALSE: False, pickle.EMPTY_TUPLE: ()}
        return {
            pickle.PROTO: self._protocol,
            pickle.FRAME: self._frame,
            pickle.STOP: self._stop,
            pickle.MARK: self._mark,
            pickle.EMPTY_DICT: self._dict,
            pickle.EMPTY_LIST: self._list,
            pickle.TUPLE: self._tuple,
            pickle.TUPLE1: partial(self._tuple_of, 1),
            pickle.TUPLE2: partial(self._tuple_of, 2),
            pickle.TUPLE3: partial(self._tuple_of, 3),
            pickle.APPEND: self._append,
            pickle.APPENDS: self._appends,
            pickle.SETITEM: self._set_item,
            pickle.SETITEMS: self._set_items,
            pickle.BININT: self._int4,
            pickle.BININT1: self._int1,
            pickle.BININT2: self._int2,
            pickle.LONG1: self._long1,
            pickle.BINFLOAT: self._float,
            pickle.SHORT_BINUNICODE: partial(self._text, 1),
            pickle.BINUNICODE: partial(self._text, 4),
            pickle.BINUNICODE8: partial(self._text, 8),
            pickle.SHORT_BINBYTES: partial(self._bytes, 1),
            pickle.BINBYTES: partial(self._bytes, 4),
            pickle.BINBYTES8: partial(self._bytes, 8),
            pickle.MEMOIZE: self._memoise,
            pickle.BINPUT: partial(self._put, 1),
            pickle.LONG_BINPUT: partial(self._put, 4),
            pickle.BINGET: self._get1,
            pickle.LONG_BINGET: self._get4,
            **{opcode: partial(self._constant, value) for opcode, value in constants.items()},
        }

    # Numbers, strings, constants ------------------------------------------------------------------------------------

    def _protocol(self, data: bytes, position: int) -> int:
        if data[position] > pickle.HIGHEST_PROTOCOL:
            raise SnapshotError(
                f"the file says pickle protocol {data[position]}; up to {pickle.HIGHEST_PROTOCOL} is known here: it is "
                "no CUDA memory snapshot, or a newer Python wrote it"
            )
        return position + 1

    def _frame(self, data: bytes, position: int) -> int:
        return position + 8

    def _stop(self, data: bytes, position: int) -> int:
        if len(self._stack) != 1 or self._below:
            raise ValueError("a pickle is one value")
        return _STOPPED

    def _constant(self, value: object, data: bytes, position: int) -> int:
        self._stack.append(value)
        return position

    def _int1(self, data: bytes, position: int) -> int:
        self._stack.append(data[position])
        return position + 1

    def _int2(self, data: bytes, position: int) -> int:
        self._stack.append(data[position] | data[position + 1] << 8)
        return position + 2

    def _int4(self, data: bytes, position: int) -> int:
        self._stack.append(int.from_bytes(data[position : position + 4], "little", signed=True))
        return position + 4

    def _long1(self, data: bytes, position: int) -> int:
        end = position + 1 + data[position]
        self._stack.append(int.from_bytes(data[position + 1 : end], "little", signed=True))
        return end

    def _float(self, data: bytes, position: int) -> int:
        self._stack.append(struct.unpack_from(">d", data, position)[0])
        return position + 8

    def _text(self, width: int, data: bytes, position: int) -> int:
        begin, end = self._extent(data, position, width)
        text = str(data[begin:end], "utf-8", "surrogatepass")
        self._stack.append(self._strings.setdefault(text, text))
        return end

    def _bytes(self, width: int, data: bytes, position: int) -> int:
        begin, end = self._extent(data, position, width)
        self._stack.append(data[begin:end])
        return end

    def _extent(self, data: bytes, position: int, width: int) -> tuple[int, int]:
        begin = position + width
        end = begin + int.from_bytes(data[position:begin], "little")
        if end > len(data):
            raise _MoreNeeded(position - 1, end - position + 1)
        return begin, end

    # Memo -----------------------------------------------------------------------------------------------------------

    def _memoise(self, data: bytes, position: int) -> int:
        value = self._stack[-1]
        if type(value) is Mapping or type(value) is Items:
            value.slot = len(self._memo)
        self._memo.append(value)
        return position

    def _put(self, width: int, data: bytes, position: int) -> int:
        slot = int.from_bytes(data[position : position + width], "little")
        if slot != len(self._memo):
            raise ValueError("picklers fill the memo in order, each slot once")
        return self._memoise(data, position + width)

    def _get1(self, data: bytes, position: int) -> int:
        value = self._memo[data[position]]
        if value is HANDED_OVER:
            raise second_time(self._window.begins + position)
        self._stack.append(value)
        return position + 1

    def _get4(self, data: bytes, position: int) -> int:
        value = self._memo[int.from_bytes(data[position : position + 4], "little")]
        if value is HANDED_OVER:
            raise second_time(self._window.begins + position)
        self._stack.append(value)
        return position + 4

    # Containers -----------------------------------------------------------------------------------------------------

    def _mark(self, data: bytes, position: int) -> int:
        self._below.append(self._stack)
        self._stack = []
        return position

    def _since_mark(self) -> list[Any]:
        items = self._stack
        self._stack = self._below.pop()
        return items

    def _dict(self, data: bytes, position: int) -> int:
        self._count_plain()
        self._stack.append(Mapping())
        return position

    def _list(self, data: bytes, position: int) -> int:
        if (references := _REFERENCES.match(data, position - 1)) and (line := self._line(references)) is not None:
            self._memo.append(line)
            self._stack.append(line)
            return references.end()
        self._count_plain()
        self._stack.append(Items())
        return position

    def _line(self, references: re.Match[bytes]) -> str | None:
        """The line of a traceback that repeats known frames; None when it is another list."""
        short, long, run = references.groups()
        if (slot := short or long) is not None and int.from_bytes(slot, "little") != len(self._memo):
            return None
        line = self._runs.get(run)
        return line if line is not None else self._line_of_run(run)

    def _line_of_run(self, run: bytes) -> str | None:
        slots = [int.from_bytes(one or four, "little") for one, four in _REFERENCE.findall(run)]
        if len(slots) >= _BATCH or max(slots) >= len(self._memo):
            return None
        frames = [self._memo[slot] for slot in slots]
        if not all(type(frame) is Frame for frame in frames):
            return None
        if len(self._runs) >= _KNOWN_RUNS:
            self._runs.clear()
        self._runs[run] = line = self._shapes.line_of(frames)
        return line

    def _tuple(self, data: bytes, position: int) -> int:
        items = tuple(self._since_mark())
        self._stack.append(items)
        return position

    def _tuple_of(self, count: int, data: bytes, position: int) -> int:
        items = tuple(self._stack[-count:])
        if len(items) < count:
            raise IndexError("tuple")
        if all(type(item) is int for item in items):  # a pool's id: one object for all entries
            items = self._tuples.setdefault(items, items)
        self._stack[-count:] = [items]
        return position

    def _append(self, data: bytes, position: int) -> int:
        item = self._stack.pop()
        self._extend([item])
        return position

    def _appends(self, data: bytes, position: int) -> int:
        self._extend(self._since_mark())
        return position

    def _extend(self, items: list[Any]) -> None:
        holder = self._stack[-1]
        if type(holder) is not Items:
            raise TypeError("items for what is no list")
        holder.extend(item for item in items if item is not HANDED_OVER)

    def _set_item(self, data: bytes, position: int) -> int:
        pair = self._stack[-2:]
        del self._stack[-2:]
        self._set(pair)
        return position

    def _set_items(self, data: bytes, position: int) -> int:
        self._set(self._since_mark())
        return position

    def _set(self, pairs: list[Any]) -> None:
        stack = self._stack
        mapping = stack[-1]
        if type(mapping) is not Mapping or len(pairs) % 2:
            raise TypeError("items for what is no dict")
        mapping.update(zip(pairs[::2], pairs[1::2], strict=True))
        if "frames" in mapping and type(frames := mapping["frames"]) is Items:
            mapping["frames"] = self._replace(frames, self._shapes.line_of(frames))
        kept = self._shapes.finished(mapping, self._holder())
        if kept is not mapping:
            stack[-1] = self._replace(mapping, kept)

    def _holder(self) -> Items | None:
        """The list that the dict on top of the stack is going to be appended to, if it is one: right beneath it, or
        beneath the mark (an item beside it is never a list there, for no list of a snapshot mixes the two)."""
        if len(self._stack) > 1:
            beneath = self._stack[-2]
            if type(beneath) is Items:
                return beneath
        beneath = self._below[-1][-1] if self._below and self._below[-1] else None
        return beneath if type(beneath) is Items else None

    def _replace(self, value: Items | Mapping, kept: Any) -> Any:
        self._plain -= 1
        if value.slot >= 0:
            self._memo[value.slot] = kept
        return kept

    def _count_plain(self) -> None:
        self._plain += 1
        if self._plain > _PLAIN_LIMIT:
            raise too_much(_PLAIN_LIMIT)
