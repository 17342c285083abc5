"""Every argument that an operation's schema has, given another value: its tiles are what the whole is, values and
gradients, or it is not cut."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional

import togi
from togi.tiling.combining import COMBINERS, streamable_dims
from togi.tiling.differentiate import LoopRun
from togi.tiling.lean import LeanWarning
from togi.tiling.loops import Loop, Product, Wanted
from togi.tiling.program import TileLoop, Tiles
from togi.tiling.slicing import RULES, NotSliceable, Slice, SlicingRule, rank
from togi.tiling.slicing_rules import sliced_call
from togi.torch_internals.operators import OpOverload, schema_of
from togi.torch_internals.tensors import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

aten = torch.ops.aten


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


def shares(*shape: int) -> Tensor:
    return torch.sigmoid(numbers(*shape))


MATRIX, OTHER, CUBE, ROW = numbers(6, 5), numbers(6, 5).cos(), numbers(6, 4, 2), numbers(5)
FLAT = numbers(6, 1, 4)
PLACES = torch.tensor(
    [[2, 0, 3, 2, 2], [1, 4, 4, 0, 2], [2, 2, 0, 1, 3], [0, 0, 1, 2, 4], [4, 3, 2, 1, 0], [2, 2, 2, 2, 1]]
)
HEADS = numbers(2, 3, 8, 4)

OF_ONE = (
    *(aten.alias, aten.detach, aten.clone, aten._to_copy, aten.lift_fresh_copy, aten.zeros_like, aten.ones_like),
    *(aten.log_sigmoid_forward, aten.hardswish, aten.t, aten.argmax, aten.argmin, aten.sum, aten.mean, aten.max),
    *(aten.min, aten.any, aten.all),
)
ALONG_THE_SECOND = (
    *(aten.cumsum, aten.cumprod, aten.logcumsumexp, aten.cummax, aten.cummin, aten.sort, aten.glu),
    *(aten.amax, aten.amin, aten.logsumexp, aten.argmax, aten.argmin),
)
SAMPLES: dict[OpOverload, tuple[object, ...]] = {
    **{op.default: (MATRIX,) for op in OF_ONE},
    **{op.default: (MATRIX, 1) for op in ALONG_THE_SECOND if op is not aten.glu},
    **{op.default: (MATRIX, [1]) for op in (aten.amax, aten.amin, aten.logsumexp)},
    **{op.dim: (MATRIX, 1) for op in (aten.max, aten.min, aten.any, aten.all, aten.median)},
    **{op.dims: (MATRIX, [1]) for op in (aten.any, aten.all)},
    **{op.correction: (MATRIX, [1]) for op in (aten.var, aten.std, aten.var_mean, aten.std_mean)},
    **{op.default: (MATRIX, OTHER.sigmoid(), 0) for op in (aten.mse_loss, aten.smooth_l1_loss, aten.huber_loss)},
    aten.soft_margin_loss.default: (MATRIX, OTHER.sign(), 0),
    aten.binary_cross_entropy.default: (MATRIX.sigmoid(), OTHER.sigmoid(), None, 0),
    aten.binary_cross_entropy_with_logits.default: (MATRIX, OTHER.sigmoid(), None, None, 0),
    aten.glu.default: (CUBE,),
    aten._softmax.default: (MATRIX, 1, False),
    aten._log_softmax.default: (MATRIX, 1, False),
    aten.sort.stable: (MATRIX,),
    aten.topk.default: (MATRIX, 2),
    aten.kthvalue.default: (MATRIX, 2),
    aten.mode.default: (MATRIX,),
    aten.prod.dim_int: (MATRIX, 1),
    aten.sum.dim_IntList: (MATRIX, [1]),
    aten.mean.dim: (MATRIX, [1]),
    aten.linalg_vector_norm.default: (MATRIX, 3, [1]),
    aten.flip.default: (MATRIX, [1]),
    aten.roll.default: (MATRIX, [1]),
    aten.constant_pad_nd.default: (MATRIX, [1, 0]),
    aten.native_layer_norm.default: (MATRIX, [5], ROW, ROW, 1e-5),
    aten._native_batch_norm_legit_no_training.default: (MATRIX, ROW, ROW, ROW, ROW.exp(), 0.1, 1e-5),
    aten.convolution.default: (CUBE, numbers(3, 4, 1), None, [1], [0], [1], False, [0], 1),
    aten.slice.Tensor: (MATRIX,),
    aten.split.Tensor: (MATRIX, 2),
    aten.split_with_sizes.default: (MATRIX, [2, 4]),
    aten.view.default: (CUBE, [6, 8]),
    aten._unsafe_view.default: (CUBE, [6, 8]),
    aten.reshape.default: (CUBE, [6, 8]),
    aten.expand.default: (FLAT, [6, 3, 4]),
    aten.permute.default: (CUBE, [2, 0, 1]),
    aten.transpose.int: (CUBE, 0, 1),
    aten.unsqueeze.default: (MATRIX, 1),
    aten.select.int: (MATRIX, 1, 0),
    aten.unbind.int: (MATRIX,),
    aten.squeeze.default: (FLAT,),
    aten.squeeze.dim: (FLAT, 1),
    aten.squeeze.dims: (FLAT, [1]),
    aten.mm.default: (MATRIX, OTHER.T),
    aten.bmm.default: (CUBE, CUBE.mT),
    aten.addmm.default: (numbers(6, 6), MATRIX, OTHER.T),
    aten.baddbmm.default: (numbers(6, 4, 4), CUBE, CUBE.mT),
    aten.mv.default: (MATRIX, ROW),
    aten.dot.default: (ROW, ROW.cos()),
    aten._cdist_forward.default: (MATRIX, OTHER, 2.0, None),
    aten._euclidean_dist.default: (MATRIX, OTHER),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (HEADS, HEADS.cos(), HEADS.sin()),
    aten.full.default: ([6, 5], 2.5),
    aten.zeros.default: ([6, 5],),
    aten.ones.default: ([6, 5],),
    aten.cat.default: ([MATRIX, OTHER],),
    aten.stack.default: ([MATRIX, OTHER],),
    aten.gather.default: (MATRIX, 1, PLACES),
    aten.index_select.default: (MATRIX, 0, PLACES[0]),
    aten.embedding.default: (numbers(5, 3), PLACES),
    aten.index.Tensor: (MATRIX, [PLACES[0]]),
    aten.slice_scatter.default: (MATRIX, numbers(6, 2), 1, 1, 3),
    aten.select_scatter.default: (MATRIX, numbers(6), 1, 2),
    aten.arange.default: (6,),
    aten.arange.start: (1, 7),
    aten.arange.start_step: (1, 13, 2),
    aten.full_like.default: (MATRIX, 2.5),
    aten._prelu_kernel.default: (MATRIX, numbers(1, 1)),
    aten.masked_fill.Tensor: (MATRIX, OTHER > 0, torch.tensor(0.5, dtype=torch.float64)),
    aten.rsub.Tensor: (MATRIX, OTHER),
    aten.floor_divide.default: (MATRIX, OTHER),
    # without a rule of their own: torch's tag says that they are of each element
    aten.add.Tensor: (MATRIX, OTHER),
    aten.div.Tensor_mode: (MATRIX, OTHER),
    aten.gelu.default: (MATRIX,),
    aten.logit.default: (shares(6, 5),),
    aten.clamp.default: (MATRIX, -0.5),
    aten.nan_to_num.default: (MATRIX.log(),),
    aten.addcmul.default: (MATRIX, OTHER, OTHER),
    aten.softplus.default: (MATRIX,),
    aten.elu.default: (MATRIX,),
}
REQUIRED = {aten.sort.stable: {"stable": True}, aten.div.Tensor_mode: {"rounding_mode": "trunc"}}
"""What has no default and no place."""
BY_TYPE = {"ScalarType": torch.float32, "Tensor": shares(5), "MemoryFormat": torch.contiguous_format, "str": "tanh"}
BY_NAME = {
    "dim": 0, "ord": 1.5, "correction": 0, "padding_idx": 2, "rounding_mode": "floor", "stable": True, "eps": 0.2,
    "attn_mask": numbers(8, 8), "dims": [0], "end": 4, "step": 2, "start": 1,
}  # fmt: skip


def another_value(argument: torch.Argument) -> object:
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    default = argument.default_value if argument.has_default_value() else None
    if argument.name in BY_NAME:
        value = BY_NAME[argument.name]
        return [value] if kind.startswith("List") and not isinstance(value, list) else value
    if kind in BY_TYPE:
        return BY_TYPE[kind]
    if kind == "bool":
        return not default
    return 0.37 if kind in ("number", "float") else None


def calls():
    """``(operator, arguments, what is given by name)``: each argument with a default once with another value."""
    for call, args in SAMPLES.items():
        required = REQUIRED.get(call, {})
        yield pytest.param(call, args, required, id=f"{call}")
        for index, argument in enumerate(schema_of(call).arguments):
            value = another_value(argument) if argument.has_default_value() or argument.name in required else None
            fits = value is not None and (index >= len(args) or argument.kwarg_only)
            if fits and torch_takes(call, args, {**required, argument.name: value}):
                yield pytest.param(call, args, {**required, argument.name: value}, id=f"{call} {argument.name}")


def torch_takes(call, args, kwargs) -> bool:
    """False for memory pinned for a GPU where there is none, a step that does not fit to the sizes, ..."""
    try:
        call(*args, **kwargs)
    except RuntimeError:
        return False
    return True


def node_of(call, args, kwargs, result) -> tuple[fx.Node, list[Tensor]]:
    graph, tensors = fx.Graph(), []

    def placeholder(tensor):
        node = graph.placeholder(f"given_{len(tensors)}")
        node.meta["val"] = tensor
        tensors.append(tensor)
        return node

    args, kwargs = tree_map_only(Tensor, placeholder, (list(args), dict(kwargs)))
    for argument in schema_of(call).arguments[len(args) :]:  # by position, as torch hands them on
        if not argument.kwarg_only and kwargs:
            args.append(kwargs.pop(argument.name, argument.default_value))
    node = graph.call_function(call, tuple(args), kwargs)
    node.meta["val"] = result
    return node, tensors


def loops_of(node: fx.Node):
    """``(index of the result or None for all, length, loop)`` for every way in which a loop may make the node."""
    results = node.meta["val"]
    for index in [None] if isinstance(results, Tensor) else [i for i, r in enumerate(results) if r.numel()]:
        made = node if index is None else _item(node, index)
        for dim in range(rank(made)):
            product = Product(made, dim, combined=False)
            yield index, product, partial(_assembling, product, node)
    for dim in streamable_dims(node):
        if COMBINERS[node.target].differentiates(node):
            product = Product(node, dim, combined=True)
            yield None, product, lambda product=product: _loop(product, {}, product.call())


def _item(node: fx.Node, index: int) -> fx.Node:
    item = node.graph.call_function(operator.getitem, (node, index))
    item.meta["val"] = node.meta["val"][index]
    return item


def _assembling(product: Product, node: fx.Node) -> Loop:
    call = sliced_call(node, product.dim)
    computed = {Slice(node, product.dim): call}
    if product.node is not node:
        computed[product.first] = product.call()
    return _loop(product, computed, call)


def _loop(product: Product, computed, call) -> Loop:
    return Loop((product,), Wanted(computed, frozenset(call.slices), frozenset(call.whole_nodes)), product.length)


def answers(call: Callable[..., object], tensors: list[Tensor], wanted: list[int]) -> list[Tensor]:
    """Results, then the gradients of those wanted; what each result is multiplied by follows from its values, not from
    their places."""
    given = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
    results = [leaf for leaf in tree_leaves(call(given)) if isinstance(leaf, Tensor)]
    made = [leaf for leaf in results if leaf.requires_grad]
    if wanted:
        found = torch.autograd.grad(made, [given[i] for i in wanted], [leaf.detach().sin() for leaf in made])
        results += [gradient.to_dense() for gradient in found]
    return [result.detach() for result in results]


def differentiable(call: Callable[..., object], tensors: list[Tensor]) -> list[int]:
    """The tensors of which torch knows the gradient."""

    def known(index: int) -> bool:
        try:
            return bool(answers(call, tensors, [index]))
        except RuntimeError:
            return False

    return [i for i, tensor in enumerate(tensors) if tensor.is_floating_point() and known(i)]


@pytest.mark.parametrize(("call", "args", "kwargs"), list(calls()))
def test_an_argument_is_respected_or_the_call_is_not_cut(call, args, kwargs):
    node, tensors = node_of(call, args, kwargs, call(*args, **kwargs))
    places = {node: i for i, node in enumerate(n for n in node.graph.nodes if n.op == "placeholder")}
    leaves, form = tree_flatten((list(args), kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    refused = []
    for index, product, make in loops_of(node):
        try:
            loop = TileLoop(make(), node.graph)
        except NotSliceable as reason:
            refused.append(str(reason))
            continue

        def plain(given, index=index):
            filled = list(leaves)
            for i, tensor in zip(at, given, strict=True):
                filled[i] = tensor
            again, named = tree_unflatten(filled, form)
            return call(*again, **named) if index is None else call(*again, **named)[index]

        def in_tiles(given, loop=loop, length=int(product.length)):
            return LoopRun(loop, length, Tiles(plain=2), 2)([given[places[read]] for read in loop.reads])

        wanted = differentiable(plain, tensors)
        for one, other in zip(answers(in_tiles, tensors, wanted), answers(plain, tensors, wanted), strict=True):
            if call is aten.topk.default and one.shape == (6, 2):  # they may come in any order
                one, other = one.sort().values, other.sort().values
            torch.testing.assert_close(one, other, equal_nan=True)
    unknown = [reason for reason in refused if "for which it has no rule" in reason]
    assert bool(unknown) == (not REFUSED.get(call, set()).isdisjoint(kwargs)), refused


REFUSED = {
    aten.gather.default: {"sparse_grad"},
    aten.embedding.default: {"scale_grad_by_freq", "sparse"},
    aten.expand.default: {"implicit"},
}
"""Arguments that no rule understands, of operators that have one: a gradient that is not dense cannot be put together
from tiles; nor do tiles know how often all of them name a row."""


def test_every_operator_with_a_rule_has_a_sample_above():
    assert {call for call in {*RULES, *COMBINERS} if isinstance(call, OpOverload)} <= set(SAMPLES)


@pytest.mark.parametrize("call", [op for op in RULES if isinstance(op, OpOverload)], ids=str)
def test_what_a_rule_does_not_name_is_not_cut(call, monkeypatch):
    """Whatever the schema says that an operation takes, now or in a later torch."""
    args, kwargs = SAMPLES[call], REQUIRED.get(call, {})
    node, _ = node_of(call, args, kwargs, call(*args, **kwargs))
    monkeypatch.setitem(RULES, call, SlicingRule(RULES[call].cut, frozenset()))
    first = schema_of(call).arguments[0].name
    for dim in range(rank(node)):
        with pytest.raises(NotSliceable, match=f"is given {first}, for which it has no rule"):
            sliced_call(node, dim)


@pytest.mark.parametrize("call", COMBINERS, ids=str)
def test_what_a_combiner_does_not_name_is_not_cut(call, monkeypatch):
    args = SAMPLES[call]
    node, _ = node_of(call, args, {}, call(*args))
    monkeypatch.setattr(COMBINERS[call], "understands", frozenset())
    assert streamable_dims(node)
    for dim in streamable_dims(node):
        with pytest.raises(NotSliceable, match="is given self, for which it has no rule"):
            Product(node, dim, combined=True).call()


def test_a_call_with_an_argument_that_is_not_understood_runs_as_it_is():
    table, index = torch.randn(50, 64, requires_grad=True), torch.randint(0, 50, (5000, 64))

    def picked(table, index):
        return torch.gather(table[None].expand(100, -1, -1).reshape(5000, 64), 0, index % 50, sparse_grad=True).exp()

    call = togi.lean(lambda table, index: picked(table, index).sum(1), memory="256KiB", compile=False)
    with pytest.warns(LeanWarning, match=r"aten\.gather is given sparse_grad, for which it has no rule"):
        found = call(table, index)
    torch.testing.assert_close(found, picked(table, index).sum(1))


@pytest.mark.parametrize("options", [{"sparse": True}, {"scale_grad_by_freq": True}])
def test_the_gradient_of_an_embedding_is_of_the_form_that_was_asked_for(options):
    table, index = torch.randn(50, 64, requires_grad=True), torch.randint(0, 50, (5000,))
    call = togi.lean(
        lambda i, t: functional.embedding(i, t, **options).square().sum(-1), memory="256KiB", compile=False
    )
    with pytest.warns(LeanWarning, match="for which it has no rule"):
        result = call(index, table)
    (found,) = torch.autograd.grad(result.sum(), table)
    (expected,) = torch.autograd.grad(functional.embedding(index, table, **options).square().sum(), table)
    assert found.layout == expected.layout
    torch.testing.assert_close(found.to_dense(), expected.to_dense())
