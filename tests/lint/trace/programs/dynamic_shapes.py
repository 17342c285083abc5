"""Sizes that depend on values, and indexing that looks like it."""

import torch
import torch.nn.functional as F


def nonzero(x):
    rows = torch.nonzero(x > 0)  # sync
    return rows


def where_with_one_argument(x):
    rows, columns = torch.where(x > 0)  # sync
    return rows + columns


def where_with_three_arguments(x):
    return torch.where(x > 0, x, 0.0)


def boolean_index(x):
    return x[x > 0]  # sync


def integer_index_on_the_device(x):
    order = x[:, 0].argsort()
    return x[order]


def integer_index_from_the_host(x):
    order = torch.tensor([2, 0, 1])
    return x[order]  # sync


def list_index(x):
    return x[[0, 2]]  # sync


def slices_and_numbers(x):
    return x[0], x[1:3], x[..., -1], x[None], x[:, ::2]


def index_by_a_device_scalar(x):
    best = x[:, 0].argmax()
    return x[best]  # sync


def index_select_by_a_device_scalar(x):
    best = x[:, 0].argmax()
    return x.index_select(0, best.reshape(1)).squeeze(0)


def masked_select(x):
    return torch.masked_select(x, x > 0).sum()  # sync


def masked_fill(x):
    return x.masked_fill(x < 0, 0.0)


def masked_fill_with_a_device_value(x):
    return x.masked_fill(x < 0, x.mean())  # sync


def writing_a_number_by_mask(x):
    y = x.clone()
    y[y < 0] = 0.0
    return y


def writing_a_tensor_by_mask(x):
    y = x.clone()
    y[y < 0] = x.mean()  # sync
    return y


def writing_by_positions(x):
    y = x.clone()
    y[y[:, 0].argsort()] = x
    y[0] = 1.0
    y[:, 1] = x[:, 0]
    return y


def unique_values(x):
    labels = (x > 0).long()
    values, counts = torch.unique(labels, return_counts=True)  # sync
    return values * counts


def unique_consecutive(x):
    return torch.unique_consecutive((x[:, 0] > 0).long())  # sync


def sorting_and_top_k(x):
    return torch.sort(x), torch.topk(x, 2), torch.cumsum(x, 0), x.median()


def bincount(x):
    return torch.bincount((x[:, 0] > 0).long(), minlength=2)  # sync


def counting_by_scatter(x):
    labels = (x[:, 0] > 0).long()
    return torch.zeros(2, device=x.device).scatter_add_(0, labels, torch.ones_like(x[:, 0]))


def repeat_interleave_by_counts(x):
    counts = (x[:, 0] > 0).long() + 1
    return torch.repeat_interleave(x, counts, dim=0)  # sync


def repeat_interleave_of_known_size(x):
    counts = torch.ones(x.shape[0], dtype=torch.long, device=x.device)
    return torch.repeat_interleave(x, counts, dim=0, output_size=x.shape[0])


def repeat_interleave_by_a_number(x):
    return torch.repeat_interleave(x, 2, dim=0)


def one_hot_of_unknown_width(x):
    return F.one_hot((x[:, 0] > 0).long())  # sync


def one_hot_of_known_width(x):
    return F.one_hot((x[:, 0] > 0).long(), num_classes=2)


def quantiles(x):
    return torch.quantile(x, 0.5), torch.nanquantile(x, 0.5)


def histogram_without_range(x):
    return torch.histc(x, bins=4)  # sync


def histogram_with_range(x):
    return torch.histc(x, bins=4, min=-3, max=3)


def inverse_with_check(x):
    square = x.T @ x + torch.eye(4, device=x.device)
    return torch.linalg.inv(square)  # sync


def inverse_without_check(x):
    square = x.T @ x + torch.eye(4, device=x.device)
    return torch.linalg.inv_ex(square).inverse


def drawing(x):
    return torch.multinomial(x.softmax(-1), 1), torch.randperm(8, device=x.device), F.dropout(x, 0.5, training=True)


def attention_with_mask(x):
    q = x.reshape(1, 1, *x.shape)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def interpolation_and_padding(x):
    return F.interpolate(x[None, None], scale_factor=2, mode="bilinear"), F.pad(x, (1, 1))
