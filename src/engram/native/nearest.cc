// Exact K nearest neighbours on a CPU, as `nearest.py` defines them: distances to all keys, a bound on the K-th best of them, and a
// sorted list of the few within the bound.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

typedef float Lanes __attribute__((vector_size(64), may_alias));  // 16 keys side by side; split where registers are narrower
constexpr int64_t kLanes = 16;
constexpr int64_t kTogether = 8;  // queries, so that a key that was loaded serves several
constexpr float kNever = std::numeric_limits<float>::infinity();

// What a search works in; kept between calls, since to ask for fresh memory at every call takes as long as the search.
struct Scratch {
  std::vector<Lanes> table, distances[kTogether], least[kTogether];
  std::vector<float> queries;
};

// Lays the keys out in rows of 16, dimension after dimension; the last row is filled up with keys infinitely far.
static void LayOut(const float* keys, int64_t used, int64_t dim, int64_t rows, std::vector<Lanes>& table) {
  if (static_cast<int64_t>(table.size()) < rows * dim) table.resize(rows * dim);
  for (int64_t row = 0; row < rows; ++row) {
    float* out = reinterpret_cast<float*>(table.data() + row * dim);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t slot = row * kLanes + lane;
      for (int64_t h = 0; h < dim; ++h) out[h * kLanes + lane] = slot < used ? keys[slot * dim + h] : kNever;
    }
  }
}

// Squared distances of all keys to a few queries, and the least of every lane in each stretch of rows. By differences, not by a product:
// the product loses digits where distances are small, and small distances weigh most.
static void Measure(Scratch& scratch, int64_t rows, int64_t dim, int64_t stretch) {
  for (int64_t row = 0; row < rows; ++row) {
    const Lanes* key = scratch.table.data() + row * dim;
    Lanes sum[kTogether] = {};
    for (int64_t h = 0; h < dim; ++h) {
      const float* query = scratch.queries.data() + h * kTogether;
      for (int64_t q = 0; q < kTogether; ++q) {
        const Lanes difference = key[h] - query[q];
        sum[q] += difference * difference;
      }
    }
    for (int64_t q = 0; q < kTogether; ++q) {
      scratch.distances[q][row] = sum[q];
      Lanes& least = scratch.least[q][row / stretch];
      least = row % stretch ? (sum[q] < least ? sum[q] : least) : sum[q];
    }
  }
}

// A number within which at least `k` of the distances lie: one for each lane of a stretch whose least does.
static float Bound(std::vector<Lanes>& least, int64_t stretches, int64_t k) {
  if (stretches * kLanes <= k) return kNever;
  float* each = reinterpret_cast<float*>(least.data());
  std::nth_element(each, each + k - 1, each + stretches * kLanes);
  return each[k - 1];
}

// Puts a slot at its place among the best so far, of which the last falls out. Equal distances keep the order of their slots.
static void Insert(float* best, int32_t* slots, int64_t k, float distance, int32_t slot) {
  if (!(distance < best[k - 1])) return;
  int64_t place = k - 1;
  for (; place > 0 && best[place - 1] > distance; --place) {
    best[place] = best[place - 1];
    slots[place] = slots[place - 1];
  }
  best[place] = distance;
  slots[place] = slot;
}

static void Collect(const std::vector<Lanes>& distances, int64_t used, float bound, float* best, int32_t* slots, int64_t k) {
  const float* each = reinterpret_cast<const float*>(distances.data());
  for (int64_t first = 0; first < used; first += kLanes) {
    int any = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) any |= each[first + lane] <= bound;
    if (!any) continue;
    for (int64_t slot = first; slot < std::min(first + kLanes, used); ++slot)
      if (each[slot] <= bound) Insert(best, slots, k, each[slot], static_cast<int32_t>(slot));
  }
  for (int64_t i = 0; i < k; ++i) best[i] = std::sqrt(best[i]);
}

static ffi::Error Nearest(ffi::Buffer<ffi::F32> keys, ffi::Buffer<ffi::S32> filled, ffi::Buffer<ffi::F32> queries,
                          ffi::ResultBuffer<ffi::F32> distances, ffi::ResultBuffer<ffi::S32> slots) {
  const auto table_shape = keys.dimensions(), answer_shape = slots->dimensions();
  const int64_t runs = filled.element_count();  // under vmap all arrays have leading axes, one place in `filled` for each run
  const int64_t size = table_shape[table_shape.size() - 2], dim = table_shape[table_shape.size() - 1];
  const int64_t count = answer_shape[answer_shape.size() - 2], k = answer_shape[answer_shape.size() - 1];
  std::fill_n(distances->typed_data(), runs * count * k, kNever);
  std::fill_n(slots->typed_data(), runs * count * k, 0);
  static thread_local Scratch scratch;
  scratch.queries.resize(dim * kTogether);
  for (int64_t r = 0; r < runs; ++r) {
    const int64_t used = std::min<int64_t>(filled.typed_data()[r], size), rows = (used + kLanes - 1) / kLanes;
    if (used <= 0) continue;
    LayOut(keys.typed_data() + r * size * dim, used, dim, rows, scratch.table);
    // Four times as many lanes of stretches as neighbours: then few keys beside the neighbours lie within the bound.
    const int64_t stretch = std::max<int64_t>(1, rows * kLanes / (4 * k)), stretches = (rows + stretch - 1) / stretch;
    for (int64_t q = 0; q < kTogether; ++q) scratch.distances[q].resize(rows), scratch.least[q].resize(stretches);
    for (int64_t first = 0; first < count; first += kTogether) {
      const int64_t here = std::min(kTogether, count - first);
      const float* query = queries.typed_data() + (r * count + first) * dim;
      for (int64_t h = 0; h < dim; ++h)
        for (int64_t q = 0; q < kTogether; ++q) scratch.queries[h * kTogether + q] = query[std::min(q, here - 1) * dim + h];
      Measure(scratch, rows, dim, stretch);
      for (int64_t q = 0; q < here; ++q) {
        const int64_t row = (r * count + first + q) * k;
        const float bound = Bound(scratch.least[q], stretches, k);
        Collect(scratch.distances[q], used, bound, distances->typed_data() + row, slots->typed_data() + row, k);
      }
    }
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(EngramNearest, Nearest,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
