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
  std::vector<int64_t> wanted;  // queries that are numbers
};

// Lays 16 keys out side by side, dimension after dimension; beyond the last one come keys infinitely far.
static void LayOut(const float* keys, int64_t used, int64_t dim, int64_t row, Lanes* lanes) {
  float* out = reinterpret_cast<float*>(lanes);
  const float* first = keys + row * kLanes * dim;
  if (row * kLanes + kLanes <= used) {
    for (int64_t h = 0; h < dim; ++h)
      for (int64_t lane = 0; lane < kLanes; ++lane) out[h * kLanes + lane] = first[lane * dim + h];
    return;
  }
  for (int64_t lane = 0; lane < kLanes; ++lane)
    for (int64_t h = 0; h < dim; ++h) out[h * kLanes + lane] = row * kLanes + lane < used ? first[lane * dim + h] : kNever;
}

// Squared distances of all keys to a few queries, and the least of every lane in each stretch of rows. By differences, not by a product:
// the product loses digits where distances are small, and small distances weigh most. The table holds all rows laid out, or only room for
// one, where so few queries come that none is looked at twice.
template <int64_t kQueries>
static void Measure(Scratch& scratch, const float* keys, int64_t used, int64_t rows, int64_t dim, int64_t stretch, bool is_laid_out) {
  for (int64_t row = 0; row < rows; ++row) {
    Lanes* key = scratch.table.data() + (is_laid_out ? row * dim : 0);
    if (!is_laid_out) LayOut(keys, used, dim, row, key);
    Lanes sum[kQueries] = {};
    for (int64_t h = 0; h < dim; ++h) {
      const float* query = scratch.queries.data() + h * kTogether;
      for (int64_t q = 0; q < kQueries; ++q) {
        const Lanes difference = key[h] - query[q];
        sum[q] += difference * difference;
      }
    }
    for (int64_t q = 0; q < kQueries; ++q) {
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
    scratch.wanted.clear();
    for (int64_t q = r * count; q < (r + 1) * count; ++q)
      if (!std::isnan(queries.typed_data()[q * dim])) scratch.wanted.push_back(q);
    const int64_t wanted = scratch.wanted.size();
    if (used <= 0 || wanted == 0) continue;
    const float* table = keys.typed_data() + r * size * dim;
    const bool is_laid_out = wanted > kTogether;
    if (const int64_t room = (is_laid_out ? rows : 1) * dim; static_cast<int64_t>(scratch.table.size()) < room) scratch.table.resize(room);
    for (int64_t row = 0; is_laid_out && row < rows; ++row) LayOut(table, used, dim, row, scratch.table.data() + row * dim);
    // Four times as many lanes of stretches as neighbours: then few keys beside the neighbours lie within the bound.
    const int64_t stretch = std::max<int64_t>(1, rows * kLanes / (4 * k)), stretches = (rows + stretch - 1) / stretch;
    for (int64_t q = 0; q < kTogether; ++q) scratch.distances[q].resize(rows), scratch.least[q].resize(stretches);
    for (int64_t first = 0; first < wanted; first += kTogether) {
      const int64_t here = std::min(kTogether, wanted - first);
      for (int64_t q = 0; q < kTogether; ++q) {
        const float* query = queries.typed_data() + scratch.wanted[first + std::min(q, here - 1)] * dim;
        for (int64_t h = 0; h < dim; ++h) scratch.queries[h * kTogether + q] = query[h];
      }
      const auto measure = here > 4 ? Measure<kTogether> : here > 1 ? Measure<4> : Measure<1>;
      measure(scratch, table, used, rows, dim, stretch, is_laid_out);
      for (int64_t q = 0; q < here; ++q) {
        const int64_t row = scratch.wanted[first + q] * k;
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
