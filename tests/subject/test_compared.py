"""What programs return besides tensors, in the form in which it is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from togi.subject.compared import ArrayOf, ItemsOf, as_compared, attributes_of, taken_apart, tensor_of, with_numbers
from togi.subject.identity import value_hash
from togi.subject.inputs import Inputs
from togi.subject.nested import tensors_in
from togi.subject.structure import Structure
from togi.verify.leaves import tensors_in as named_tensors

DTYPES = (
    "bool int8 uint8 int32 uint16 uint32 uint64 int64 float16 float32 float64 complex64 longdouble >f4 m8[s] M8[s]"
).split()


@dataclass
class Answer:
    action: Any
    state: Any = None


class Picture:
    """Offers its pixels as pictures do."""

    def __init__(self, pixels: Any) -> None:
        self._pixels = pixels

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return dict(self._pixels.__array_interface__)


class Table:
    """Looks like a table of pandas."""

    def __init__(self, **columns: Any) -> None:
        self._columns = columns

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    @property
    def index(self) -> Any:
        return np.arange(len(next(iter(self._columns.values()))))

    def items(self) -> Any:
        return self._columns.items()

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.column_stack(list(self._columns.values()))


class Holds:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.function = print  # no value of the answer


def form(value: Any) -> tuple[str, list[Any]]:
    """All that is compared: the structure as text, and the numbers."""
    compared = as_compared(value)
    return Structure.of(compared).to_json(), [
        (str(tensor.dtype), tensor.tolist()) for _, tensor in named_tensors(compared, "output")
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_numbers_of_every_dtype_are_numbers(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    tensor = tensor_of(array)
    assert tensor is not None
    assert tuple(tensor.shape) == shape
    assert np.array_equal(with_numbers(array, tensor), array)
    again = with_numbers(array, tensor)
    assert (again.dtype, again.strides) == (array.dtype, array.strides)


def test_an_array_is_compared_in_its_own_memory() -> None:
    array = np.zeros((2, 3), dtype=np.float32)
    tensor = tensor_of(array)
    assert tensor is not None
    array[1, 2] = 5
    assert float(tensor[1, 2]) == 5
    turned = tensor_of(array[::-1, ::-1])
    assert turned is not None
    assert float(turned[0, 0]) == 5
    array.flags.writeable = False
    assert tensor_of(array) is not None


@pytest.mark.parametrize("value", [torch.ones(2), "text", 3, None, [1], object(), np.array(["a"]), np.float64, Answer])
def test_what_holds_no_numbers_is_no_tensor(value: Any) -> None:
    assert tensor_of(value) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.ones(3), np.ones(3) * 2),
        (np.ones(3), np.ones(3, dtype=np.float32)),
        (np.ones(3), torch.ones(3, dtype=torch.float64)),
        (np.ones(3), Picture(np.ones(3))),
        (np.float32(1.0), np.float32(2.0)),
        (np.int64(1), np.int64(2)),
        (np.array(["a", "b"]), np.array(["a", "c"])),
        (np.array(["a", None], dtype=object), np.array(["a", 1.0], dtype=object)),
        (np.array([(1, 2.0)], dtype="i4,f4"), np.array([(1, 3.0)], dtype="i4,f4")),
        (Picture(np.zeros((2, 2), dtype=np.uint8)), Picture(np.ones((2, 2), dtype=np.uint8))),
        (Table(score=np.ones(2)), Table(score=np.zeros(2))),
        (Table(score=np.ones(2)), Table(rank=np.ones(2))),
        (b"abc", b"abd"),
        (b"abc", bytearray(b"abc")),
        ({"a", "b"}, {"a", "c"}),
        ({(0, 1): 1.0}, {(0, 1): 2.0}),
        ({(0, 1): 1.0}, {(0, 2): 1.0}),
        (1.0, 2.0),
        (1j, 2j),
        ("a", "b"),
        (Answer(np.ones(2)), Answer(np.zeros(2))),
        ([Answer(b"a"), "x"], [Answer(b"b"), "x"]),
        (Holds(np.ones(2)), Holds(np.zeros(2))),
        (Holds([np.ones(2)]), Holds([np.ones(3)])),
    ],
)
def test_values_that_differ_are_told_apart(one: Any, other: Any) -> None:
    assert form(one) == form(one)
    assert form(one) != form(other)


def test_what_is_compared_as_it_is_stays_the_same() -> None:
    value = {"logits": torch.ones(2), "text": "yes", "count": 3, "none": None, "kind": torch.float32}
    compared = as_compared(value)
    assert compared is value


def test_an_array_of_objects_that_is_one_object_is_left() -> None:
    held = np.array(None, dtype=object)
    assert as_compared(held) is held


def test_classes_and_numbers_are_named() -> None:
    found = as_compared({"action": np.arange(2), "bytes": b"12"})
    assert isinstance(found["action"], ArrayOf)
    assert found["action"].kind is np.ndarray
    assert isinstance(found["bytes"], ItemsOf)
    assert found["bytes"].items.startswith("2 bytes, sha256 ")
    assert [name for name, _ in named_tensors(found, "output")] == ["output['action'].array"]


def test_a_call_is_copied_with_its_arrays() -> None:
    array = np.zeros(2)
    given = Inputs(([array],), {"buffer": bytearray(b"a")})
    copied = given.clone()
    copied.args[0][0][:] = 1
    copied.kwargs["buffer"][:] = b"b"
    assert array.tolist() == [0, 0]
    assert given.kwargs["buffer"] == b"a"
    assert tensors_in(given.args) == []


def test_an_array_is_a_sample() -> None:
    array = np.zeros(2)
    assert Inputs.of(array).args[0] is array


class Slotted:
    __slots__ = ("__private", "_own", "name")

    def __init__(self, private: int) -> None:
        self.name, self._own, self.__private = "one", 1, private


class _Derived(Slotted):
    __slots__ = "__private"

    def __init__(self, own: int) -> None:
        super().__init__(1)
        self.__private = own


def test_what_lies_in_private_slots_is_looked_at() -> None:
    assert attributes_of(Slotted(3)) == {"_Slotted__private": 3, "_own": 1, "name": "one"}
    assert attributes_of(_Derived(4)) == {**attributes_of(Slotted(1)), "_Derived__private": 4}
    for made in (Slotted, _Derived):
        assert Structure.of(taken_apart(made(3))) == Structure.of(taken_apart(made(3)))
        assert Structure.of(taken_apart(made(3))) != Structure.of(taken_apart(made(4)))
        assert value_hash(made(3)) == value_hash(made(3)) != value_hash(made(4))
