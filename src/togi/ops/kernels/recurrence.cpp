// Recurrent layers on the CPU: every step of an LSTM, a GRU or a plain recurrent layer in one call.
//
// In a step the last state is multiplied with a matrix, and for the few sequences of inference that costs what it costs
// to read the matrix. So a thread keeps to the same units at every step, and the rows of weights that belong to them stay
// in its core's cache. Directions and groups of sequences need nothing of each other; threads that share one meet once a
// step. What the inputs are multiplied with does not depend on the state: each thread does that for its own units and all
// steps beforehand, several rows at a time.
//
// Weights lie as they are read: [direction, block of 16 units, input, gate, 16 units], with zeros where the units or the
// inputs end. Vectors are those of GCC and Clang, which have them on every processor.
//
// Sources: Diamos et al., Persistent RNNs: Stashing Recurrent Weights On-Chip, ICML 2016; polynomials of exp and tanh:
// Cephes, expf.c and tanhf.c (Moshier).

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRegisters = 32;
#elif defined(__AVX__)
constexpr int kLanes = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kLanes = 4, kRegisters = 32;
#else
constexpr int kLanes = 4, kRegisters = 16;
#endif

constexpr int kBlock = 16;                    // units whose weights lie side by side, on every processor
constexpr int kParts = kBlock / kLanes;       // vectors that they fill
constexpr int kLineBytes = 64;
constexpr int kMostRows = 6;                  // sequences, or steps of inputs, for which weights are read once
constexpr int64_t kMostProducts = 1 << 20;    // of inputs, that a thread keeps until their steps come
constexpr int64_t kLeastOfThread = 16 * 1024; // weights a step: below, another thread costs more than it saves
constexpr int kSpins = 4096;                  // looks, before a core is left to whoever else wants it

typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef int32_t Bits __attribute__((vector_size(4 * kLanes)));

enum Kind { kLstm = 0, kGru = 1, kTanh = 2, kRelu = 3 };

constexpr int gates_of(int kind) { return kind == kLstm ? 4 : kind == kGru ? 3 : 1; }

// Of so many vectors of sums for each of some rows, how many fit the registers at a time, beside what they are made of.
constexpr int at_a_time(int vectors, int rows) {
  int count = vectors;
  while (count > 1 && (count * rows > kRegisters - 4 || vectors % count)) --count;
  return count;
}

#define TOGI_INLINE inline __attribute__((always_inline))

TOGI_INLINE Vector all(float value) { return Vector{} + value; }

TOGI_INLINE Vector load(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// The first `count` of them, and zeros.
TOGI_INLINE Vector load(const float* from, int64_t count) {
  if (count >= kLanes) return load(from);
  Vector value = {};
  if (count > 0) std::memcpy(&value, from, count * sizeof(float));
  return value;
}

TOGI_INLINE void store(float* to, const Vector& value, int64_t count) {
  if (count >= kLanes)
    std::memcpy(to, &value, sizeof(value));
  else if (count > 0)
    std::memcpy(to, &value, count * sizeof(float));
}

TOGI_INLINE Vector exp_of(Vector x) {
  x = x > 87.f ? all(87.f) : x < -87.f ? all(-87.f) : x;  // a comparison with NaN is false: it stays
  const Vector magic = all(12582912.f);                   // 1.5 * 2^23: its last bits are whole numbers
  const Vector shifted = x * 1.44269504088896341f + magic;
  const Vector whole = shifted - magic;
  const Vector rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Vector sum = all(1.9875691500e-4f);
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.f;
  const Bits power = ((Bits)shifted - (Bits)magic + 127) << 23;
  return sum * (Vector)power;
}

TOGI_INLINE Vector sigmoid(Vector x) { return 1.f / (1.f + exp_of(-x)); }

TOGI_INLINE Vector tanh_of(Vector x) {
  const Vector square = x * x;
  Vector near = all(-5.70498872745e-3f);
  near = near * square + 2.06390887954e-2f;
  near = near * square - 5.37397155531e-2f;
  near = near * square + 1.33314422036e-1f;
  near = near * square - 3.33332819422e-1f;
  near = near * square * x + x;
  const Vector size = x < 0.f ? -x : x;
  const Vector far = 1.f - 2.f / (exp_of(size + size) + 1.f);
  return size < 0.625f ? near : x < 0.f ? -far : far;
}

// What one call is given. Sizes in elements; steps and rows of `inputs` and `outputs` have strides.
extern "C" struct TogiRecurrence {
  const float* inputs;         // [steps, rows, features]
  const float* input_weights;  // packed, see above
  const float* state_weights;  // packed
  const float* bias;           // [directions, gates + 1, units]: the last is added to a GRU's new state before its reset
  const float* hidden;         // [directions, rows, units]
  const float* cell;           // the same, of an LSTM
  float* outputs;              // [steps, rows, directions, units]
  float* last_hidden;          // [directions, rows, units]
  float* last_cell;
  int64_t steps, rows, directions, units, features;
  int64_t input_depth, state_depth;  // inputs of the packed weights: features and units with what pads them
  int64_t inputs_step, inputs_row, outputs_step, outputs_row;
  int32_t kind, threads;
};

using Job = TogiRecurrence;

// Threads that share one task meet here once a step.
struct alignas(kLineBytes) Meeting {
  std::atomic<int> arrived{0};
  std::atomic<int> round{0};

  void wait_for(int members) {
    if (members == 1) return;
    const int now = round.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
      arrived.store(0, std::memory_order_relaxed);
      round.store(now + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round.load(std::memory_order_acquire) == now; ++spins) {
      if (spins >= kSpins) std::this_thread::yield();
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
};

// Sequences of one direction that are worked off together.
struct Task {
  int64_t direction, first_row;
  int rows;
  float* hidden[2];  // [rows, padded units]: of the last step and of this one
  float* cell;       // [rows, padded units]
};

// sums[row] += the products of `depth` inputs of each row, for some of the vectors of one block.
template <int kVectors, int kFirst, int kCount, int kRows>
TOGI_INLINE void add_some(const float* weights, const float* const (&inputs)[kRows], int64_t depth,
                          Vector (&sums)[kRows][kVectors]) {
  Vector own[kRows][kCount];
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < kCount; ++i) own[row][i] = sums[row][kFirst + i];
  for (int64_t k = 0; k < depth; ++k) {
    for (int i = 0; i < kCount; ++i) {
      const Vector weight = load(weights + (k * kVectors + kFirst + i) * kLanes);
      for (int row = 0; row < kRows; ++row) own[row][i] += weight * inputs[row][k];
    }
  }
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < kCount; ++i) sums[row][kFirst + i] = own[row][i];
}

template <int kVectors, int kRows, int kFirst = 0>
TOGI_INLINE void add_products(const float* weights, const float* const (&inputs)[kRows], int64_t depth,
                              Vector (&sums)[kRows][kVectors]) {
  if constexpr (kFirst < kVectors) {
    constexpr int kCount = at_a_time(kVectors, kRows);
    add_some<kVectors, kFirst, kCount, kRows>(weights, inputs, depth, sums);
    add_products<kVectors, kRows, kFirst + kCount>(weights, inputs, depth, sums);
  }
}

// The same for the state of one sequence, which is padded. Few sums, each of which waits for itself: where registers
// allow it there are two of each, of every other input.
template <int kVectors>
TOGI_INLINE void add_state(const float* weights, const float* const (&state)[1], int64_t depth,
                           Vector (&sums)[1][kVectors]) {
  if constexpr (2 * kVectors > kRegisters - 8) {
    add_products<kVectors, 1>(weights, state, depth, sums);
  } else {
    Vector odd[kVectors] = {};
    for (int64_t k = 0; k < depth; k += 2) {
      for (int i = 0; i < kVectors; ++i) {
        sums[0][i] += load(weights + (k * kVectors + i) * kLanes) * state[0][k];
        odd[i] += load(weights + ((k + 1) * kVectors + i) * kLanes) * state[0][k + 1];
      }
    }
    for (int i = 0; i < kVectors; ++i) sums[0][i] += odd[i];
  }
}

template <int kVectors, int kRows>
TOGI_INLINE void add_state(const float* weights, const float* const (&states)[kRows], int64_t depth,
                           Vector (&sums)[kRows][kVectors]) {
  add_products<kVectors, kRows>(weights, states, depth, sums);
}

// Units of one task that belong to one thread, and what it keeps of them.
struct Share {
  int64_t first, end;  // blocks
  int members;         // threads that share the task
  float* products;     // of the inputs: [block, step, row, gate, 16 units]
  int64_t at_once;     // for so many steps: as many as fit for the thread that has the most blocks
};

int64_t products_of_step(const Job& job, int64_t blocks) { return blocks * kMostRows * gates_of(job.kind) * kBlock; }

// For how many steps the products of the inputs are kept.
int64_t steps_at_once(const Job& job, int64_t blocks) {
  return std::max<int64_t>(1, std::min(job.steps, kMostProducts / products_of_step(job, blocks)));
}

int64_t blocks_of(const Job& job) { return (job.units + kBlock - 1) / kBlock; }

template <int kKind, int kRows>
void input_products(const Job& job, const Task& task, int64_t block, const float* const (&rows)[kRows], float* to) {
  constexpr int kGates = gates_of(kKind), kVectors = kGates * kParts;
  Vector sums[kRows][kVectors];
  for (int i = 0; i < kVectors; ++i) {
    const int64_t unit = block * kBlock + i % kParts * kLanes;
    const float* bias = job.bias + (task.direction * (kGates + 1) + i / kParts) * job.units;
    const Vector value = unit < job.units ? load(bias + unit, job.units - unit) : Vector{};
    for (int row = 0; row < kRows; ++row) sums[row][i] = value;
  }
  const int64_t place = (task.direction * blocks_of(job) + block) * job.input_depth * kGates * kBlock;
  add_products<kVectors, kRows>(job.input_weights + place, rows, job.features, sums);
  std::memcpy(to, sums, sizeof(sums));
}

// For the steps from `begin` to `end`, in the order in which the direction takes them.
template <int kKind>
void prepare(const Job& job, const Task& task, const Share& share, int64_t begin, int64_t end) {
  constexpr int64_t kOne = gates_of(kKind) * kBlock;
  const int64_t count = (end - begin) * task.rows;
  const auto input = [&](int64_t i) {
    const int64_t step = begin + i / task.rows, time = task.direction == 1 ? job.steps - 1 - step : step;
    return job.inputs + time * job.inputs_step + (task.first_row + i % task.rows) * job.inputs_row;
  };
  for (int64_t block = share.first; block < share.end; ++block) {
    float* to = share.products + (block - share.first) * count * kOne;
    int64_t i = 0;
    for (; i + kMostRows <= count; i += kMostRows) {
      const float* rows[kMostRows];
      for (int row = 0; row < kMostRows; ++row) rows[row] = input(i + row);
      input_products<kKind, kMostRows>(job, task, block, rows, to + i * kOne);
    }
    for (; i < count; ++i) {
      const float* rows[1] = {input(i)};
      input_products<kKind, 1>(job, task, block, rows, to + i * kOne);
    }
  }
}

// One vector of units of one sequence: `sum` and `given` hold the products of its state and of its inputs, a gate after
// the other. Returns the new state.
template <int kKind>
TOGI_INLINE Vector unit_step(const Vector* sum, const float* given, Vector last, Vector bias, float* cell) {
  const auto gate = [&](int i) { return sum[i * kParts] + load(given + i * kBlock); };
  if constexpr (kKind == kLstm) {
    const Vector in = sigmoid(gate(0)), forget = sigmoid(gate(1)), candidate = tanh_of(gate(2)), out = sigmoid(gate(3));
    const Vector kept = forget * load(cell) + in * candidate;
    store(cell, kept, kLanes);
    return out * tanh_of(kept);
  } else if constexpr (kKind == kGru) {
    const Vector reset = sigmoid(gate(0)), update = sigmoid(gate(1));
    const Vector candidate = tanh_of(load(given + 2 * kBlock) + reset * (sum[2 * kParts] + bias));
    return candidate + update * (last - candidate);
  } else {
    const Vector inner = gate(0);
    return kKind == kTanh ? tanh_of(inner) : inner < 0.f ? Vector{} : inner;
  }
}

template <int kKind, int kRows>
void run_steps(const Job& job, const Task& task, const Share& share, Meeting& meeting) {
  constexpr int kGates = gates_of(kKind), kVectors = kGates * kParts;
  const int64_t padded = blocks_of(job) * kBlock;
  const float* bias = job.bias + (task.direction * (kGates + 1) + kGates) * job.units;
  for (int64_t begin = 0; begin < job.steps; begin += share.at_once) {
    const int64_t end = std::min(job.steps, begin + share.at_once);
    prepare<kKind>(job, task, share, begin, end);
    for (int64_t step = begin; step < end; ++step) {
      const int64_t time = task.direction == 1 ? job.steps - 1 - step : step;
      float* outputs = job.outputs + time * job.outputs_step + task.first_row * job.outputs_row + task.direction * job.units;
      const float* last = task.hidden[step % 2];
      float* next = task.hidden[(step + 1) % 2];
      const float* states[kRows];
      for (int row = 0; row < kRows; ++row) states[row] = last + row * padded;
      for (int64_t block = share.first; block < share.end; ++block) {
        Vector sums[kRows][kVectors] = {};
        const int64_t place = (task.direction * blocks_of(job) + block) * job.state_depth * kGates * kBlock;
        add_state(job.state_weights + place, states, job.state_depth, sums);
        const float* given =
            share.products + ((block - share.first) * (end - begin) + step - begin) * kRows * kGates * kBlock;
        for (int row = 0; row < kRows; ++row, given += kGates * kBlock) {
          for (int part = 0; part < kParts; ++part) {
            const int64_t unit = block * kBlock + part * kLanes, count = job.units - unit, place = row * padded + unit;
            if (count <= 0) break;
            const Vector made = unit_step<kKind>(sums[row] + part, given + part * kLanes, load(last + place),
                                                 load(bias + unit, count), task.cell + place);
            store(next + place, made, count);  // what pads stays 0: an infinity times it would be NaN
            store(outputs + row * job.outputs_row + unit, made, count);
          }
        }
      }
      meeting.wait_for(share.members);
    }
  }
}

template <int kKind>
void run(const Job& job, const Task& task, const Share& share, Meeting& meeting) {
  switch (task.rows) {
    case 1: return run_steps<kKind, 1>(job, task, share, meeting);
    case 2: return run_steps<kKind, 2>(job, task, share, meeting);
    case 3: return run_steps<kKind, 3>(job, task, share, meeting);
    case 4: return run_steps<kKind, 4>(job, task, share, meeting);
    case 5: return run_steps<kKind, 5>(job, task, share, meeting);
    default: return run_steps<kKind, kMostRows>(job, task, share, meeting);
  }
}

void run(const Job& job, const Task& task, const Share& share, Meeting& meeting) {
  switch (job.kind) {
    case kLstm: return run<kLstm>(job, task, share, meeting);
    case kGru: return run<kGru>(job, task, share, meeting);
    case kTanh: return run<kTanh>(job, task, share, meeting);
    default: return run<kRelu>(job, task, share, meeting);
  }
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

using Memory = std::unique_ptr<float, Free>;

// Null where there is none.
Memory memory_for(int64_t floats) {
  const int64_t lines = std::max<int64_t>(1, (floats * sizeof(float) + kLineBytes - 1) / kLineBytes);
  return Memory(static_cast<float*>(std::aligned_alloc(kLineBytes, lines * kLineBytes)));
}

}  // namespace

// 0, or 2 where there is no memory.
extern "C" int togi_recurrence(const TogiRecurrence* given) try {
  const Job& job = *given;
  if (!job.rows) return 0;  // no sequence: nothing to share out among threads
  const int64_t blocks = blocks_of(job), padded = blocks * kBlock;
  const int64_t floats = job.directions * job.rows * padded;
  const Memory states = memory_for(3 * floats);
  if (!states) return 2;
  std::memset(states.get(), 0, 3 * floats * sizeof(float));
  // as few groups of sequences as there may be, but so many that no thread waits for another at the end
  int64_t groups = (job.rows + kMostRows - 1) / kMostRows;
  while (groups < job.rows && job.directions * groups > job.threads && job.directions * groups % job.threads) ++groups;
  std::vector<Task> tasks;
  for (int64_t direction = 0; direction < job.directions; ++direction) {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t row = job.rows * group / groups;
      const int rows = static_cast<int>(job.rows * (group + 1) / groups - row);
      float* own = states.get() + (direction * job.rows + row) * padded;
      tasks.push_back({direction, row, rows, {own, own + floats}, own + 2 * floats});
      for (int each = 0; each < rows; ++each) {
        const int64_t from = (direction * job.rows + row + each) * job.units;
        std::memcpy(own + each * padded, job.hidden + from, job.units * sizeof(float));
        if (job.kind == kLstm) std::memcpy(own + 2 * floats + each * padded, job.cell + from, job.units * sizeof(float));
      }
    }
  }
  const int64_t all_tasks = static_cast<int64_t>(tasks.size());
  const int64_t weights = blocks * job.state_depth * gates_of(job.kind) * kBlock;
  const int64_t sharing = std::max<int64_t>(1, std::min(blocks, weights / kLeastOfThread));
  const int wanted = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(job.threads, all_tasks * sharing)));
  std::vector<Meeting> meetings(tasks.size());
  Memory products;
#pragma omp parallel num_threads(wanted)
  {
    // OpenMP may give fewer threads than were asked for
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t members = std::max<int64_t>(1, std::min(sharing, threads / all_tasks));
    const int64_t most = (blocks + members - 1) / members;
    const int64_t at_once = steps_at_once(job, most), of_thread = at_once * products_of_step(job, most);
#pragma omp single
    products = memory_for(threads * of_thread);
    float* own = products.get() + thread * of_thread;
    if (!products) {
    } else if (members == 1) {
      for (int64_t task = thread; task < all_tasks; task += threads)
        run(job, tasks[task], {0, blocks, 1, own, at_once}, meetings[task]);
    } else if (thread < members * all_tasks) {
      const int64_t task = thread / members, member = thread % members;
      const int64_t first = blocks * member / members, end = blocks * (member + 1) / members;
      const Share share = {first, end, static_cast<int>(members), own, at_once};
      run(job, tasks[task], share, meetings[task]);
    }
  }
  if (!products) return 2;
  for (const Task& task : tasks) {
    for (int each = 0; each < task.rows; ++each) {
      const int64_t to = (task.direction * job.rows + task.first_row + each) * job.units;
      std::memcpy(job.last_hidden + to, task.hidden[job.steps % 2] + each * padded, job.units * sizeof(float));
      if (job.kind == kLstm) std::memcpy(job.last_cell + to, task.cell + each * padded, job.units * sizeof(float));
    }
  }
  return 0;
} catch (const std::bad_alloc&) {
  return 2;
}
