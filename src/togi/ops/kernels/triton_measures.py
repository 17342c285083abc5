# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""``ops.measures`` in Triton, with the bits of eager."""

import triton
import triton.language as tl

_NAN: tl.constexpr = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def corners(data, rows, inside, row_stride, step, FORMAT: tl.constexpr, DTYPE: tl.constexpr):
    """Corners and area of boxes, read as ``togi.ops.measures`` does."""
    at = data + rows.to(tl.int64) * row_stride
    a = tl.load(at, mask=inside, other=0.0).to(DTYPE)
    b = tl.load(at + step, mask=inside, other=0.0).to(DTYPE)
    c = tl.load(at + 2 * step, mask=inside, other=0.0).to(DTYPE)
    d = tl.load(at + 3 * step, mask=inside, other=0.0).to(DTYPE)
    if FORMAT == 0:
        return a, b, c, d, (c - a) * (d - b)
    elif FORMAT == 1:
        return a, b, a + c, b + d, c * d
    else:
        return a - c * 0.5, b - d * 0.5, a + c * 0.5, b + d * 0.5, c * d


@triton.jit
def _quotient(x, y):
    if x.dtype == tl.float32:
        return tl.div_rn(x, y)
    else:
        return x / y


@triton.jit
def _share(overlap, union):
    """overlap / union. Most pairs of boxes share nothing, and a rounded division of zero is not the fast one: it is
    replaced by one of a number so small that nothing overflows, whose product with that zero is the same."""
    none = overlap == 0
    ratio = _quotient(tl.where(none, 8.673617379884035e-19, overlap), union)  # 2**-60
    return tl.where(none, ratio * overlap, ratio)


@triton.jit
def _extent(low1, high1, low2, high2):
    size = tl.minimum(high1, high2, propagate_nan=_NAN) - tl.maximum(low1, low2, propagate_nan=_NAN)
    return tl.maximum(size, 0.0, propagate_nan=_NAN)


@triton.jit
def _hull(low1, high1, low2, high2):
    size = tl.maximum(high1, high2, propagate_nan=_NAN) - tl.minimum(low1, low2, propagate_nan=_NAN)
    return tl.maximum(size, 0.0, propagate_nan=_NAN)


@triton.jit
def measure(a, b, KIND: tl.constexpr, ZERO: tl.constexpr):
    """One of ``ops.measures.KINDS``, but not the last: ``a`` is the rows' corners and area, ``b`` the columns'."""
    ax1, ay1, ax2, ay2, area1 = a[0][:, None], a[1][:, None], a[2][:, None], a[3][:, None], a[4][:, None]
    bx1, by1, bx2, by2, area2 = b[0][None, :], b[1][None, :], b[2][None, :], b[3][None, :], b[4][None, :]
    overlap = _extent(ax1, ax2, bx1, bx2) * _extent(ay1, ay2, by1, by2)
    if KIND == 0:
        return overlap
    else:
        union = (area1 + area2) - overlap
        iou = _share(overlap, union)
        if KIND == 1:
            if ZERO:
                return tl.where(overlap > 0, iou, 0.0)
            else:
                return iou
        else:
            width = _hull(ax1, ax2, bx1, bx2)
            height = _hull(ay1, ay2, by1, by2)
            if KIND == 2:
                hull = width * height
                return iou - _quotient(hull - union, hull)
            else:
                x = (ax1 + ax2) * 0.5 - (bx1 + bx2) * 0.5
                y = (ay1 + ay2) * 0.5 - (by1 + by2) * 0.5
                return iou - _quotient(x * x + y * y, width * width + height * height + 1e-7)
