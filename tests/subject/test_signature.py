import dataclasses
import json
import math
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from togi.core.errors import ArtifactError, SubjectError
from togi.subject.common_structure import in_common
from togi.subject.conditions import at_least
from togi.subject.effects import Effects
from togi.subject.inputs import Inputs, samples_of
from togi.subject.made_inputs import samples_from_signature
from togi.subject.program import ProgramModule
from togi.subject.signature import Signature
from togi.subject.state import WithState
from togi.subject.structure import Structure

Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Box:
    corner: torch.Tensor
    label: str


class Tagged(OrderedDict):
    """A mapping with a class of its own, built from keywords like transformers' ModelOutput."""


class Net(nn.Module):
    def forward(self, x, mask=None, *, scale=1.0):
        return {"sum": x * scale, "parts": [x, Box(x + 1, "a")]}


def signature(*samples, module=None, dynamic=None):
    module = module or Net()
    found = samples_of(list(samples))
    return Signature.of(module, found, [module(*s.args, **s.kwargs) for s in found], dynamic)


@pytest.mark.parametrize(
    "value",
    [
        torch.rand(2),
        (torch.rand(1), [torch.rand(2), None, 3, "x"]),
        {"a": torch.rand(1), 2: (torch.rand(1),)},
        Point(torch.rand(1), 2.5),
        Box(torch.rand(2), "cat"),
        Tagged(a=torch.rand(1), b=(torch.rand(2),)),
    ],
)
def test_a_structure_is_built_again_after_json(value):
    structure = Structure.from_json(Structure.of(value).to_json())
    tensors = [item for _, leaf, item in structure.walk(value) if leaf.kind == "tensor"]
    again = structure.build(iter(tensors))
    assert type(again) is type(value)
    assert Structure.of(again) == structure
    assert [id(t) for _, leaf, t in structure.walk(again) if leaf.kind == "tensor"] == [id(t) for t in tensors]


def test_calls_of_the_same_form_flatten_alike():
    found = signature(Inputs((torch.rand(2),), {"scale": 2.0}))
    x = torch.rand(2)
    assert found.names == ("x", "scale")
    for args, kwargs in [((x,), {"scale": 2.0}), ((), {"x": x, "scale": 2.0}), ((x, None), {"scale": 2.0})]:
        (flat,) = found.flatten_inputs(args, kwargs)
        assert flat is x
    args, kwargs = found.build_inputs([x])
    assert (args[0] is x, kwargs) == (True, {"scale": 2.0})


class Pooled(nn.Module):
    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        pool: str | None = "mean",
        bias: torch.Tensor | None = None,
        top: int = 1,
    ) -> torch.Tensor:
        return x if pool is None else x.mean()


@pytest.mark.parametrize(
    "module", [Pooled(), WithState(Pooled(), []), torch.jit.script(Pooled()), ProgramModule(Pooled().forward)]
)
def test_none_says_what_leaving_it_out_says_where_it_is_the_default(module):
    found = Signature.of(module, [Inputs((torch.rand(2),))], [torch.rand(())])
    found = Signature.from_json(found.to_json())
    x = torch.rand(2)
    for args, kwargs in [((x, None), {}), ((x,), {"mask": None, "bias": None})]:
        assert found.flatten_inputs(args, kwargs)[0] is x
    for args, kwargs in [((x,), {"pool": None}), ((x, None, None), {}), ((x,), {"top": None}), ((x,), {"other": None})]:
        with pytest.raises(TypeError, match="tuned for calls of the form"):
            found.flatten_inputs(args, kwargs)


@pytest.mark.parametrize(
    "module", [Pooled(), WithState(Pooled(), []), torch.jit.script(Pooled()), ProgramModule(Pooled().forward)]
)
def test_an_argument_that_the_samples_give_as_none_may_be_left_out(module):
    x, given = torch.rand(2), {"mask": None, "top": 1}
    found = Signature.from_json(Signature.of(module, [Inputs((x,), given)], [torch.rand(())]).to_json())
    assert found.flatten_inputs((x,), {"top": 1})[0] is x
    assert found.flatten_inputs((x,), given)[0] is x
    with_a_mask = Signature.of(module, [Inputs((x,), {"mask": x})], [torch.rand(())])
    for signature_of, kwargs in ((found, {"mask": None}), (with_a_mask, {})):
        with pytest.raises(TypeError, match="tuned for calls of the form"):
            signature_of.flatten_inputs((x,), kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((torch.rand(2),), {}, r"called with \(x\)"),
        ((torch.rand(2),), {"scale": 3.0}, "expected the constant 2.0"),
        ((torch.rand(2),), {"scale": torch.tensor([2.0, 2.0])}, "expected the constant 2.0"),
        ((torch.rand(2), torch.rand(2)), {"scale": 2.0}, r"called with \(x, mask, scale\)"),
    ],
)
def test_calls_of_another_form_are_refused(args, kwargs, expected):
    found = signature(Inputs((torch.rand(2),), {"scale": 2.0}))
    with pytest.raises(TypeError, match=expected):
        found.flatten_inputs(args, kwargs)


def test_check_names_what_does_not_fit():
    found = signature(torch.rand(2, 3), torch.rand(4, 3))
    found.check([torch.rand(9, 3)])
    with pytest.raises(ValueError, match=r"x has shape \(9, 4\).*\(any, 3\)"):
        found.check([torch.rand(9, 4)])
    with pytest.raises(TypeError, match=r"x is torch\.float64"):
        found.check([torch.rand(9, 3).double()])


def pair(one: int, other: int) -> Inputs:
    return Inputs((torch.rand(one), torch.rand(2, other)))


@pytest.mark.parametrize(
    ("samples", "right", "wrong", "said"),
    [
        (
            [(3, 3), (5, 5)],
            (9, 9),
            (9, 8),
            "mask has 8 in dimension 1, where x has 9 in dimension 0, but it had the same",
        ),
        ([(3, 4), (5, 6)], (1, 2), (2, 2), "but it had 1 more than that in every sample"),
        ([(6, 4), (5, 3)], (4, 2), (2, 4), "but it had 2 less than that in every sample"),
    ],
    ids=["equal", "more", "less"],
)
def test_sizes_that_vary_together_must_do_so(samples, right, wrong, said):
    found = Signature.model_validate_json(signature(*(pair(*sizes) for sizes in samples)).model_dump_json())
    found.checked(pair(*right).args, {})
    with pytest.raises(ValueError, match=said):
        found.checked(pair(*wrong).args, {})


@pytest.mark.parametrize("samples", [[(3, 3), (5, 4)], [(3, 6), (5, 10)], [(4, 4), (4, 6)]], ids=str)
def test_sizes_that_vary_by_themselves_may(samples):
    found = signature(*(pair(*sizes) for sizes in samples))
    assert not found.relations
    found.check([torch.rand(samples[0][0]), torch.rand(2, 17)])


def test_squares_may_become_rectangles_and_masks_of_them_too():
    found = signature(*(Inputs((torch.rand(1, size, size), torch.rand(size, size))) for size in (4, 6)))
    found.check([torch.rand(1, 5, 7), torch.rand(5, 7)])


def test_what_is_declared_dynamic_is_bound_to_nothing():
    found = signature(pair(3, 3), pair(5, 5), dynamic={"mask": [1]})
    found.check([torch.rand(4), torch.rand(2, 9)])


def test_made_inputs_keep_relations():
    for samples in ([(3, 12), (5, 14)], [(12, 3), (14, 5)]):
        found = signature(*(pair(*sizes) for sizes in samples))
        (made,) = samples_from_signature(found, 0)
        assert min(size for tensor in found.checked(made.args, {}) for size in tensor.shape) >= 2


def test_equal_sizes_of_one_sample_may_vary():
    found = signature(pair(4, 4), dynamic={"x": [0], "mask": [1]})
    found.check([torch.rand(5), torch.rand(2, 9)])


def test_relations_of_inputs_that_are_not_there_are_refused():
    found = signature(pair(3, 3), pair(5, 5)).model_dump()
    found["relations"][0]["other"] = (7, 0)
    with pytest.raises(ValidationError, match="a relation between sizes that the inputs do not have"):
        Signature.model_validate(found)


def test_sizes_beyond_what_was_captured_are_refused_in_words():
    found = signature(pair(3, 3), pair(5, 4)).under(["size(0, 0) <= 2*size(1, 1)", "(size(1, 1) % 7) != 0"])
    found = Signature.model_validate_json(found.model_dump_json())
    found.checked(pair(12, 6).args, {})
    assert not found.unmet(pair(12, 6))
    with pytest.raises(
        ValueError, match=r"x\.shape\[0\] is 13 and mask\.shape\[1\] is 6, .* x\.shape\[0\] <= 2 \* mask"
    ):
        found.checked(pair(13, 6).args, {})
    assert found.unmet(pair(3, 14))


def test_what_no_sample_had_empty_is_refused_as_that():
    found = signature(pair(3, 3), pair(5, 4)).under([at_least(1, 0, 0)])
    with pytest.raises(ValueError, match=r"x is empty \(dimension 0\), as it was in no sample"):
        found.checked(pair(0, 3).args, {})
    assert not found.conditions_in_words()


def test_made_inputs_meet_conditions():
    found = signature(pair(16, 3), pair(32, 5)).under(["(size(0, 0) % 16) == 0", "size(0, 0) >= 20"])
    (made,) = samples_from_signature(found, 0)
    assert not found.unmet(made)


@pytest.mark.parametrize("text", ["size(7, 0) <= 3", "size(0, 1) <= 3"])
def test_conditions_on_inputs_that_are_not_there_are_refused(text):
    found = signature(pair(3, 3), pair(5, 5)).model_dump() | {"conditions": (text,)}
    with pytest.raises(ValidationError, match="a condition on sizes that the inputs do not have"):
        Signature.model_validate(found)


class Counted:
    """A cache that counts what it holds, some of it twice."""

    def __init__(self, length: int, seen: int | None = None) -> None:
        self.seen = length if seen is None else seen
        self.window = 64
        self.layers = {"places": length + 2, "keys": torch.rand(2, length)}
        self.keys = torch.rand(1, length, 3)


class Keys(nn.Module):
    def forward(self, x):
        return x.keys


def signature_of_caches(*caches):
    return signature(*(Inputs((cache,)) for cache in caches), module=Keys())


def test_numbers_that_count_what_lies_next_to_them_follow_it():
    found = signature_of_caches(Counted(4), Counted(7))
    found = Signature.model_validate_json(found.model_dump_json())
    (kept,), _ = found.build_inputs(found.checked((Counted(9),), {}))
    assert (kept.seen, kept.window, kept.layers["places"], kept.keys.shape[1]) == (9, 64, 11, 9)
    (made,) = samples_from_signature(found, 0)
    assert made.args[0].seen == made.args[0].keys.shape[1]


@pytest.mark.parametrize("seen", [8, True])
def test_a_count_of_something_else_is_refused_with_both(seen):
    found = signature_of_caches(Counted(4), Counted(7))
    with pytest.raises(TypeError, match=rf"x\.seen is {seen}, where x\.keys has the shape \(1, 9, 3\)"):
        found.checked((Counted(9, seen),), {})


@pytest.mark.parametrize(
    "keys", [None, 3, torch.rand(2), [torch.rand(1, 9, 3)]], ids=["none", "number", "flat", "list"]
)
def test_a_count_of_what_is_not_such_a_tensor_is_refused(keys):
    cache = Counted(9)
    cache.keys = keys
    with pytest.raises(TypeError, match=r"x\.(keys|seen)"):
        signature_of_caches(Counted(4), Counted(7)).checked((cache,), {})


def test_numbers_that_follow_nothing_make_another_form():
    with pytest.raises(SubjectError, match="sample 3 is called differently from sample 1"):
        signature_of_caches(Counted(4, 5), Counted(7, 8), Counted(9, 9))


@pytest.mark.parametrize("counted", [("window", 0), ("keys", -1), ("keys", "seen"), ("gone", 1), ("keys",)])
def test_a_stored_count_of_what_is_not_a_tensor_is_refused(counted):
    document = json.loads(signature_of_caches(Counted(4), Counted(7)).model_dump_json())
    document["arguments"][0]["children"][0]["keys"] = counted
    with pytest.raises(ValidationError, match="which is not a size of a tensor next to it"):
        Signature.model_validate_json(json.dumps(document))


def test_outputs_are_rebuilt():
    module = Net()
    found = signature(torch.rand(2), module=module)
    output = module(torch.rand(2))
    again = found.build_outputs(found.flatten_outputs(output))
    assert again["sum"] is output["sum"]
    assert isinstance(again["parts"][1], Box)
    assert again["parts"][1].label == "a"


def test_torchscript_parameters_have_names():
    scripted = torch.jit.script(nn.Linear(2, 1))
    found = signature(torch.rand(1, 2), module=scripted)
    assert found.names == ("input",)
    assert len(found.flatten_inputs((), {"input": torch.rand(1, 2)})) == 1


class Sometimes(nn.Module):
    def forward(self, x):
        return (x, len(x)) if len(x) < 3 else (x, [x])


def test_outputs_that_differ_in_structure_are_opaque_there():
    found = signature(torch.rand(2), torch.rand(3), module=Sometimes())
    assert [child.kind for child in found.outputs.children] == ["tensor", "opaque"]
    assert "differs from call to call" in found.opaque


@pytest.mark.parametrize("kind", ["mapping", "dataclass", "namedtuple", "object", "enum"])
def test_only_classes_of_data_are_built_from_a_file(kind):
    held = {} if kind == "enum" else {"keys": ("a",), "children": (Structure(kind="constant"),)}
    structure = Structure(kind=kind, type="subprocess:Popen", **held)
    with pytest.raises(ArtifactError, match=f"is not a {kind} of plain values"):
        structure.build(iter(()))


def test_samples_of_another_form_are_refused():
    with pytest.raises(SubjectError, match="sample 2 is called differently"):
        signature(torch.rand(1), {"x": torch.rand(1)})


def test_named_inputs_are_the_names_of_the_facts():
    sample = Inputs(([torch.rand(1), torch.rand(2)],), {"mask": {"m": torch.rand(1)}})
    names = [name for name, _ in Signature.named_inputs(Net(), sample)]
    assert names == ["x[0]", "x[1]", "mask['m']"]


def test_inputs_keep_the_classes_of_containers():
    given = Inputs((Point(torch.rand(1), 1), Tagged(a=torch.rand(1)), Box(torch.rand(1), "x"), [torch.rand(1)]))
    copied = given.clone()
    assert [type(item) for item in copied.args] == [Point, Tagged, Box, list]
    assert torch.equal(copied.args[2].corner, given.args[2].corner)
    assert copied.args[2].corner is not given.args[2].corner
    assert copied.args[2].label == "x"


def test_a_clone_keeps_strides_and_drops_gradients():
    tensor = torch.rand(3, 4, requires_grad=True).T
    copied = Inputs.of(tensor).clone().args[0]
    assert copied.stride() == tensor.stride()
    assert not copied.requires_grad
    assert torch.equal(copied, tensor)


@pytest.mark.parametrize("change", [{"arguments": ()}, {"positional": 7}, {"positional": -1}])
def test_a_stored_signature_that_does_not_hang_together_is_refused(change):
    module, sample = nn.Linear(2, 2), Inputs((torch.ones(1, 2),))
    signature = Signature.of(module, (sample,), [module(sample.args[0])])
    with pytest.raises(ValueError, match="structures and"):
        Signature.model_validate({**signature.model_dump(), **change})


def program(call: Any) -> ProgramModule:
    net = nn.Linear(2, 2)

    def forward(x: Any, scale: Any = 1.0, texts: Any = ()) -> Any:
        return net, call, x, scale, texts

    return ProgramModule(forward)


def test_what_is_no_tensor_is_handed_on_as_it_is() -> None:
    given = Inputs((np.ones(2, dtype=np.float32),), {"scale": b"a"})
    found = Signature.from_json(Signature.of(program(None), [given], [None]).to_json())
    assert found.flatten_inputs((np.zeros((4, 5)),), {"scale": b"other"}) == []
    with pytest.raises(TypeError, match="expected a numpy:ndarray"):
        found.flatten_inputs((torch.ones(2),), {"scale": b"a"})


@pytest.mark.parametrize(
    ("one", "other", "taken", "refused"),
    [
        (0.5, 0.7, 0.9, 1),
        ("a cat", "two dogs", "three", None),
        (["a"], ["a", "b"], [], ("a",)),
        ([np.ones(2)], [np.ones(2), np.ones(3)], [], np.ones(2)),
        ({"top": 1, "of": "x"}, {"top": 2, "of": "x"}, {"top": 5, "of": "x"}, {"top": 5, "of": "y"}),
    ],
)
def test_what_differs_between_calls_of_a_program_may_differ(one: Any, other: Any, taken: Any, refused: Any) -> None:
    samples = [Inputs((torch.rand(2),), {"scale": value}) for value in (one, other)]
    found = Signature.of(program(None), samples, [None, None])
    x = torch.rand(2)
    (flat,) = found.flatten_inputs((x,), {"scale": taken})
    assert flat is x
    with pytest.raises(TypeError, match="scale"):
        found.flatten_inputs((x,), {"scale": refused})
    with pytest.raises(SubjectError, match="sample 2 is called differently"):
        Signature.of(Net(), samples, [None, None])


def test_lists_of_tensors_of_other_lengths_are_other_forms_of_a_program_too() -> None:
    samples = [Inputs(([torch.rand(2)] * count,)) for count in (1, 2)]
    with pytest.raises(SubjectError, match="sample 2 is called differently"):
        Signature.of(program(None), samples, [None, None])


@pytest.mark.parametrize(
    ("given", "other", "same"), [(2.0, 2, np.float64(2.0)), (1, True, 1), (True, 1, True), (0, False, 0), (2, 2.0, 2)]
)
def test_a_constant_of_another_kind_is_another_constant(given: Any, other: Any, same: Any) -> None:
    """``x / 2`` of whole numbers, ``if scale is True``: what is equal may compute something else."""
    x = torch.rand(2)
    found = Signature.from_json(signature(Inputs((x,), {"scale": given})).to_json())
    with pytest.raises(TypeError, match=f"expected the constant {given!r}"):
        found.flatten_inputs((x,), {"scale": other})
    assert found.flatten_inputs((x,), {"scale": same})[0] is x
    assert in_common([given, other]) is None
    assert in_common([given, same]) == Structure.of(given)
    assert hash(Structure.of(given)) == hash(Structure.of(other))


def test_a_cache_whose_number_changes_its_kind_is_changed() -> None:
    def fill(flags: dict[str, Any]) -> None:
        flags["filled"] = True

    (change,) = Effects.of(fill, Inputs(({"filled": 1},))).changes
    assert change.argument == 0


class First(nn.Module):
    def forward(self, x, sizes, more):
        return x[: sizes[0]] + more[0]


@pytest.mark.parametrize("reads", ["as recorded now", "as recorded before"])
def test_any_list_or_tuple_will_do_where_a_sample_had_one_of_its_own_class(reads):
    class Own(list):
        pass

    x = torch.rand(3, 2)
    given = [Inputs((x, x.shape, Own([x]))), Inputs((x, x.shape, Own([x])))]
    found = Signature.of(First(), given, [x, x])
    if reads == "as recorded before":  # no class was
        plain = json.loads(found.to_json())
        for argument in plain["arguments"][1:]:
            argument.update(type="", value=None)
        del plain["layouts"]
        found = Signature.from_json(json.dumps(plain))
    for sizes in (x.shape, (3, 2), torch.Size([3, 2])):
        for more in ([x], Own([x])):
            assert len(found.checked((x, sizes, more), {})) == 2
    with pytest.raises(TypeError, match=r"sizes\[1\] is 5"):
        found.checked((x, torch.Size([3, 5]), [x]), {})


def test_samples_with_lists_and_tuples_of_several_classes_have_plain_ones_in_common():
    x = torch.rand(3, 2)
    common = in_common([(x.shape, x.topk(1)), ((3, 2), tuple(x.topk(1)))])
    assert common == Structure.of(((3, 2), tuple(x.topk(1))))
    assert Signature.of(First(), [Inputs((x, x.shape, [x]))], [x]).arguments[1].type == "torch:Size"


class Plain(nn.Module):
    def forward(self, x):
        return x


OTHER_LAYOUTS = {
    "sparse_coo": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x.to_sparse_csr(),
    "_mkldnn": lambda x: x.to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
def test_a_tensor_of_another_layout_is_another_input(layout):
    x = torch.rand(4, 8)
    other = OTHER_LAYOUTS[layout](x)
    with pytest.raises(TypeError, match=f"x is a {layout} tensor, but was tuned and proven as a strided one"):
        signature(x, module=Plain()).check([other])
    of_other = signature(other, module=Plain())
    of_other.check([other])
    assert Signature.from_json(of_other.to_json()) == of_other
    with pytest.raises(TypeError, match=f"x is a strided tensor, but was tuned and proven as a {layout} one"):
        of_other.check([x])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize(("how", "layout"), [("strided", "nested"), ("jagged", "jagged")])
def test_a_nested_tensor_is_another_input(how, layout):
    nested = torch.nested.nested_tensor([torch.rand(3, 8)] * 2, layout=getattr(torch, how))
    with pytest.raises(TypeError, match=f"x is a {layout} tensor, but was tuned and proven as a strided one"):
        signature(torch.rand(2, 3, 8), module=Plain()).check([nested])


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_not_finite_are_constants_in_files_too(number):
    class Clips(nn.Module):
        def forward(self, x, most):
            return x.clamp(max=most), number

    x, module = torch.rand(2), Clips()
    signature = Signature.of(module, [Inputs((x, number))], [module(x, number)])
    signature = Signature.from_json(signature.to_json())
    assert signature.checked((x, float(str(number))), {}) == [x]
    for other in (1.0, str(number), 0, None, *{math.inf, -math.inf} - {number}):
        with pytest.raises(TypeError):
            signature.checked((x, other), {})
    built = signature.build_outputs([x])[1]
    assert type(built) is float
    assert str(built) == str(number)
    damaged = signature.outputs.to_json().replace(json.dumps(str(number)), '"1e9"')
    with pytest.raises(ArtifactError, match="is not a constant"):
        Structure.from_json(damaged).resolve()
