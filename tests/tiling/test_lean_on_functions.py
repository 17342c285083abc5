"""``togi.lean`` gives what the plain function gives, within the budget, and says so; where it cannot, it says why."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torchvision.ops import box_iou

import togi
from togi.measure.memory import torch_allocator_peak_bytes
from togi.tiling import kind as kind_module
from togi.tiling.lean import LeanWarning

os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def points(rows, columns=5, **options):
    return torch.randn(rows, columns, **options)


def squared(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def lean(function, memory="256KiB"):
    return togi.lean(function, memory=memory, compile=False)


def quietly(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeanWarning)
        return call(*args, **kwargs)


def assert_equal(found, expected):
    found_leaves, found_form = pytree.tree_flatten(found)
    leaves, form = pytree.tree_flatten(expected)
    assert found_form == form
    for one, other in zip(found_leaves, leaves, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)
        else:
            assert one == other


def gradients(result, tensors):
    made = [leaf for leaf in pytree.tree_leaves(result) if leaf.requires_grad]
    return torch.autograd.grad(made, tensors, [torch.full_like(leaf, 0.7) for leaf in made])


def boxes(count):
    corners = torch.rand(count, 4)
    corners[:, 2:] += corners[:, :2]
    return corners


def both_ways(x, y):
    distance = squared(x, y)
    return distance.min(1), distance.min(0)


def balanced(x, y):
    kernel = torch.exp(-squared(x, y))
    return (kernel / kernel.sum(0, keepdim=True) / kernel.sum(1, keepdim=True)).max(1).values


def standardized(x, y):
    distance = squared(x, y)
    return ((distance - distance.mean(1, keepdim=True)) / distance.std(1, keepdim=True)).abs().max(1)


def assigned(x, y):
    distance = squared(x, y)
    distance[:, 3] = 0
    return distance.clamp_(max=1).sum(1)


def below_diagonal(x, y):
    rows, columns = torch.arange(x.shape[0]), torch.arange(y.shape[0])
    return torch.where(rows[:, None] > columns, squared(x, y), 0.0).sum(1)


STREAMED = {
    "gaussian sum": lambda x, y: torch.exp(-squared(x, y)).sum(1),
    "total": lambda x, y: torch.exp(-squared(x, y)).sum(),
    "mean of all": lambda x, y: squared(x, y).mean(),
    "divided by the size": lambda x, y: squared(x, y).sum(1) / x.shape[0],
    "nearest both ways": both_ways,
    "logsumexp both ways": lambda x, y: (torch.logsumexp(-squared(x, y), 1), torch.logsumexp(-squared(x, y), 0)),
    "topk over rows and columns": lambda x, y: (squared(x, y).topk(3, 0), squared(x, y).topk(3, 1, largest=False)),
    "with itself": lambda x, _: torch.exp(-squared(x, x)).sum(1),
    "gram of itself": lambda x, _: (x @ x.T).max(1),
    "attention": lambda x, y: torch.softmax(x @ y.T, -1) @ y,
    "softmax over the other side": lambda x, y: torch.softmax(x @ y.T, 0).sum(1),
    "cdist and matmul": lambda x, y: torch.exp(-(torch.cdist(x, y) ** 2)) @ y,
    "summed by a product": lambda x, y: x.T @ torch.exp(-squared(x, y)),
    "balanced in two passes": balanced,
    "standardized": standardized,
    "assignment inside": assigned,
    "positions": below_diagonal,
    "cosine similarity": lambda x, y: torch.cosine_similarity(x[:, None], y[None], -1).topk(4),
    "sorted along the other dimension": lambda x, y: squared(x, y).sort(1).values[:, 3],
    "gradient stopped inside": lambda x, y: squared(x, y).sum(1) * squared(x, y).detach().sum(1),
}


@pytest.mark.parametrize("name", STREAMED)
def test_values_and_gradients_are_the_plain_functions(name):
    x, y = points(400, requires_grad=True), points(300, requires_grad=True)
    function = STREAMED[name]
    call = lean(function)
    result, expected = call(x, y), function(x, y)
    assert call.plan().strategy == "streamed", call.plan()
    assert_equal(result, expected)
    wanted = [t for t, g in zip((x, y), _used(expected, (x, y)), strict=True) if g]
    for found, right in zip(gradients(result, wanted), gradients(expected, wanted), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-3)


def _used(result, tensors):
    made = sum(leaf.sum() for leaf in pytree.tree_leaves(result) if leaf.requires_grad)
    return [g is not None for g in torch.autograd.grad(made, tensors, allow_unused=True, retain_graph=True)]


@pytest.mark.parametrize("name", ["gaussian sum", "nearest both ways", "topk over rows and columns", "attention"])
def test_the_allocators_peak_is_within_the_budget(name):
    x, y, function = points(600), points(500), STREAMED[name]
    call = lean(function, "512KiB")
    call(x, y)
    peak = torch_allocator_peak_bytes(lambda: call(x, y))
    plain = torch_allocator_peak_bytes(lambda: function(x, y))
    assert peak <= 512 * 1024 < plain
    assert call.plan().peak_before_bytes > 512 * 1024 >= call.plan().peak_after_bytes


def test_a_backward_pass_keeps_nothing_of_the_matrix():
    x, y = points(1000, requires_grad=True), points(800, requires_grad=True)
    call = lean(STREAMED["gaussian sum"], "1MiB")
    call(x, y)
    grads_bytes = (x.numel() + y.numel()) * 4

    def run():
        torch.autograd.grad(call(x, y).sum(), [x, y])

    assert torch_allocator_peak_bytes(run) <= (1 << 20) + grads_bytes < 1000 * 800 * 4


def test_large_results_are_put_together_with_the_plain_strides():
    x, y = points(400), points(300)
    for function in (lambda x, y: torch.exp(-squared(x, y)), lambda x, y: torch.exp(-squared(x, y)).T):
        call = lean(function, "1MiB")
        result, expected = call(x, y), function(x, y)
        assert call.plan().strategy == "streamed"
        assert_equal(result, expected)
        assert result.stride() == expected.stride()


def test_cross_entropy_with_its_usual_options():
    hidden, weight = points(400, 8, requires_grad=True), points(500, 8, requires_grad=True)
    target = torch.randint(500, (400,))
    for options in ({}, {"label_smoothing": 0.1, "ignore_index": int(target[0])}, {"reduction": "none"}):

        def loss(h, w, t, options=options):
            return functional.cross_entropy(h @ w.T, t, **options)

        call = lean(loss, "512KiB")
        result, expected = call(hidden, weight, target), loss(hidden, weight, target)
        assert call.plan().strategy == "streamed", call.plan()
        assert_equal(result, expected)
        assert_equal(gradients(result, [hidden, weight]), gradients(expected, [hidden, weight]))


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"padding_idx": -1}, {"scale_grad_by_freq": True}, {}])
def test_an_embedding_keeps_what_is_said_of_its_gradient(options):
    """The row of padding has none."""
    table = torch.randn(50, 64, requires_grad=True)
    index = torch.cat([torch.randint(0, 50, (3000,)), torch.zeros(1500, dtype=torch.long), torch.full((500,), 49)])

    def loss(index, table):
        return functional.embedding(index, table, **options).square().sum(-1)

    expected = torch.autograd.grad(loss(index, table).sum(), table)
    found = torch.autograd.grad(quietly(lean(loss), index, table).sum(), table)
    assert_equal(found, expected)


def test_picking_a_class_by_row_number():
    def loss(h, w, t):
        return -torch.log_softmax(h @ w.T, -1)[torch.arange(h.shape[0]), t].mean()

    given = points(400, 8), points(500, 8), torch.randint(500, (400,))
    call = lean(loss)
    assert_equal(call(*given), loss(*given))
    assert call.plan().strategy == "streamed"


NOT_STREAMED = {
    "scans along both": (lambda x, y: squared(x, y).cumsum(0).cumsum(1).sum(1), "aten.cumsum mixes"),
    "a flip": (lambda x, y: squared(x, y).flip(0, 1).sum(1), "aten.flip mixes"),
    "sorts along both": (lambda x, y: squared(x, y).sort(0).values.sort(1).values[:, 1], "aten.sort mixes"),
    "batch norm in training": (
        lambda x, y: functional.batch_norm(squared(x, y), None, None, training=True).sum(1),
        "_native_batch_norm_legit has no rule",
    ),
    "values that decide": (
        lambda x, y: squared(x, y).sum(1) if x.sum().item() > 0 else squared(x, y).sum(0),
        "depends on the values",
    ),
    "an input written": (lambda x, y: squared(x.add_(0), y).sum(1), "writes into a tensor"),
    "a mask that picks": (lambda x, y: squared(x, y)[squared(x, y) > 1].sum(), "depends on"),
}


@pytest.mark.parametrize("name", NOT_STREAMED)
def test_what_cannot_be_streamed_runs_as_it_is_and_says_why(name):
    function, reason = NOT_STREAMED[name]
    x, y = points(400), points(300)
    call = lean(function)
    with pytest.warns(LeanWarning, match="as it is"):
        result = call(x, y)
    assert_equal(result, function(x, y))
    assert call.plan().strategy == "as it is"
    assert reason in call.plan().reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(x, y)


def test_a_scan_is_never_cut_along_its_own_dimension():
    x, y = points(400), points(300)
    for dim in (0, 1):

        def scan(x, y, dim=dim):
            return squared(x, y).cumsum(dim).sum(1)

        call = lean(scan)
        assert_equal(call(x, y), scan(x, y))
        assert f"combined over dimension {1 - dim}" in call.plan().loops[0] or dim == 1


def test_random_numbers_are_the_plain_functions():
    x, y = points(400), points(300)

    def noisy(x, y):
        return (squared(x, y) * torch.rand(x.shape[0], y.shape[0])).sum(1)

    call = lean(noisy)
    torch.manual_seed(1)
    result = quietly(call, x, y)
    assert "random" in call.plan().reason
    quietly(call, x, y)
    torch.manual_seed(1)
    assert_equal(quietly(call, x, y), result)


def test_gradients_switched_off_inside_are_respected():
    x, y = points(400, requires_grad=True), points(300, requires_grad=True)

    def weighted(x, y):
        with torch.no_grad():
            weight = squared(x, y).sum(1)
        return squared(x, y).sum(1) * weight

    call = lean(weighted)
    found = gradients(quietly(call, x, y), [x, y])
    assert_equal(found, gradients(weighted(x, y), [x, y]))
    assert "switches gradients off" in call.plan().reason
    with torch.no_grad():
        assert_equal(call(x, y), weighted(x, y))
    assert call.plan().strategy == "streamed"


@pytest.mark.parametrize(
    "given",
    [
        (points(5, 400).T, points(300, 10)[:, ::2]),
        (points(1), points(9_000)),
        (points(0), points(300)),
        (points(400).bfloat16(), points(300).bfloat16()),
        (points(400).double(), points(300).double()),
        (points(400).nan_to_num() / torch.zeros(1), points(300)),
    ],
    ids=["strided", "one row", "empty", "bfloat16", "float64", "infinite and NaN"],
)
def test_unusual_tensors(given):
    call = lean(STREAMED["nearest both ways"])
    if len(given[0]):
        assert_equal(call(*given), both_ways(*given))
    total = STREAMED["gaussian sum"]
    assert_equal(lean(total)(*given), total(*given))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x[:, None] * y[None]).sum(),
        lambda x, y: (x[:, None] * y[None]).mean((0, 2)),
        lambda x, y: torch.linalg.vector_norm(x[:, None] * y[None], 2, (0, 2)),
        lambda x, y: (x[:, None] * y[None]).sum(-1).sin().T @ x,
    ],
    ids=["sum", "mean", "norm", "product"],
)
def test_half_precision_is_as_near_to_float64_as_torch_itself(function, dtype):
    """Over hundreds of tiles: values where the tiles' sums cancel, gradients where they do not (autograd rounds what a
    tile gives to a tensor that it reads whole)."""
    x, y = points(6000, 4), torch.rand(60, 4).to(dtype)
    far = torch.where(torch.arange(6000)[:, None] < 3000, 2.0, -2.0)
    call = lean(function, "64KiB")
    for given, wanted in (((x + far).to(dtype), []), (x.to(dtype), [0, 1])):
        found, plain, truth = (
            _with_gradients(f, (given, y), kind, wanted)
            for f, kind in ((call, dtype), (function, dtype), (function, torch.float64))
        )
        assert call.plan().strategy == "streamed", call.plan()
        assert "combined over" in call.plan().loops[0]
        for one, other, right in zip(found, plain, truth, strict=True):
            error, own = ((t.double() - right).abs().max().nan_to_num() for t in (one, other))
            assert error <= 1.5 * own + torch.finfo(dtype).eps * right.abs().max()


def _with_gradients(call, tensors, kind, wanted):
    given = [t.to(kind).requires_grad_(i in wanted) for i, t in enumerate(tensors)]
    result = call(*given)
    if not wanted:
        return [result]
    return [result.detach(), *torch.autograd.grad(result, given, torch.ones_like(result))]


def test_arguments_and_results_of_any_structure():
    def function(x, *, others, scale=1.0, flag=True):
        near = torch.exp(-squared(x, others["y"]) * scale).sum(1)
        return {"near": near, "sizes": (x.shape[0] * 2, flag), "nothing": None, "given": x}

    x, y = points(400), points(300)
    call = lean(function)
    result = call(x, others={"y": y}, scale=0.5)
    assert_equal(result, function(x, others={"y": y}, scale=0.5))
    assert call.plan().strategy == "streamed"
    assert result["given"] is x
    assert_equal(call(x, others={"y": y}, scale=0.25), function(x, others={"y": y}, scale=0.25))


def test_other_sizes_are_not_traced_again(monkeypatch):
    traced, real = [], kind_module.capture

    def counted(*args, **options):
        traced.append(options)
        return real(*args, **options)

    monkeypatch.setattr(kind_module, "capture", counted)

    def centred(x, y):  # made whole where it is small against the budget, cut where it is large
        return squared(x - x.mean(0), y).sum(1)

    sizes = {
        STREAMED["gaussian sum"]: ((400, 300), (401, 300), (1000, 77), (256, 2048), (9, 3000), (3000, 9)),
        centred: ((800, 200), (20_000, 200), (800, 200)),
    }
    for function, given in sizes.items():
        call = lean(function)
        traced.clear()
        for rows, columns in given:
            x, y = points(rows), points(columns)
            assert_equal(call(x, y), function(x, y))
            assert call.plan().strategy == "streamed"
        assert len(traced) == 1


def test_a_plan_keeps_no_tensor_of_the_call_alive():
    x, y = points(400), points(300)
    call, seen = lean(both_ways), weakref.ref(x)
    call(x, y)
    del x
    gc.collect()
    assert seen() is None


def test_sizes_that_decide_inside_get_their_own_graph():
    def function(x, y):
        return squared(x, y).sum(1) if x.shape[0] > 350 else squared(x, y).sum(1) * 2

    call = lean(function)
    for rows in (400, 300, 500, 200):
        x, y = points(rows), points(300)
        assert_equal(call(x, y), function(x, y))
        assert call.plan().strategy == "streamed"


def test_changed_surroundings_are_seen():
    scale, weight = 1.0, nn.Parameter(points(5))

    def function(x, y):
        return torch.exp(-squared(x @ weight, y @ weight) * scale).sum(1)

    x, y = points(400), points(300)
    call = lean(function)
    assert_equal(call(x, y), function(x, y))
    scale = 0.5
    assert_equal(call(x, y), function(x, y))
    with torch.no_grad():
        weight.mul_(2)
    assert_equal(call(x, y), function(x, y))
    assert call.plan().strategy == "streamed"
    (found,) = gradients(call(x, y), [weight])
    (expected,) = gradients(function(x, y), [weight])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_changes_deep_in_a_module_are_seen():
    net = nn.Sequential(nn.Sequential(nn.LeakyReLU(0.1)), nn.Identity())
    x, y, call = points(400), points(300), lean(lambda x, y: net(-squared(x, y)).sum(1))

    def check():
        assert_equal(call(x, y), net(-squared(x, y)).sum(1))
        assert call.plan().strategy == "streamed"

    check()
    net[0][0].negative_slope = 0.5
    check()
    hook = net[1].register_forward_hook(lambda *given: given[-1] * 3)
    check()
    hook.remove()
    check()


def test_what_autocast_leaves_alone_stays_as_it_is():
    weight = points(5)

    def function(x, y):
        with torch.autocast("cpu", enabled=False):
            z = x @ weight
        return squared(z, y).sum(1)

    x, y, call = points(400), points(300), lean(function)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            assert_equal(call(x, y), function(x, y))
            assert call.plan().strategy == "streamed"


def test_results_without_a_gradient_have_none():
    def function(x, y):
        distance = squared(x, y)
        return distance.detach().sum(1), (distance > 1).float().sum(1), distance.sum(1)

    x, y, call = points(400, requires_grad=True), points(300), lean(function)
    for _ in range(2):
        found, expected = call(x, y), function(x, y)
        assert call.plan().strategy == "streamed"
        assert [tensor.requires_grad for tensor in found] == [False, False, True]
        assert_equal([tensor.detach() for tensor in found], [tensor.detach() for tensor in expected])
        assert_equal(gradients(found[2], [x]), gradients(expected[2], [x]))


def test_the_sign_of_a_zero_is_seen():
    call = lean(lambda x, y, by: (squared(x, y) / by).amax(1))
    x, y = points(400), points(300)
    assert (call(x, y, 0.0) > 0).all()
    assert (call(x, y, -0.0) < 0).all()


def test_a_device_and_a_shape_are_known_by_their_values():
    x, y = points(400), points(300)
    call = lean(lambda x, y, device, shape: squared(x, y).to(device).sum(1) + shape[1])
    for _ in range(2):
        call(x, y, torch.device("cpu"), torch.Size([400, 300]))
    assert len(call._kinds) == 1


@togi.lean(memory="256KiB", compile=False)
def nearest(x, y):
    return squared(x, y).min(1).values


class Nearest(nn.Module):
    def __init__(self):
        super().__init__()
        self.distance = lean(squared)

    @togi.lean(memory="256KiB", compile=False)
    def forward(self, x, y):
        return self.distance(x, y).min(1).values


def test_copies_and_pickles():
    """As functions: what was decorated is found by its name."""
    x, y, module = points(400), points(300), Nearest()
    expected = module(x, y)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_equal(other(x, y), expected)
        assert other.distance is not module.distance
    assert pickle.loads(pickle.dumps(nearest)) is nearest
    assert copy.deepcopy(nearest) is nearest


WIDTH = 1.0


def in_a_lambda(x, y):
    return (lambda distance: torch.exp(-distance * WIDTH))(squared(x, y)).sum(1)


def in_a_generator(x, y):
    return next(torch.exp(-squared(x, y) * WIDTH) for _ in [0]).sum(1)


def in_a_generator_in_a_function(x, y):
    def kernel():
        return next(torch.exp(-squared(x, y) * WIDTH) for _ in [0])

    return kernel().sum(1)


@pytest.mark.parametrize("function", [in_a_lambda, in_a_generator, in_a_generator_in_a_function])
def test_a_changed_global_that_a_function_inside_reads_is_seen(function, monkeypatch):
    x, y, call = points(400), points(300), lean(function)
    assert_equal(call(x, y), function(x, y))
    monkeypatch.setattr(sys.modules[__name__], "WIDTH", 0.5)
    assert_equal(call(x, y), function(x, y))
    assert call.plan().strategy == "streamed"


def test_modules_and_methods():
    module = nn.Sequential(nn.Linear(5, 300), nn.LayerNorm(300), nn.GELU(), nn.Linear(300, 4))
    call, x = lean(module, "512KiB"), points(4000)
    assert_equal(call(x), module(x))
    assert call.plan().strategy == "streamed"

    class Kernel:
        def __init__(self):
            self.width = 2.0

        @togi.lean(memory="256KiB", compile=False)
        def total(self, x, y):
            """Sums."""
            return torch.exp(-squared(x, y) / self.width).sum(1)

    kernel, y = Kernel(), points(300)
    assert Kernel.total.__doc__ == "Sums."
    for width in (2.0, 3.0):
        kernel.width = width
        assert_equal(kernel.total(x[:400], y), torch.exp(-squared(x[:400], y) / width).sum(1))


def test_one_inside_another_is_taken_apart():
    inner = lean(lambda x, y: squared(x, y).min(1).values)
    outer = lean(lambda x, y: inner(x, y).mean() + inner(y, x).mean())
    x, y = points(400), points(300)
    assert_equal(outer(x, y), squared(x, y).min(1).values.mean() + squared(y, x).min(1).values.mean())
    assert outer.plan().strategy == "streamed"


def test_threads_share_one_function():
    call, results = lean(STREAMED["nearest both ways"]), {}
    given = {i: (points(300 + 10 * i), points(200)) for i in range(6)}

    def work(i):
        results[i] = call(*given[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, tensors in given.items():
        assert_equal(results[i], both_ways(*tensors))


def test_transforms_of_torch_see_the_plain_function():
    call = lean(lambda x, y: torch.exp(-squared(x, y)).sum(1))
    x, y = points(40), points(30)
    expected = torch.exp(-squared(x, y)).sum(1)
    found = torch.func.vmap(lambda row: call(row[None], y)[0])(x)
    assert_equal(found, expected)


@pytest.mark.parametrize("memory", ["much", "-3MiB", "0", 0, -1, True, 1.5, "64 miles", ""])
def test_a_budget_that_is_not_a_size_is_refused(memory):
    with pytest.raises(togi.TogiError, match="memory="):
        togi.lean(both_ways, memory=memory)


def test_a_budget_below_the_result():
    call = togi.lean(lambda x, y: squared(x, y), memory="100KiB", compile=False)
    with pytest.raises(togi.TogiError, match=r"less than the result itself, which is 469 KiB"):
        call(points(400), points(300))


def test_a_budget_below_one_row():
    call = lean(lambda x, y: (x @ y.T).softmax(1).sort(1).values.sum(1), "4KiB")
    x, y = points(100), points(5000)
    assert_equal(quietly(call, x, y), (x @ y.T).softmax(1).sort(1).values.sum(1))
    assert call.plan().strategy == "as it is"
    assert "needs more than 4.00 KiB" in call.plan().reason


def test_an_error_of_the_user_is_remembered_for_nothing():
    call = lean(lambda x, y: torch.cdist(x, y, p=1).topk(8, largest=False), "64KiB")
    x, y = points(400), points(300)
    for _ in range(2):
        assert_equal(call(x, y), torch.cdist(x, y, p=1).topk(8, largest=False))
        assert call.plan().strategy == "streamed"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeError, match="out of range"):
                call(x, points(5))


def test_an_error_by_values_is_the_users_and_no_refusal():
    def picked(x, y, index):
        return torch.exp(-squared(x, y[index])).sum(1)

    call, given = lean(picked), (points(400), points(300))
    good, bad = torch.arange(300), torch.full((300,), 300)
    assert_equal(call(*given, good), picked(*given, good))
    with pytest.raises(IndexError):
        call(*given, bad)
    assert_equal(call(*given, good), picked(*given, good))
    assert call.plan().strategy == "streamed"


def test_a_refusal_holds_for_the_sizes_that_it_is_true_of():
    def function(x, y):
        if x.shape[0] > 500:
            return squared(x, y).sum(1) * x.sum().item()
        return squared(x, y).sum(1)

    call, y = lean(function), points(300)
    for rows, streamed in ((400, True), (600, False), (450, True), (700, False), (400, True)):
        x = points(rows)
        assert_equal(quietly(call, x, y), function(x, y))
        assert (call.plan().strategy == "streamed") is streamed, call.plan()


@pytest.mark.parametrize("budget", ["64KiB", "16MiB"])
def test_an_operation_on_large_inputs_may_be_given_a_number_that_values_decide(budget):
    """What it takes for itself cannot be measured beforehand."""

    def function(x):
        scale = x[0, 0].item()
        return torch.addmm(x[:, :3], x, x[:64, :3], alpha=scale), x.logsumexp(1) + scale

    x = points(3000, 64)
    assert_equal(quietly(lean(function, budget), x), function(x))


def test_one_warning_for_each_kind_of_call_and_reason():
    call = lean(lambda x, y: squared(x, y).flip(0, 1).sum(1))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for x, y in ((points(400), points(300)), (points(500), points(300)), (points(400).double(), points(300))):
            call(x, y)
    assert len(told) == 2


def test_tensors_that_are_not_dense_are_reported():
    call = lean(lambda a, x: torch.sparse.mm(a, x).sum(1))
    a, x = torch.eye(9).to_sparse(), torch.ones(9, 2)
    with pytest.warns(LeanWarning, match="not dense"):
        assert_equal(call(a, x), torch.full((9,), 2.0))


def test_what_fits_is_left_alone():
    call, x, y = lean(both_ways, "1GiB"), points(40), points(30)
    assert_equal(call(x, y), both_ways(x, y))
    assert call.plan().strategy == "whole"


def test_the_plan_reads_like_a_report():
    call = lean(box_iou, "8MiB")
    assert "not been called" in str(call.plan())
    call(boxes(2000), boxes(500))
    text = str(call.plan())
    for part in ("streamed", "2000 x 4, 500 x 4", "peak before", "peak after", "tiles of", "proof"):
        assert part in text


def test_import_is_light():
    code = "import togi, sys; import togi.tiling; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.thorough
def test_compiled_tiles_are_proven_and_kept_within_a_compiled_function():
    x, y = boxes(3000), boxes(200)

    @togi.lean(memory="2MiB", compile=True)
    def best(a, b):
        return box_iou(a, b).max(1)

    assert_equal(best(x, y), box_iou(x, y).max(1))
    assert "compiled" in best.plan().loops[0]
    assert_equal(best(x[:777], y), box_iou(x[:777], y).max(1))
    outside = torch.compile(lambda a, b: best(a, b)[0] + 1, backend="eager")
    assert_equal(outside(x, y), box_iou(x, y).max(1).values + 1)


def test_without_a_compiler_the_plain_tiles_go_on(monkeypatch):
    def broken(*_args, **_kwargs):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", broken)
    call = togi.lean(both_ways, memory="256KiB", compile=True)
    x, y = points(400), points(300)
    assert_equal(call(x, y), both_ways(x, y))
    assert "not compiled: RuntimeError: no C++ compiler" in call.plan().loops[0]


def test_the_bare_decorator_has_a_budget_of_64_mib():
    @togi.lean
    def total(x, y):
        return squared(x, y).sum(1)

    @togi.lean()
    def called(x, y):
        return squared(x, y).sum(1)

    x, y = points(50), points(40)
    for function in (total, called):
        assert_equal(function(x, y), squared(x, y).sum(1))
        assert function.plan().budget_bytes == 64 << 20
