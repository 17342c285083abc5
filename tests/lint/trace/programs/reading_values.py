"""The host reads a value, or something that looks like it.

In this folder a function of ``x`` is a forward pass; one without arguments makes a subject. ``# sync`` ends every line
on which the host waits for the GPU, ``# sync unseen`` those that ``torch.cuda.set_sync_debug_mode`` does not report,
and ``# sync unseen before 2.15`` those that it reports from that torch on.
"""

import copy
import math
import pickle

import numpy as np
import torch


def item_of_a_sum(x):
    total = x.sum()
    scale = total.item()  # sync
    return x * scale


def scale_by_a_sum_without_reading_it(x):
    total = x.sum()
    return x * total


def if_on_a_comparison(x):
    if x.sum() > 0:  # sync
        x = x + 1
    return x


def if_on_a_shape(x):
    if x.shape[0] > 2 and x.ndim == 2 and x.numel() > 3 and len(x) > 1:
        x = x + 1
    return x


def where_instead_of_if(x):
    return torch.where(x.sum() > 0, x + 1, x)


def if_none_or_dtype_or_device(x):
    bias = None
    if bias is None and x.dtype == torch.float32 and x.device.type == "cuda" and x.is_cuda:
        x = x + 1
    return x


def float_of_a_tensor(x):
    return x / float(x.norm())  # sync


def float_of_a_shape(x):
    return x / math.sqrt(float(x.shape[-1]))


def int_of_a_maximum(x):
    width = int(x.abs().max()) + 1  # sync
    return torch.zeros(width, device=x.device)


def assert_on_values(x):
    assert not torch.isnan(x).any(), "NaN"  # sync
    return x


def assert_on_a_shape(x):
    assert x.shape[-1] == 4, x.shape
    return x


def any_over_a_tensor(x):
    return torch.isnan(x).any()


def tolist_of_a_row(x):
    values = x[0].tolist()  # sync
    return sum(values)


def shape_as_a_list(x):
    sizes = list(x.shape)
    return x.reshape(sizes[::-1])


def while_on_a_tensor(x):
    while x.abs().max() > 0.5:  # sync
        x = x / 2
    return x


def while_on_a_number(x):
    count = 3
    while count > 0:
        x, count = x / 2, count - 1
    return x


def not_and_or(x):
    ready = x.sum() > 0
    if not ready:  # sync
        return x
    return x.mean()


def logical_not_stays_there(x):
    ready = x.sum() > 0
    return torch.logical_not(ready) & (x > 0)


def ternary(x):
    y = x * 2
    return y if y.mean() > 0 else -y  # sync


def iterating_rows_only(x):
    return sum(row * 2 for row in x)


def iterating_and_comparing(x):
    kept = []
    for row in x:
        if row.sum() > 0:  # sync
            kept.append(row)
    return kept


def membership(x):
    return 3.0 in x  # sync


def membership_in_a_list_of_numbers(x):
    return x * 2 if x.shape[0] in [2, 6] else x


def format_of_a_tensor(x):
    message = f"loss {x.mean():.3f}"  # sync
    return message


def format_of_a_shape(x):
    return f"{tuple(x.shape)} on {x.device} of {x.dtype}"


def printing_a_tensor(x):
    text = str(x)  # sync
    return text


def range_over_a_tensor(x):
    count = (x > 100).sum()
    for _ in range(count):  # sync
        x = x + 1
    return x


def slice_by_a_tensor(x):
    length = (x[:, 0] > -100).sum()
    return x[:length]  # sync


def slice_by_a_number(x):
    length = x.shape[0] // 2
    return x[:length]


def equality_of_tensors(x):
    same = torch.equal(x, x + 0)  # sync
    close = torch.allclose(x, x)  # sync
    return same, close


def equality_that_no_value_decides(x):
    return torch.equal(x, x.detach()), torch.equal(x, x[:1]), torch.equal(x[:0], x[:0] + 1)


def elementwise_equality(x):
    return torch.eq(x, x), torch.isclose(x, x)


def numpy_by_force(x):
    return np.sum(x.numpy(force=True))  # sync


def numpy_of_a_host_tensor(x):
    table = torch.arange(4.0)
    return x * float(table.numpy().sum()) * table[1].item()


def comprehension_condition(x):
    return [row for row in x if bool(row[0] > 0)]  # sync


def minimum_of_two_tensors(x):
    return min(x.min(), x.max())  # sync


def minimum_elementwise(x):
    return torch.minimum(x.min(), x.max())


def deep_copy_stays_there(x):
    y = copy.deepcopy(x)
    return y + x


def pickling(x):
    data = pickle.dumps(x)  # sync
    return len(data)


def item_of_a_host_scalar(x):
    steps = torch.tensor(3.0)
    return x * steps.item() if steps > 2 else x


def power_of_a_device_scalar(x):
    return x.clamp(min=x.mean()) ** x.mean()


def alpha_from_the_device(x):
    return torch.add(x, x, alpha=x.mean())  # sync


def clone_of_a_python_number(x):
    return torch.full((3,), 2.0, device=x.device) + torch.scalar_tensor(1.0, device=x.device)
