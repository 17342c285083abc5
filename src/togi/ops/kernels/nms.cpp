// Greedy non-maximum suppression without a matrix. Built and called by native.py.
//
// A box is kept unless a kept box before it (higher score) overlaps it by more than the threshold. Which kept box says so
// does not matter, so the boxes are taken a block at a time: first the whole block against all that is kept, many boxes of
// the block to a vector, leaving off where none is left; then inside of the block in order. The values compared are
// torchvision's, operation by operation (contraction is off), so the decisions are too.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr int BLOCK = 64;  // its corners and flags stay in registers and the first-level cache
constexpr int64_t BOXES_PER_THREAD = 1 << 10;  // below this, starting a thread costs more than it brings

template <class C>
struct Planes {  // [5, count] in memory: corners and area, by falling score within each segment
  const C *x1, *y1, *x2, *y2, *area;

  Planes(const C* data, int64_t count)
      : x1(data), y1(data + count), x2(data + 2 * count), y2(data + 3 * count), area(data + 4 * count) {}
};

// Sets ``gone[lane]`` for the boxes from ``first`` that box ``by`` suppresses; returns how many of ``count`` are gone. std::max
// and std::min keep their first argument where the other is NaN; the area is NaN as well then, and nothing is decided.
template <class C>
int suppress(const Planes<C>& boxes, int64_t by, int64_t first, int count, C threshold, uint8_t* __restrict gone) {
  C x1 = boxes.x1[by], y1 = boxes.y1[by], x2 = boxes.x2[by], y2 = boxes.y2[by], area = boxes.area[by];
  const C *bx1 = boxes.x1 + first, *by1 = boxes.y1 + first, *bx2 = boxes.x2 + first, *by2 = boxes.y2 + first;
  const C* other = boxes.area + first;
  int sum = 0;
#pragma GCC ivdep
  for (int lane = 0; lane < count; ++lane) {
    C width = std::max(C(0), std::min(x2, bx2[lane]) - std::max(x1, bx1[lane]));
    C height = std::max(C(0), std::min(y2, by2[lane]) - std::max(y1, by1[lane]));
    C overlap = width * height;
    gone[lane] |= uint8_t(overlap / (area + other[lane] - overlap) > threshold);
    sum += gone[lane];
  }
  return sum;
}

// Fills kept[from, until): the boxes of one class.
template <class C>
void run_segment(const Planes<C>& boxes, int64_t from, int64_t until, C threshold, bool* kept, std::vector<int64_t>& found) {
  found.clear();
  for (int64_t first = from; first < until; first += BLOCK) {
    int count = int(std::min<int64_t>(BLOCK, until - first)), left_out = 0;
    uint8_t gone[BLOCK] = {};
    for (size_t at = 0; at < found.size() && left_out < count; ++at)
      left_out = suppress(boxes, found[at], first, count, threshold, gone);
    for (int lane = 0; lane < count; ++lane) {
      kept[first + lane] = !gone[lane];
      if (gone[lane]) continue;
      found.push_back(first + lane);
      suppress(boxes, first + lane, first + lane + 1, count - lane - 1, threshold, gone + lane + 1);
    }
  }
}

template <class C>
void run(const C* data, int64_t count, const int64_t* ends, int64_t segments, C threshold, bool* kept, int32_t allowed) {
  Planes<C> boxes(data, count);
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  auto work = [&] {
    try {
      std::vector<int64_t> found;
      for (int64_t at; !failed && (at = next.fetch_add(1)) < segments;)
        run_segment(boxes, at ? ends[at - 1] : 0, ends[at], threshold, kept, found);
    } catch (const std::bad_alloc&) {  // must not leave a thread
      failed = true;
    }
  };
  int64_t wanted = std::min<int64_t>({allowed, segments, count / BOXES_PER_THREAD});
  std::vector<std::thread> others;
  try {
    for (int64_t id = 1; id < wanted; ++id) others.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads to be had: those there are do it
  } catch (const std::bad_alloc&) {
  }
  work();
  for (auto& other : others) other.join();
  if (failed) throw std::bad_alloc();
}

}  // namespace

// Whether each of ``count`` boxes is kept. Returns 0, or 2 (no memory; mirrored in native.py). ``ends``: where each class ends.
extern "C" int32_t togi_nms(const void* planes, int64_t count, int32_t is_double, const int64_t* ends, int64_t segments,
                            double threshold, bool* kept, int32_t threads) {
  try {
    if (is_double)
      run(static_cast<const double*>(planes), count, ends, segments, threshold, kept, threads);
    else
      run(static_cast<const float*>(planes), count, ends, segments, float(threshold), kept, threads);
  } catch (const std::bad_alloc&) {
    return 2;
  }
  return 0;
}
