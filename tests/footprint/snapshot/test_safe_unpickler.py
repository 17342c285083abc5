"""The reader of pickles: the same as pickle.load on every snapshot, and nothing at all on anything else."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import pickletools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from togi.footprint.snapshot import is_snapshot, snapshot_account, unpickler, window
from togi.footprint.snapshot.account import SnapshotConsumer
from togi.footprint.snapshot.allocator import TracebackFrame, frame_of, users_line
from togi.footprint.snapshot.unpickler import CONSUMED, PickledDict, PickledList, SafeUnpickler
from togi.footprint.snapshot.window import SnapshotError, Window

FILENAMES = st.sampled_from(
    ["/a/train.py", "/p/site-packages/torch/nn/functional.py", "??", "", "<stdin>", "m\u00f6dul.py"]
)
FRAMES = st.builds(
    lambda filename, line, name: {"filename": filename, "line": line, "name": name},
    FILENAMES,
    st.integers(0, 70_000),
    st.sampled_from(["f", "forward", "<lambda>", "\udc80odd"]),
)
SIZES = st.one_of(st.integers(0, 300), st.integers(0, 2**40))
ACTIONS = st.sampled_from(
    ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "oom", "annotate"]
)


@st.composite
def snapshots(draw: st.DrawFn) -> dict[str, Any]:
    frames = draw(st.lists(FRAMES, min_size=1, max_size=6))
    stacks = draw(st.lists(st.lists(st.sampled_from(frames), max_size=5), min_size=1, max_size=5))
    rng = random.Random(draw(st.integers(0, 1000)))

    def entry() -> dict[str, Any]:
        stack = rng.choice(stacks)
        return {
            "action": draw(ACTIONS),
            "addr": draw(st.integers(0, 6)) << 40,
            "size": draw(SIZES),
            "stream": rng.choice([0, 7, 2**33]),
            "time_us": draw(st.integers(0, 2**60)),
            "user_metadata": rng.choice(["", "step 1", "x" * 300]),
            "pool_id": rng.choice([(0, 0), (0, 1)]),
            "frames": stack if rng.random() < 0.5 else list(stack),
            "device_free": rng.choice([None, 5]),
            **(
                {"odd": [True, False, None, 1.5, b"bytes", (), (1, "a", None), {"deep": [[]]}]}
                if rng.random() < 0.2
                else {}
            ),
        }

    def block() -> dict[str, Any]:
        state = rng.choice(["active_allocated", "inactive", "active_pending_free", "active_awaiting_free"])
        return {"size": draw(SIZES), "requested_size": 1, "state": state, "frames": rng.choice(stacks)}

    def segment() -> dict[str, Any]:
        blocks = [block() for _ in range(rng.randint(0, 3))]
        return {
            "device": rng.randint(0, 2),
            "address": draw(st.integers(0, 6)) << 40,
            "total_size": sum(block["size"] for block in blocks),
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "frames": [],
            "blocks": blocks,
        }

    return {
        "segments": [segment() for _ in range(rng.randint(0, 3))],
        "device_traces": [[entry() for _ in range(rng.choice([0, 1, 2, 9]))] for _ in range(rng.randint(0, 3))],
        "allocator_settings": {"garbage_collection_threshold": 0.5, "roundup": {"1": 0}},
    }


class KeepingConsumer(SnapshotConsumer):
    """Keeps what is handed over, for comparison only."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[int, list[dict[str, Any]]] = {}
        self.blocks: list[tuple[int, str, str]] = []

    def finished(self, mapping: PickledDict, holder: PickledList | None) -> Any:
        kept = super().finished(mapping, holder)
        if kept is CONSUMED and "action" in mapping:
            self.entries.setdefault(id(holder), []).append(dict(mapping))
        elif kept is CONSUMED:
            self.blocks += mapping["blocks"]
        return kept


def parse(data: bytes) -> tuple[Any, KeepingConsumer]:
    consumer = KeepingConsumer()
    return SafeUnpickler(Window(io.BytesIO(data), len(data)), consumer).run(), consumer


def line(frames: list[dict[str, Any]]) -> str:
    return users_line(frame_of(**frame) for frame in frames)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(value=snapshots(), protocol=st.integers(2, 5), optimized=st.booleans(), chunk=st.sampled_from([64, 1000, 2**22]))
def test_equals_what_pickle_loads(value: dict[str, Any], protocol: int, optimized: bool, chunk: int) -> None:
    data = pickle.dumps(value, protocol=protocol)
    if protocol >= 3 and optimized:
        data = pickletools.optimize(data)
    if protocol == 2 and b"bytes" in data:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "CHUNK_BYTES", chunk + 2**16)
        found, consumer = parse(data)
    loaded = pickle.loads(data)
    assert found["allocator_settings"] == loaded["allocator_settings"]
    assert [tuple(block) for block in consumer.blocks] == [
        (block["size"], block["state"], line(block["frames"]))
        for segment in loaded["segments"]
        for block in segment["blocks"]
    ]
    for here, there in zip(found["device_traces"], loaded["device_traces"], strict=True):
        expected = [{**entry, "frames": line(entry["frames"])} for entry in there]
        assert consumer.entries.get(id(here), []) == expected
        assert here == []


class Hostile:
    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call = call
        self.arguments = arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_hostile_pickle_runs_nothing(training: dict[str, Any], tmp_path: Path, protocol: int) -> None:
    sign = tmp_path / "it ran"
    training["device_traces"][0][1]["user_metadata"] = Hostile(os.mkdir, str(sign))
    file = tmp_path / "hostile.pickle"
    file.write_bytes(pickle.dumps(training, protocol=protocol))
    with pytest.raises(SnapshotError, match=r"asks for|no pickle of plain values"):
        snapshot_account(file)
    assert not sign.exists()


ALLOWED = {
    "PROTO",
    "FRAME",
    "STOP",
    "MARK",
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
    "MEMOIZE",
    "BINPUT",
    "LONG_BINPUT",
    "BINGET",
}
ALLOWED |= {"LONG_BINGET", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND"}
ALLOWED |= {"APPENDS", "SETITEM", "SETITEMS", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE"}
ALLOWED |= {"BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}


@pytest.mark.parametrize(
    "opcode", [one for one in pickletools.opcodes if one.name not in ALLOWED], ids=lambda o: o.name
)
def test_every_other_opcode_is_refused_by_name(opcode: Any) -> None:
    with pytest.raises(SnapshotError, match=rf"asks for {opcode.name} at byte 3\b"):
        parse(b"\x80\x04}" + opcode.code.encode("latin-1") + b"\x01" * 20 + b".")


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_off_is_reported(training: dict[str, Any], share: float) -> None:
    data = pickle.dumps(training, protocol=4)
    with pytest.raises(SnapshotError, match="cut off"):
        parse(data[: max(3, int(len(data) * share))])


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 4))
def test_damage_raises_nothing_else(seed: int, changes: int) -> None:
    rng = random.Random(seed)
    frame = {"filename": "a.py", "line": 1, "name": "f"}
    entries = [{"action": "alloc", "addr": n, "size": 512, "frames": [frame, frame]} for n in range(4)]
    data = bytearray(pickle.dumps({"segments": [], "device_traces": [entries, []]}, protocol=rng.randint(2, 5)))
    for _ in range(changes):
        data[rng.randrange(len(data))] = rng.randrange(256)
    with contextlib.suppress(SnapshotError):
        parse(bytes(data))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a zip file", "not a CUDA memory snapshot"),
        (b"\x1f\x8b gzip", "not a CUDA memory snapshot"),
        (b'{"segments": []}', "not a CUDA memory snapshot"),
        (pickle.dumps({"weights": [1, 2]}), "no list 'segments'"),
        (pickle.dumps(17), "no list 'segments'"),
        (pickle.dumps({"segments": [1]}), "is not a segment"),
        (pickle.dumps({"segments": [], "device_traces": [{"a": 1}]}), "'device_traces' is not a list"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "size": 1}]]}), "damaged at byte"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 0, "size": "x"}]]}), "damaged"),
        (b"\x80\x09.", "protocol 9"),
        (b"\x80\x04\x8e" + b"\xff" * 8, "cut off"),
        (b"\x80\x04}r\xff\xff\xff\xff.", "damaged"),
        (b"\x80\x04a.", "damaged"),
        (b"\x80\x04.", "damaged"),
        (b"\x80\x04NN.", "damaged"),
    ],
)
def test_foreign_files(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "foreign.pickle"
    file.write_bytes(content)
    with pytest.raises(SnapshotError, match=said):
        snapshot_account(file)


def test_an_entry_that_stands_twice_is_refused(training: dict[str, Any]) -> None:
    trace = training["device_traces"][0]
    trace.append(trace[0])
    with pytest.raises(SnapshotError, match="a second time"):
        parse(pickle.dumps(training))


def test_endless_nesting_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpickler, "_PLAIN_LIMIT", 1000)
    with pytest.raises(SnapshotError, match="more than 1,000 values"):
        parse(b"\x80\x04" + b"]" * 5000 + b".")


def test_nothing_is_kept_of_finished_entries(making: Any) -> None:
    stack = [making.frame("/home/a/train.py", 3, "f")] * 4
    for number in range(5000):
        making.event(0, "alloc", 512, list(stack), addr=number << 20, user_metadata=f"step {number % 3}")
    data = pickle.dumps(making.snapshot(), protocol=4)
    reader = SafeUnpickler(Window(io.BytesIO(data), len(data)), SnapshotConsumer())
    reader.run()
    kept = [value for value in reader._memo if isinstance(value, PickledList | PickledDict | TracebackFrame)]
    assert len(kept) < 20


def test_what_is_a_snapshot_by_name_or_first_byte(tmp_path: Path) -> None:
    magic = tmp_path / "snapshot"
    magic.write_bytes(pickle.dumps({}))
    text = tmp_path / "model.py"
    text.write_text("x = 1", encoding="utf-8")
    assert is_snapshot(str(magic))
    assert is_snapshot("not/there.pickle")
    assert not is_snapshot(str(text))
    assert not is_snapshot("timm:resnet50")
    with pytest.raises(SnapshotError, match="No such file"):
        snapshot_account("not/there.pickle")


def doubled_tuples(depth: int) -> bytes:
    """A dict whose key is a tuple of one tuple twice, and so on: its hash asks every one of 2 ** depth."""
    data = b"\x80\x02}"
    data += b")" + b"".join(b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86" for n in range(depth))
    return data + b"Ns."


@pytest.mark.parametrize(
    "data",
    [
        doubled_tuples(60),
        b"\x80\x02}(" + b"".join(b"K" + bytes([n]) + b"N" for n in range(20)) + b"u.",
        pickle.dumps([(2**61 - 1) * n for n in range(2**40, 2**40 + 9)], protocol=2),
        pickle.dumps({"addr": 2**80}, protocol=4),
    ],
    ids=["nested tuples", "numbers as keys", "numbers of one hash", "a long number"],
)
def test_what_is_hashed_for_ever_is_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError):
        parse(data)
