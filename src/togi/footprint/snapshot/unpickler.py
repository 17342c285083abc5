"""Reads pickles of plain values (containers, numbers, strings, bytes, None, True, False), and refuses everything else.

``pickle.load`` runs whatever a file asks for. This reader has no opcode that imports, calls or builds an object (all of
those are refused by name), reads the file in pieces, and offers every finished dict to a consumer, which may put
something smaller in its place.

Why not ``pickle.Unpickler`` with a ``find_class`` that refuses: it runs nothing either, but it builds all values before
any can be looked at, and nothing limits what it allocates. Measured on synthetic CUDA memory snapshots
(benchmarks/memory_snapshot.py, torch 2.15, Python 3.11, processor's time, rise of the resident set):

=========================================  ======================  =====================
file                                       this reader             pickle.Unpickler
=========================================  ======================  =====================
10 MB, 45 frames a traceback               0.8 s, 16 MB            0.1 s, 36 MB
100 MB, 45 frames                          7.4 s, 30 MB            1.8 s, 332 MB
100 MB, 8 frames                           15 s, 49 MB             3.6 s, 584 MB
1 GB, 45 frames                            68 s, 132 MB            18 s, 3,263 MB
9 bytes that put a value at memo 2**29     refused                 8,396 MB, no error
=========================================  ======================  =====================

The standard one is four times as fast and takes three to six times the file's size in memory; snapshots of a GB come
from servers and are read on laptops. Nine bytes of a hostile file make it take 8 GB, or as much as they like. The one
that the standard library has in Python (``pickle._Unpickler``), with a table of the same opcodes and the same consumer,
took 19 s and 195 MB for the 100 MB.

Source of the format: ``pickletools`` of the standard library, protocols 2 to 5.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from togi.footprint.snapshot.window import SnapshotError, Window, damaged, refused, second_time, too_much, truncated

AHEAD_BYTES: Final = 2**16
"""So many bytes are at hand beyond any opcode, except at the end of the file."""
_STOPPED: Final = 2**62
_PLAIN_LIMIT: Final = 5_000_000
_STACK_LIMIT: Final = 50_000_000
_MEMO_LIMIT: Final = 400_000_000
_BATCH: Final = 1000
"""Python's pickler appends to a list in batches of so many."""
_KNOWN_RUNS: Final = 20_000
_KNOWN_TUPLES: Final = 1000
_INTEGER_BYTES: Final = 9
"""Of 64 bits, with a sign. Larger ones can be made to have one hash all, and a dict of them takes for ever."""

_REFERENCES = re.compile(rb"\](?:\x94|q(.)|r(.{4}))\(((?:h.|j.{4})+)e", re.DOTALL)
"""A list that holds nothing but references: how the frames of a traceback are written."""
_REFERENCE = re.compile(rb"h(.)|j(.{4})", re.DOTALL)

Handler = Callable[[bytes, int], int]


class PickledList(list[Any]):
    """A list that knows its place in the pickle's memo; -1 where it has none."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = -1


class PickledDict(dict[Any, Any]):
    """A dict that knows its place in the pickle's memo; -1 where it has none."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = -1


class Consumed:
    """Stands where a dict stood that the consumer took, so that nothing of it is kept."""


CONSUMED: Final = Consumed()


class Consumer(Protocol):
    """Takes what is finished, so that it need not be kept."""

    def finished(self, mapping: PickledDict, holder: PickledList | None) -> Any:
        """Return what to keep of a dict that is complete; ``holder`` is the list that it is going to be an item of."""

    def line_of(self, frames: list[Any]) -> str | None:
        """Return what to keep of a traceback; None where these are not the frames of one."""


class _MoreNeeded(Exception):
    def __init__(self, position: int, count: int) -> None:
        self.position = position
        self.count = count


class SafeUnpickler:
    """The pickle's stack, its marks and its memo."""

    def __init__(self, window: Window, consumer: Consumer) -> None:
        self._window = window
        self._consumer = consumer
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: list[Any] = []
        self._strings: dict[str, str] = {}
        self._tuples: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._runs: dict[bytes, str] = {}
        self._plain = 0
        self._handlers: list[Handler] = [self._refuse] * 256
        for opcode, handler in self._allowed().items():
            self._handlers[opcode[0]] = handler

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
                if len(self._stack) > _STACK_LIMIT or len(self._memo) > _MEMO_LIMIT or len(self._below) > _PLAIN_LIMIT:
                    raise too_much(_PLAIN_LIMIT)
                window.forward(position)
                position = 0
        return self._stack.pop()

    def _allowed(self) -> dict[bytes, Handler]:
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
            pickle.BININT: partial(self._integer, 4, True),
            pickle.BININT1: partial(self._integer, 1, False),
            pickle.BININT2: partial(self._integer, 2, False),
            pickle.LONG1: self._long,
            pickle.BINFLOAT: self._float,
            pickle.SHORT_BINUNICODE: partial(self._text, 1),
            pickle.BINUNICODE: partial(self._text, 4),
            pickle.BINUNICODE8: partial(self._text, 8),
            pickle.SHORT_BINBYTES: partial(self._bytes, 1),
            pickle.BINBYTES: partial(self._bytes, 4),
            pickle.BINBYTES8: partial(self._bytes, 8),
            pickle.MEMOIZE: self._memoize,
            pickle.BINPUT: partial(self._put, 1),
            pickle.LONG_BINPUT: partial(self._put, 4),
            pickle.BINGET: partial(self._get, 1),
            pickle.LONG_BINGET: partial(self._get, 4),
            **{opcode: partial(self._constant, value) for opcode, value in constants.items()},
        }

    def _refuse(self, data: bytes, position: int) -> int:
        raise refused(self._window, position - 1)

    # Numbers, strings, constants ------------------------------------------------------------------------------------

    def _protocol(self, data: bytes, position: int) -> int:
        if data[position] > pickle.HIGHEST_PROTOCOL:
            raise SnapshotError(
                f"the file says pickle protocol {data[position]}; up to {pickle.HIGHEST_PROTOCOL} is known here: it is "
                "not a CUDA memory snapshot, or a newer Python wrote it"
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

    def _integer(self, width: int, signed: bool, data: bytes, position: int) -> int:
        end = position + width
        if end > len(data):
            raise IndexError("integer")
        self._stack.append(int.from_bytes(data[position:end], "little", signed=signed))
        return end

    def _long(self, data: bytes, position: int) -> int:
        end = position + 1 + data[position]
        if data[position] > _INTEGER_BYTES:
            raise ValueError("an integer of more than 64 bits")
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

    def _memoize(self, data: bytes, position: int) -> int:
        value = self._stack[-1]
        if type(value) is PickledDict or type(value) is PickledList:
            value.slot = len(self._memo)
        self._memo.append(value)
        return position

    def _put(self, width: int, data: bytes, position: int) -> int:
        slot = int.from_bytes(data[position : position + width], "little")
        if slot != len(self._memo):
            raise ValueError("picklers fill the memo in order, each slot once")
        return self._memoize(data, position + width)

    def _get(self, width: int, data: bytes, position: int) -> int:
        end = position + width
        value = self._memo[int.from_bytes(data[position:end], "little")]
        if value is CONSUMED:
            raise second_time(self._window.begins + position)
        self._stack.append(value)
        return end

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
        self._stack.append(PickledDict())
        return position

    def _list(self, data: bytes, position: int) -> int:
        if (references := _REFERENCES.match(data, position - 1)) and (line := self._line(references)) is not None:
            self._memo.append(line)
            self._stack.append(line)
            return references.end()
        self._count_plain()
        self._stack.append(PickledList())
        return position

    def _line(self, references: re.Match[bytes]) -> str | None:
        """The line of a traceback that repeats known frames; None when it is another list."""
        short, long, run = references.groups()
        if (slot := short or long) is not None and int.from_bytes(slot, "little") != len(self._memo):
            return None
        line = self._runs.get(run)
        return line if line is not None else self._line_of_run(run)

    def _line_of_run(self, run: bytes) -> str | None:
        slots = [int.from_bytes(short or four, "little") for short, four in _REFERENCE.findall(run)]
        if len(slots) >= _BATCH or max(slots) >= len(self._memo):
            return None
        line = self._consumer.line_of([self._memo[slot] for slot in slots])
        if line is not None:
            if len(self._runs) >= _KNOWN_RUNS:
                self._runs.clear()
            self._runs[run] = line
        return line

    def _tuple(self, data: bytes, position: int) -> int:
        items = tuple(self._since_mark())
        _check_flat(items)
        self._stack.append(items)
        return position

    def _tuple_of(self, count: int, data: bytes, position: int) -> int:
        items = tuple(self._stack[-count:])
        if len(items) < count:
            raise IndexError("tuple")
        _check_flat(items)
        if all(type(item) is int for item in items) and len(self._tuples) < _KNOWN_TUPLES:
            items = self._tuples.setdefault(items, items)  # a pool's id: one object for all entries
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
        if type(holder) is not PickledList:
            raise TypeError("items for what is not a list")
        holder.extend(item for item in items if item is not CONSUMED)

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
        if type(mapping) is not PickledDict or len(pairs) % 2:
            raise TypeError("items for what is not a dict")
        if any(type(key) is not str for key in pairs[::2]):
            raise TypeError("a key that is not a text")
        mapping.update(zip(pairs[::2], pairs[1::2], strict=True))
        if "frames" in mapping and type(frames := mapping["frames"]) is PickledList:
            line = self._consumer.line_of(frames)
            if line is None:
                raise TypeError("a traceback of what is not a frame")
            mapping["frames"] = self._replace(frames, line)
        replacement = self._consumer.finished(mapping, self._holder())
        if replacement is not mapping:
            stack[-1] = self._replace(mapping, replacement)

    def _holder(self) -> PickledList | None:
        """The list that the dict on top of the stack is going to be appended to, if it is one. It is right beneath it,
        or beneath the mark (an item next to it is never a list there, for no list of a snapshot mixes the two)."""
        if len(self._stack) > 1:
            beneath = self._stack[-2]
            if type(beneath) is PickledList:
                return beneath
        beneath = self._below[-1][-1] if self._below and self._below[-1] else None
        return beneath if type(beneath) is PickledList else None

    def _replace(self, value: PickledList | PickledDict, replacement: Any) -> Any:
        self._plain -= 1
        if value.slot >= 0:
            self._memo[value.slot] = replacement
        return replacement

    def _count_plain(self) -> None:
        self._plain += 1
        if self._plain > _PLAIN_LIMIT:
            raise too_much(_PLAIN_LIMIT)


def _check_flat(items: tuple[Any, ...]) -> None:
    """A tuple of a tuple twice, and so on sixty times, is hashed for ever."""
    if any(type(item) is tuple for item in items):
        raise TypeError("a tuple in a tuple")
