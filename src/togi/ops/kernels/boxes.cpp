// Pairwise work on axis-aligned boxes, without the N x M intermediates. Built and called by native.py.
//
// Every value that decides anything is computed with the operations of the eager formula in the eager order (the build
// forbids contraction into fused multiply-adds), so that indices, ties and thresholds agree bit for bit with it.
// Anchors lie in vector registers, boxes stream past them. Two bodies of each loop: boxes are "tame" where nothing can
// become NaN or negative, which saves the NaN-propagating comparisons of torch.max and torch.min; else "wild".

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, UNROLL = 2;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32, UNROLL = 1;
#else
constexpr int VECTOR_BYTES = 16, UNROLL = 2;
#endif
constexpr int64_t TILE = 512;                  // anchors a thread takes at a time; their corners stay in its first-level cache
constexpr int64_t PAIRS_PER_THREAD = 1 << 18;  // below this, starting a thread costs more than it brings
constexpr int64_t MAPPED_BYTES = 1 << 22;      // results from this size on are fresh from the system, not from the heap
constexpr int TIES = 16;                       // anchors remembered per box and thread; more are found by a second look
constexpr int64_t PLANES_BYTES = 15 << 16;      // of boxes whose coordinates lie in arrays at a time: less than 1 MiB

template <class C>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float V __attribute__((vector_size(VECTOR_BYTES)));
  typedef int32_t I __attribute__((vector_size(VECTOR_BYTES)));
  using Index = int32_t;
};
template <>
struct Lanes<double> {
  typedef double V __attribute__((vector_size(VECTOR_BYTES)));
  typedef int64_t I __attribute__((vector_size(VECTOR_BYTES)));
  using Index = int64_t;
};
template <class C>
constexpr int WIDTH = VECTOR_BYTES / int(sizeof(C));
template <class C>
constexpr int GROUP = UNROLL * WIDTH<C>;

template <class I>
inline bool any(I mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX__)
  return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
  bool found = false;
  for (unsigned lane = 0; lane < sizeof(I) / sizeof(mask[0]); ++lane) found |= mask[lane] != 0;
  return found;
#endif
}

// ---- reading boxes ---------------------------------------------------------------------------------------------

enum Dtype : int32_t { FLOAT32, FLOAT64, FLOAT16, BFLOAT16 };
enum Format : int32_t { XYXY, XYWH, CXCYWH };

struct View {  // mirrored in native.py
  const void* data;
  int64_t rows, row_stride, column_stride;  // strides in elements
  int32_t dtype, format;
};

template <class C>
struct Box {
  C x1, y1, x2, y2, area;
};

template <class C>
C element(const View& view, int64_t at) {
  switch (view.dtype) {
    case FLOAT32: return C(static_cast<const float*>(view.data)[at]);
    case FLOAT64: return C(static_cast<const double*>(view.data)[at]);
    case FLOAT16: return C(static_cast<const _Float16*>(view.data)[at]);
    default: {
      uint32_t bits = uint32_t(static_cast<const uint16_t*>(view.data)[at]) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return C(value);
    }
  }
}

// Sets ``negative`` where a width or height is below 0 (NaN is not), and leaves it else.
template <class C>
Box<C> read_box(const View& view, int64_t row, bool& negative) {
  int64_t at = row * view.row_stride, step = view.column_stride;
  C a = element<C>(view, at), b = element<C>(view, at + step);
  C c = element<C>(view, at + 2 * step), d = element<C>(view, at + 3 * step);
  negative |= view.format == XYXY ? (c < a) | (d < b) : (c < 0) | (d < 0);
  if (view.format == XYXY) return {a, b, c, d, (c - a) * (d - b)};
  if (view.format == XYWH) return {a, b, a + c, b + d, c * d};
  return {a - c / 2, b - d / 2, a + c / 2, b + d / 2, c * d};
}

// No NaN and no negative value can come of a pair of tame boxes of which one (the anchor) has an area: an intersection is
// at most the extent of either box, so the union is at least 0.5 of the smaller area (extent and area differ by rounding
// where width and height were given), and nothing overflows.
template <class C>
bool tame(const Box<C>& box, bool anchor) {
  constexpr C LARGE = std::numeric_limits<C>::max() / 8;
  bool finite = std::abs(box.x1) < LARGE && std::abs(box.y1) < LARGE && std::abs(box.x2) < LARGE && std::abs(box.y2) < LARGE;
  C width = box.x2 - box.x1, height = box.y2 - box.y1;
  return finite && width >= 0 && height >= 0 && box.area < LARGE && width * height <= C(1.5) * box.area &&
         (!anchor || box.area > 0);
}

// ---- the formula -----------------------------------------------------------------------------------------------

// torch.max and torch.min: a NaN on either side is the result.
template <bool TAME, class T>
inline T larger(T a, T b) {
  if constexpr (TAME) return a > b ? a : b;
  return (a > b) | (a != a) ? a : b;
}
template <bool TAME, class T>
inline T smaller(T a, T b) {
  if constexpr (TAME) return a < b ? a : b;
  return (a < b) | (a != a) ? a : b;
}

template <bool TAME, class T>
inline T positive(T value) {
  return larger<TAME>(value, T{} + 0);
}

template <bool TAME, class T>
inline T intersection(T ax1, T ay1, T ax2, T ay2, T bx1, T by1, T bx2, T by2) {
  T width = positive<TAME>(smaller<TAME>(ax2, bx2) - larger<TAME>(ax1, bx1));
  T height = positive<TAME>(smaller<TAME>(ay2, by2) - larger<TAME>(ay1, by1));
  return width * height;
}

// Whether ``value`` comes before ``held`` in torch.max: larger, or the first NaN.
template <class C>
inline bool beats(C value, C held) {
  return !(value <= held) && held == held;
}

// ---- threads ---------------------------------------------------------------------------------------------------

// Started per call and joined before it returns: nothing outlives it, so a fork is safe at any time, and no pool of a second
// runtime spins beside torch's.
template <class Work>
void in_threads(int count, Work work) {
  std::vector<std::thread> others;
  try {
    others.reserve(count);
    for (int id = 1; id < count; ++id) others.emplace_back(work, id);
  } catch (const std::system_error&) {  // no more threads to be had: those there are do it
  } catch (const std::bad_alloc&) {
  }
  work(0);
  for (auto& other : others) other.join();
}

int thread_count(int64_t rows, int64_t columns, int64_t step, int32_t allowed) {
  double by_work = double(rows) * double(columns) / double(PAIRS_PER_THREAD);
  int64_t pieces = (rows + step - 1) / step;
  return int(std::max<int64_t>(1, std::min<int64_t>({int64_t(allowed), pieces, int64_t(std::min(by_work, 1e6))})));
}

// ---- a tile of anchors -----------------------------------------------------------------------------------------

template <class C>
struct alignas(64) Tile {
  C x1[TILE], y1[TILE], x2[TILE], y2[TILE], area[TILE];
  int32_t row[TILE];  // which anchor
  int64_t count, groups;
  bool is_tame, negative;
  Box<C> hull;

  // Anchors ``from`` to ``until`` of ``order``, or of the view itself where there is none.
  void load(const View& view, int64_t from, int64_t until, const int32_t* order = nullptr) {
    count = until - from;
    groups = (count + GROUP<C> - 1) / GROUP<C>;
    is_tame = true, negative = false;
    hull = {std::numeric_limits<C>::infinity(), std::numeric_limits<C>::infinity(), -std::numeric_limits<C>::infinity(),
            -std::numeric_limits<C>::infinity(), 0};
    for (int64_t at = 0; at < groups * GROUP<C>; ++at) {
      int64_t source = from + std::min(at, count - 1);  // the last one again to fill the group
      row[at] = order ? order[source] : int32_t(source);
      Box<C> box = read_box<C>(view, row[at], negative);
      x1[at] = box.x1, y1[at] = box.y1, x2[at] = box.x2, y2[at] = box.y2, area[at] = box.area;
      is_tame &= tame(box, true);
      hull = {std::min(hull.x1, box.x1), std::min(hull.y1, box.y1), std::max(hull.x2, box.x2), std::max(hull.y2, box.y2), 0};
    }
  }

  // Boxes that overlap no anchor of a tame tile have IoU exactly 0 with all of them.
  bool may_overlap(const Box<C>& box) const {
    return (box.x1 < hull.x2) & (box.x2 > hull.x1) & (box.y1 < hull.y2) & (box.y2 > hull.y1);
  }
};

template <class C, bool TAME>
struct Group {  // UNROLL vectors of anchors
  using V = typename Lanes<C>::V;
  V x1[UNROLL], y1[UNROLL], x2[UNROLL], y2[UNROLL], area[UNROLL];

  Group(const Tile<C>& tile, int64_t group) {
    for (int u = 0; u < UNROLL; ++u) {
      int64_t at = group * GROUP<C> + u * WIDTH<C>;
      std::memcpy(&x1[u], tile.x1 + at, sizeof(V)), std::memcpy(&y1[u], tile.y1 + at, sizeof(V));
      std::memcpy(&x2[u], tile.x2 + at, sizeof(V)), std::memcpy(&y2[u], tile.y2 + at, sizeof(V));
      std::memcpy(&area[u], tile.area + at, sizeof(V));
    }
  }

  V iou(int u, const Box<C>& box, bool undefined_is_zero) const {
    V zero{}, overlap = intersection<TAME>(x1[u], y1[u], x2[u], y2[u], zero + box.x1, zero + box.y1, zero + box.x2,
                                           zero + box.y2);
    V quotient = overlap / ((area[u] + box.area) - overlap);
    if constexpr (TAME) return quotient;
    return undefined_is_zero ? (overlap > 0 ? quotient : zero) : quotient;
  }
};

template <class C>
struct Boxes {
  std::unique_ptr<Box<C>[]> all;
  int64_t count;
  bool are_tame = true, negative = false;

  explicit Boxes(const View& view) : all(new Box<C>[view.rows]), count(view.rows) {
    for (int64_t row = 0; row < count; ++row) {
      all[row] = read_box<C>(view, row, negative);
      are_tame &= tame(all[row], false);
    }
  }
};

// ---- best box per anchor, best anchor per box ------------------------------------------------------------------

// An order of the anchors in which neighbours lie near each other: then a tile overlaps few boxes.

constexpr int CELLS = 32;    // per side; some hundred thousand anchors make about half a tile each
constexpr int SAMPLES = 16;  // tiles looked at to judge the order in which anchors come

template <class C>
struct Axis {  // cells over the centres of a sample; what lies outside, or nowhere (NaN), goes to a cell at the border
  bool down;
  C low = std::numeric_limits<C>::max(), scale;

  Axis(const View& view, bool is_down) : down(is_down) {
    C high = std::numeric_limits<C>::lowest();
    bool ignored = false;
    for (int64_t row = 0; row < view.rows; row += std::max<int64_t>(1, view.rows / 1024)) {
      C at = centre(read_box<C>(view, row, ignored));
      low = std::min(low, at), high = std::max(high, at);
    }
    scale = CELLS / (high - low);
  }

  C centre(const Box<C>& box) const { return down ? (box.y1 + box.y2) / 2 : (box.x1 + box.x2) / 2; }

  int cell(const Box<C>& box) const {
    C step = (centre(box) - low) * scale;
    return step > 0 ? int(std::min(step, C(CELLS - 1))) : 0;  // NaN is not above 0
  }
};

// The indices of all anchors by the cell in which their centre lies (a counting sort), ascending within a cell.
template <class C>
std::unique_ptr<int32_t[]> near_together(const View& view) {
  const Axis<C> across(view, false), down(view, true);
  std::vector<int32_t> begin(CELLS * CELLS + 1, 0);
  std::unique_ptr<uint16_t[]> cell(new uint16_t[view.rows]);
  bool ignored = false;
  for (int64_t row = 0; row < view.rows; ++row) {
    Box<C> box = read_box<C>(view, row, ignored);
    cell[row] = uint16_t(down.cell(box) * CELLS + across.cell(box));
    ++begin[cell[row] + 1];
  }
  for (int at = 0; at < CELLS * CELLS; ++at) begin[at + 1] += begin[at];
  std::unique_ptr<int32_t[]> order(new int32_t[view.rows]);
  for (int64_t row = 0; row < view.rows; ++row) order[begin[cell[row]]++] = int32_t(row);
  return order;
}

template <class C>
struct Matches {  // mirrored in native.py; pointers may be null where a result is not wanted
  C* best;
  int64_t* index;
  C* column_best;
  int64_t* column_index;
  bool* tied;
};

// What one thread knows of the best anchor of every box. ``trigger`` lets the vector loop pass by all pairs that change
// nothing: a value below it is neither a new best nor a tie to be remembered.
template <class C>
struct Columns {
  std::unique_ptr<C[]> best, trigger;
  std::unique_ptr<int32_t[]> index, ties, tie_count;
  bool in_order;  // anchors come by ascending index: the first that has a value is the first of all

  Columns(int64_t count, bool with_ties, bool ascending)
      : best(new C[count]), trigger(new C[count]), index(new int32_t[count]),
        ties(with_ties ? new int32_t[count * TIES] : nullptr), tie_count(new int32_t[count]),
        in_order(ascending) {
    std::fill_n(best.get(), count, -std::numeric_limits<C>::infinity());
    std::fill_n(trigger.get(), count, -std::numeric_limits<C>::infinity());
    std::fill_n(index.get(), count, -1);
    std::fill_n(tie_count.get(), count, 0);
  }

  void offer(int64_t column, C value, int64_t anchor) {
    if (index[column] < 0 || beats(value, best[column])) {
      best[column] = value;
      index[column] = int32_t(anchor);
      tie_count[column] = 0;
    } else if (!(value == best[column]) && !(value != value)) {
      return;
    } else if (anchor < index[column]) {
      index[column] = int32_t(anchor);
    }
    remember(column, anchor);
    trigger[column] = next_trigger(column);
  }

  void remember(int64_t column, int64_t anchor) {
    int32_t held = tie_count[column];
    if (ties && held < TIES) ties[column * TIES + held] = int32_t(anchor);
    tie_count[column] = std::min(held + 1, TIES + 1);
  }

  // Ties at 0 are passed by: they are most pairs there are, and found by the second look.
  C next_trigger(int64_t column) const {
    C value = best[column];
    if (value != value) return std::numeric_limits<C>::infinity();
    bool ties_wanted = value != 0 && (!in_order || (ties && tie_count[column] <= TIES));
    return ties_wanted ? value : std::nextafter(value, std::numeric_limits<C>::infinity());
  }
};

template <class C, bool TAME, bool COLUMNS>
void match_tile(const Tile<C>& tile, const Boxes<C>& boxes, const int32_t* list, int64_t listed, bool undefined_is_zero,
                const Matches<C>& out, Columns<C>* columns) {
  using V = typename Lanes<C>::V;
  using I = typename Lanes<C>::I;
  using Index = typename Lanes<C>::Index;
  for (int64_t group = 0; group < tile.groups; ++group) {
    Group<C, TAME> anchors(tile, group);
    V best[UNROLL], iou[UNROLL];
    I index[UNROLL];
    for (int u = 0; u < UNROLL; ++u) {
      best[u] = V{} + (TAME ? C(0) : -std::numeric_limits<C>::infinity());
      index[u] = I{};
    }
    int64_t first = group * GROUP<C>, count = std::min<int64_t>(GROUP<C>, tile.count - first);
    for (int64_t at = 0; at < listed; ++at) {
      int64_t column = list[at];
      I hit{};
      for (int u = 0; u < UNROLL; ++u) {
        iou[u] = anchors.iou(u, boxes.all[column], undefined_is_zero);
        I better = TAME ? I(iou[u] > best[u]) : I(~(iou[u] <= best[u]) & (best[u] == best[u]));
        best[u] = better ? iou[u] : best[u];
        index[u] = better ? I{} + Index(column) : index[u];
        if constexpr (COLUMNS) {
          C trigger = columns->trigger[column];
          hit |= TAME ? I(iou[u] >= trigger) : I(~(iou[u] < trigger));
        }
      }
      if constexpr (COLUMNS) {
        if (__builtin_expect(any(hit), 0))
          for (int64_t lane = 0; lane < count; ++lane)
            columns->offer(column, iou[lane / WIDTH<C>][lane % WIDTH<C>], tile.row[first + lane]);
      }
    }
    for (int64_t lane = 0; lane < count; ++lane) {
      out.best[tile.row[first + lane]] = best[lane / WIDTH<C>][lane % WIDTH<C>];
      out.index[tile.row[first + lane]] = index[lane / WIDTH<C>][lane % WIDTH<C>];
    }
  }
}

int64_t tile_length(int64_t rows, int32_t threads, int64_t group) {
  int64_t share = rows / (4 * int64_t(threads)) / group * group;
  return std::max(group, std::min(TILE, share));
}

template <class C>
struct Matching {
  const View anchors;
  const Boxes<C> boxes;
  const Matches<C> out;
  const bool undefined_is_zero;
  const int64_t tile;
  const int threads;
  std::unique_ptr<int32_t[]> lists, order;  // no order: as they come
  std::vector<Columns<C>> columns;
  std::atomic<int64_t> next{0};
  std::atomic<bool> saw_wild{false}, negative{false};

  Matching(const View& a, const View& b, const Matches<C>& results, bool zero, int32_t allowed)
      : anchors(a), boxes(b), out(results), undefined_is_zero(zero), tile(tile_length(a.rows, allowed, GROUP<C>)),
        threads(thread_count(a.rows, b.rows, tile, allowed)), lists(new int32_t[threads * b.rows]),
        order(worth_sorting() ? near_together<C>(anchors) : nullptr) {
    for (int id = 0; id < threads && out.column_best; ++id)
      columns.emplace_back(boxes.count, out.tied != nullptr, order == nullptr);
  }

  // Whether any size was negative.
  bool run() {
    in_threads(threads, [this](int id) { take_tiles(id); });
    if (out.column_best) merge();
    if (out.tied) mark_ties();
    return boxes.negative || negative;
  }

  // Sorting pays where there are enough boxes to leave out, and tiles as they come would leave out few.
  bool worth_sorting() const {
    if (boxes.count < 64 || anchors.rows < 8 * TILE || !boxes.are_tame) return false;
    Tile<C> sample;
    int64_t kept = 0;
    for (int part = 0; part < SAMPLES; ++part) {
      int64_t first = (anchors.rows - TILE) / SAMPLES * part;
      sample.load(anchors, first, first + TILE);
      for (int64_t column = 0; column < boxes.count; ++column) kept += sample.may_overlap(boxes.all[column]);
    }
    return kept > SAMPLES * boxes.count / 2;
  }

  // The first tame tile a thread takes is not thinned out: so every box has met an anchor, its best is 0 or more with the right
  // first index, and the zeros left out later change nothing.
  void take_tiles(int id) {
    Tile<C> current;
    int32_t* list = lists.get() + id * boxes.count;
    bool may_thin = columns.empty();
    for (int64_t first; (first = next.fetch_add(tile)) < anchors.rows;) {
      current.load(anchors, first, std::min(first + tile, anchors.rows), order.get());
      bool is_tame = boxes.are_tame && current.is_tame;
      int64_t listed = 0;
      for (int64_t column = 0; column < boxes.count; ++column) {
        list[listed] = int32_t(column);
        listed += !(is_tame && may_thin) || current.may_overlap(boxes.all[column]);
      }
      may_thin |= is_tame;
      if (!is_tame) saw_wild = true;
      if (current.negative) negative = true;
      match(id, current, list, listed, is_tame);
    }
  }

  void match(int id, const Tile<C>& current, const int32_t* list, int64_t listed, bool is_tame) {
    Columns<C>* held = columns.empty() ? nullptr : &columns[id];
    auto body = is_tame ? (held ? match_tile<C, true, true> : match_tile<C, true, false>)
                        : (held ? match_tile<C, false, true> : match_tile<C, false, false>);
    body(current, boxes, list, listed, undefined_is_zero, out, held);
  }

  void merge() {
    for (int64_t column = 0; column < boxes.count; ++column) {
      C best = 0;
      int64_t index = -1;
      for (const auto& held : columns) {
        if (held.index[column] < 0) continue;
        C value = held.best[column];
        bool same = value == best || (value != value && best != best);
        if (index < 0 || (same ? held.index[column] < index : beats(value, best))) best = value, index = held.index[column];
      }
      out.column_best[column] = best;
      out.column_index[column] = order && best == 0 ? first_zero(column) : index;
    }
  }

  // Zeros are not followed one by one. Without wild anchors a best of 0 means that all are 0.
  int64_t first_zero(int64_t column) const {
    bool ignored = false;
    for (int64_t row = 0; saw_wild && row < anchors.rows; ++row) {
      const Box<C> anchor = read_box<C>(anchors, row, ignored), &box = boxes.all[column];
      C overlap = intersection<false>(anchor.x1, anchor.y1, anchor.x2, anchor.y2, box.x1, box.y1, box.x2, box.y2);
      C iou = overlap / ((anchor.area + box.area) - overlap);
      if (iou == 0 || (undefined_is_zero && !(overlap > 0))) return row;
    }
    return 0;
  }

  void mark_ties() {
    std::fill_n(out.tied, anchors.rows, false);
    std::vector<int32_t> again;
    for (int64_t column = 0; column < boxes.count; ++column) {
      C best = out.column_best[column];
      if (best == 0 && !saw_wild) return std::fill(out.tied, out.tied + anchors.rows, true);
      bool incomplete = best == 0;
      for (const auto& held : columns) {
        if (held.index[column] < 0 || !(held.best[column] == best)) continue;
        incomplete |= held.tie_count[column] > TIES;
        for (int at = 0; at < std::min(held.tie_count[column], TIES); ++at)
          out.tied[held.ties[column * TIES + at]] = true;
      }
      if (incomplete) again.push_back(int32_t(column));
    }
    if (!again.empty()) look_again(again);
  }

  void look_again(const std::vector<int32_t>& list) {
    next = 0;
    in_threads(threads, [&](int) {
      Tile<C> current;
      for (int64_t first; (first = next.fetch_add(tile)) < anchors.rows;) {
        current.load(anchors, first, std::min(first + tile, anchors.rows));
        compare(current, list);
      }
    });
  }

  void compare(const Tile<C>& current, const std::vector<int32_t>& list) {
    for (int64_t group = 0; group < current.groups; ++group) {
      Group<C, false> held(current, group);
      typename Lanes<C>::I same[UNROLL]{};
      for (int32_t column : list)
        for (int u = 0; u < UNROLL; ++u)
          same[u] |= held.iou(u, boxes.all[column], undefined_is_zero) == out.column_best[column];
      for (int64_t lane = 0; lane < GROUP<C> && group * GROUP<C> + lane < current.count; ++lane)
        if (same[lane / WIDTH<C>][lane % WIDTH<C>]) out.tied[current.row[group * GROUP<C> + lane]] = true;
    }
  }
};

// ---- the k best boxes of every anchor --------------------------------------------------------------------------

// Insertion into a descending list; equal values keep the order in which they came, so the lower index stays first.
template <class C>
void insert(C* values, int64_t* indices, int64_t held, int64_t k, C value, int64_t index) {
  int64_t at = std::min(held, k - 1);
  for (; at > 0 && beats(value, values[at - 1]); --at) values[at] = values[at - 1], indices[at] = indices[at - 1];
  values[at] = value, indices[at] = index;
}

template <class C, bool TAME>
void topk_tile(const Tile<C>& tile, const Boxes<C>& boxes, int64_t k, bool undefined_is_zero, C* values, int64_t* indices) {
  using I = typename Lanes<C>::I;
  using V = typename Lanes<C>::V;
  for (int64_t group = 0; group < tile.groups; ++group) {
    Group<C, TAME> anchors(tile, group);
    V last[UNROLL], iou[UNROLL];
    for (auto& vector : last) vector = V{} + std::numeric_limits<C>::infinity();  // lanes past the last anchor stay there
    int64_t first = group * GROUP<C>, count = std::min<int64_t>(GROUP<C>, tile.count - first);
    for (int64_t column = 0; column < boxes.count; ++column) {
      I hit{};
      for (int u = 0; u < UNROLL; ++u) {
        iou[u] = anchors.iou(u, boxes.all[column], undefined_is_zero);
        hit |= TAME ? I(iou[u] > last[u]) : I(~(iou[u] <= last[u]) & (last[u] == last[u]));
      }
      if (column >= k && __builtin_expect(!any(hit), 1)) continue;
      for (int64_t lane = 0; lane < count; ++lane) {
        C value = iou[lane / WIDTH<C>][lane % WIDTH<C>];
        int64_t row = tile.row[first + lane] * k;
        if (column < k || beats(value, values[row + k - 1])) insert(values + row, indices + row, column, k, value, column);
        last[lane / WIDTH<C>][lane % WIDTH<C>] = values[row + k - 1];
      }
    }
  }
}

template <class C>
bool topk(const View& anchors, const View& view, int64_t k, bool undefined_is_zero, C* values, int64_t* indices,
          int32_t allowed) {
  Boxes<C> boxes(view);
  int64_t tile = tile_length(anchors.rows, allowed, GROUP<C>);
  std::atomic<int64_t> next{0};
  std::atomic<bool> negative{boxes.negative};
  in_threads(thread_count(anchors.rows, boxes.count, tile, allowed), [&](int) {
    Tile<C> current;
    for (int64_t first; (first = next.fetch_add(tile)) < anchors.rows;) {
      current.load(anchors, first, std::min(first + tile, anchors.rows));
      auto body = boxes.are_tame && current.is_tame ? topk_tile<C, true> : topk_tile<C, false>;
      body(current, boxes, k, undefined_is_zero, values, indices);
      if (current.negative) negative = true;
    }
  });
  return negative;
}

// ---- matrices --------------------------------------------------------------------------------------------------

enum Kind : int32_t { INTERSECTION, IOU, GIOU, DIOU, CIOU };
constexpr double EPS = 1e-7;  // torchvision's default in distance_box_iou and complete_box_iou

template <class C>
struct Planes {  // one array per coordinate, for loops over boxes
  std::vector<C> x1, y1, x2, y2, area, angle;
  bool are_tame = true, negative = false;

  Planes(const View& view, int64_t from, int64_t until, bool with_angle) {
    const int64_t count = until - from;
    for (auto* plane : {&x1, &y1, &x2, &y2, &area}) plane->resize(count);
    angle.resize(with_angle ? count : 0);
    for (int64_t at = 0; at < count; ++at) {
      Box<C> box = read_box<C>(view, from + at, negative);
      x1[at] = box.x1, y1[at] = box.y1, x2[at] = box.x2, y2[at] = box.y2, area[at] = box.area;
      are_tame &= tame(box, false);
      if (with_angle) angle[at] = std::atan((box.x2 - box.x1) / (box.y2 - box.y1));
    }
  }
};

template <class C, int KIND, bool TAME>
inline C measure(const Box<C>& a, C angle, C bx1, C by1, C bx2, C by2, C area, C other_angle, bool undefined_is_zero) {
  C overlap = intersection<TAME>(a.x1, a.y1, a.x2, a.y2, bx1, by1, bx2, by2);
  if constexpr (KIND == INTERSECTION) return overlap;
  C whole = (a.area + area) - overlap;
  C iou = overlap / whole;
  if constexpr (KIND == IOU) return undefined_is_zero && !(overlap > 0) ? C(0) : iou;
  C width = positive<TAME>(larger<TAME>(a.x2, bx2) - smaller<TAME>(a.x1, bx1));
  C height = positive<TAME>(larger<TAME>(a.y2, by2) - smaller<TAME>(a.y1, by1));
  if constexpr (KIND == GIOU) return iou - (width * height - whole) / (width * height);
  C apart_x = (a.x1 + a.x2) / 2 - (bx1 + bx2) / 2, apart_y = (a.y1 + a.y2) / 2 - (by1 + by2) / 2;
  C diou = iou - (apart_x * apart_x + apart_y * apart_y) / (width * width + height * height + C(EPS));
  if constexpr (KIND == DIOU) return diou;
  C turn = angle - other_angle;
  C ratio = C(4 / (M_PI * M_PI)) * (turn * turn);
  return diou - ratio / (1 - iou + ratio + C(EPS)) * ratio;
}

template <class C, int KIND, bool TAME>
void fill_row(const Box<C>& a, const Planes<C>& b, int64_t count, bool undefined_is_zero, C* __restrict out) {
  C angle = KIND == CIOU ? std::atan((a.x2 - a.x1) / (a.y2 - a.y1)) : C(0);
  const C *x1 = b.x1.data(), *y1 = b.y1.data(), *x2 = b.x2.data(), *y2 = b.y2.data(), *area = b.area.data();
  const C* angles = KIND == CIOU ? b.angle.data() : area;
#pragma GCC ivdep
  for (int64_t at = 0; at < count; ++at)
    out[at] = measure<C, KIND, TAME>(a, angle, x1[at], y1[at], x2[at], y2[at], area[at], angles[at], undefined_is_zero);
}

// The time of a fresh matrix is the time of its page faults. Asking for the pages of a part in one call, just before it is
// written, costs half as much as faulting them one by one. (Pages of 2 MiB are faster still in a process of its own, but ten
// times slower on a virtual machine whose host takes free ones back.) Pages that reach out of the part are left alone.
void ask_for_pages(void* data, int64_t bytes) {
#if defined(MADV_POPULATE_WRITE)  // Linux 5.14; older ones refuse, and fault as ever
  static const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  uintptr_t begin = reinterpret_cast<uintptr_t>(data), from = (begin + page - 1) / page * page;
  uintptr_t until = (begin + uintptr_t(bytes)) / page * page;
  if (until > from) madvise(reinterpret_cast<void*>(from), until - from, MADV_POPULATE_WRITE);
#endif
}

// Fills the columns from ``from`` to ``until``. Whether any size was negative.
template <class C, int KIND>
bool fill_columns(const View& anchors, const View& view, int64_t from, int64_t until, bool undefined_is_zero, C* out,
                  int32_t allowed) {
  const Planes<C> boxes(view, from, until, KIND == CIOU);
  const int64_t count = until - from, rows = std::max<int64_t>(1, (int64_t(1) << 17) / count);
  const bool is_large = anchors.rows * view.rows * int64_t(sizeof(C)) >= MAPPED_BYTES, is_whole = count == view.rows;
  std::atomic<int64_t> next{0};
  std::atomic<bool> negative{boxes.negative};
  in_threads(thread_count(anchors.rows, count, rows, allowed), [&](int) {
    bool seen = false;
    for (int64_t first; (first = next.fetch_add(rows)) < anchors.rows;) {
      const int64_t last = std::min(first + rows, anchors.rows);
      if (is_large && is_whole) ask_for_pages(out + first * count, (last - first) * count * int64_t(sizeof(C)));
      for (int64_t row = first; row < last; ++row) {
        C* to = out + row * view.rows + from;
        if (is_large && !is_whole) ask_for_pages(to, count * int64_t(sizeof(C)));
        Box<C> anchor = read_box<C>(anchors, row, seen);
        auto body = boxes.are_tame && tame(anchor, true) ? fill_row<C, KIND, true> : fill_row<C, KIND, false>;
        body(anchor, boxes, count, undefined_is_zero, to);
      }
    }
    if (seen) negative = true;
  });
  return negative;
}

template <class C, int KIND>
bool matrix(const View& anchors, const View& view, bool undefined_is_zero, C* out, int32_t allowed) {
  const int64_t most = PLANES_BYTES / (int64_t(sizeof(C)) * (KIND == CIOU ? 6 : 5));
  const int64_t parts = (view.rows + most - 1) / most;  // of one size, or nearly
  bool negative = false;
  for (int64_t part = 0; part < parts; ++part)
    negative |= fill_columns<C, KIND>(anchors, view, view.rows * part / parts, view.rows * (part + 1) / parts,
                                      undefined_is_zero, out, allowed);
  return negative;
}

template <class C>
bool matrix_of(int32_t kind, const View& a, const View& b, bool undefined_is_zero, C* out, int32_t threads) {
  switch (kind) {
    case INTERSECTION: return matrix<C, INTERSECTION>(a, b, undefined_is_zero, out, threads);
    case IOU: return matrix<C, IOU>(a, b, undefined_is_zero, out, threads);
    case GIOU: return matrix<C, GIOU>(a, b, undefined_is_zero, out, threads);
    case DIOU: return matrix<C, DIOU>(a, b, undefined_is_zero, out, threads);
    default: return matrix<C, CIOU>(a, b, undefined_is_zero, out, threads);
  }
}

enum Status : int32_t { DONE, SAW_NEGATIVE, NO_MEMORY };  // mirrored in native.py

template <class Work>
int32_t guarded(Work work) {
  try {
    return work() ? SAW_NEGATIVE : DONE;
  } catch (const std::bad_alloc&) {
    return NO_MEMORY;
  }
}

}  // namespace

// Each returns a Status: all is done also where a negative size was seen. ``threads`` is the most that may be used.
extern "C" {

int32_t togi_match(const View* anchors, const View* boxes, int32_t undefined_is_zero, void* best, int64_t* index,
                   void* column_best, int64_t* column_index, bool* tied, int32_t threads) {
  return guarded([&] {
    auto run = [&](auto zero) {
      using C = decltype(zero);
      Matches<C> out{static_cast<C*>(best), index, static_cast<C*>(column_best), column_index, tied};
      return Matching<C>(*anchors, *boxes, out, undefined_is_zero != 0, threads).run();
    };
    return anchors->dtype == FLOAT64 ? run(0.0) : run(0.0f);
  });
}

int32_t togi_topk(const View* anchors, const View* boxes, int32_t undefined_is_zero, int64_t k, void* values,
                  int64_t* indices, int32_t threads) {
  return guarded([&] {
    auto run = [&](auto zero) {
      using C = decltype(zero);
      return topk<C>(*anchors, *boxes, k, undefined_is_zero != 0, static_cast<C*>(values), indices, threads);
    };
    return anchors->dtype == FLOAT64 ? run(0.0) : run(0.0f);
  });
}

int32_t togi_matrix(const View* anchors, const View* boxes, int32_t kind, int32_t undefined_is_zero, void* out,
                    int32_t threads) {
  return guarded([&] {
    auto run = [&](auto zero) {
      using C = decltype(zero);
      return matrix_of<C>(kind, *anchors, *boxes, undefined_is_zero != 0, static_cast<C*>(out), threads);
    };
    return anchors->dtype == FLOAT64 ? run(0.0) : run(0.0f);
  });
}
}
