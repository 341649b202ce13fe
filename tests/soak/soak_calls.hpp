#pragma once
// Calls of varying shapes on one ring, and the memory in use before and after most of them.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/attention/cache/cached_attention.hpp>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "faults/steady_memory.hpp"

namespace annulus_test {

/// Passes of a RingAttention in every schedule, reproducible or not, in groups with joint keys, and calls on a cache.
/// The shapes, and the length of the cache, repeat after `period` calls.
template <annulus::Communicator Ring>
class SoakCalls {
  using Index = annulus::Index;
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  using Ids = Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor>;
  using Attention = annulus::RingAttention<Ring, annulus::CpuBackend>;
  using Serving = annulus::CachedAttention<Ring, annulus::CpuBackend>;

 public:
  static constexpr int period = 40;

  explicit SoakCalls(Ring& ring)
      : ring_(ring),
        caches_{annulus::KvCache<float>(ring, backend_, shape_of_cache(false)),
                annulus::KvCache<float>(ring, backend_, shape_of_cache(true))},
        serving_{Serving(ring, backend_, {.mask = annulus::causal(), .merge = annulus::MergeMethod::tree}),
                 Serving(ring, backend_, {.mask = annulus::causal(), .merge = annulus::MergeMethod::gather})} {}

  /// Makes call `number`. All ranks make the same ones, from 0 on.
  void call(int number) {
    int const shape = number / 4 % 10;
    if (number % 4 < 2)
      pass(shape, number % 4 == 1);
    else
      serve(shape, number % 4 == 2 ? 0 : 1);
  }

  /// Bytes of the buffers that the objects keep.
  Index buffer_bytes() const {
    Index sum = 0;
    for (auto const& [key, attention] : kept_)
      for (annulus::Pass pass : {annulus::Pass::forward, annulus::Pass::backward}) sum += attention.buffer_bytes(pass);
    for (Serving const& serving : serving_) sum += serving.buffer_bytes();
    return sum;
  }

 private:
  static constexpr Index leaf = 4, heads = 2, dim = 8;

  static annulus::CacheShape shape_of_cache(bool documents) {
    return {.kv_heads = 1, .head_dim = 8, .value_dim = 4, .pages = 48, .page_rows = 4, .document_ids = documents};
  }

  static Tensor rows(Index batch, Index count, Index of_heads, Index of_dim) {
    Tensor tensor(batch, count, of_heads, of_dim);
    for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<float>(i % 13) / 13;
    return tensor;
  }

  /// The schedule of a shape: each occurs with an object made for its call, and with one that is kept.
  annulus::Schedule schedule_of(int shape) const {
    using annulus::Schedule;
    constexpr std::array schedules{Schedule::ring,        Schedule::both_directions, Schedule::two_levels,
                                   Schedule::double_ring, Schedule::tiles,           Schedule::all_gather};
    return schedules[static_cast<std::size_t>(shape) % schedules.size()];
  }

  /// The wire type of a shape: four in ten, each in another schedule.
  static annulus::Wire wire_of(int shape) {
    if (shape == 1 || shape == 8) return annulus::Wire::bfloat16;
    return shape == 4 || shape == 5 ? annulus::Wire::half : annulus::Wire::as_stored;
  }

  /// Forward, and for every second shape backward. Every third object is made for its call alone.
  void pass(int shape, bool reproducible) {
    annulus::Schedule const schedule = reproducible ? annulus::Schedule::ring : schedule_of(shape);
    annulus::Options const options{
        .mask = annulus::causal(),
        .reproducible = reproducible,
        .reproducible_leaf = leaf,
        .rotation = schedule == annulus::Schedule::all_gather ? annulus::Rotation::automatic
                    : shape % 4 < 2                           ? annulus::Rotation::keys
                                                              : annulus::Rotation::queries,
        .schedule = schedule,
        .ranks_per_group =
            schedule == annulus::Schedule::double_ring || schedule == annulus::Schedule::two_levels ? ring_.size() : 0,
        .wire = wire_of(shape),
    };
    std::optional<Attention> made;
    if (shape % 3 == 0) made.emplace(ring_, backend_, options);
    auto& attention = made ? *made : kept_.try_emplace({shape, reproducible}, ring_, backend_, options).first->second;
    Index const own = reproducible ? leaf * (1 + shape % 5) : 1 + (7 * shape + 3 * ring_.rank()) % 11;
    // A group of all three ranks divides three heads. Both directions halve the rows of these, or two heads.
    Index const kv_heads = schedule == annulus::Schedule::both_directions && shape % 4 == 3 ? 2 : 3;
    Tensor const q = rows(1 + shape % 2, own, 6, dim + shape), k = rows(1 + shape % 2, own, kv_heads, dim + shape);
    annulus::Operands<float> operands;
    Tensor const joint = rows(1 + shape % 2, 1 + shape % 4, 3, dim + shape);
    if (has_groups(schedule)) operands.joint_keys = joint, operands.joint_values = joint;
    auto const forward = attention.forward(q, k, k, operands);
    if (shape % 2 == 0) attention.backward(q, forward, q, k, k, operands);
  }

  /// Operands of calls with this number of queries, and of new rows, of which every second one is of the same document;
  /// valid until the next call.
  annulus::CachedOperands<float> operands(std::size_t which, Index batch, Index queries, Index new_rows) {
    annulus::CachedOperands<float> result;
    if (which == 0) return result;
    query_ids_.resize(batch, queries);
    row_ids_.resize(batch, new_rows);
    for (Ids* ids : {&query_ids_, &row_ids_})
      for (Index i = 0; i < ids->size(); ++i) ids->data()[i] = i % 2 == 0 ? 1 : 2;
    if (queries > 0) result.query_documents = query_ids_;
    if (new_rows > 0) result.key_documents = row_ids_;
    return result;
  }

  /// Operation `operation` in the life of two sequences of cache `which`.
  void serve(int operation, std::size_t which) {
    Serving& serving = serving_[which];
    annulus::KvCache<float>& cache = caches_[which];
    auto const given = [&](Index batch, Index queries, Index new_rows) {
      return operands(which, batch, queries, new_rows);
    };
    auto const appended = [&](Index batch, Index new_rows) {
      return annulus::AppendOperands<>{.key_documents = given(batch, 0, new_rows).key_documents};
    };
    std::vector<Index>& sequences = sequences_[which];
    auto const batch = [&] { return static_cast<Index>(sequences.size()); };
    auto const own_share = [&] { return 1 + (operation + ring_.rank()) % 3; };
    switch (operation) {
      case 0:
        sequences = {cache.create()};
        serving.append(cache, sequences, rows(1, 11, 1, 8), rows(1, 11, 1, 4), appended(1, 11));
        break;
      case 1:
      case 6:
        serving.append_shards(cache, sequences, rows(batch(), own_share(), 1, 8), rows(batch(), own_share(), 1, 4),
                              appended(batch(), own_share()));
        break;
      case 2:
      case 7:
        serving.prefill(cache, sequences, rows(batch(), own_share(), heads, 8), given(batch(), own_share(), 0));
        break;
      case 3:
      case 8:
        serving.decode(cache, sequences, rows(batch(), 2, heads, 8), rows(batch(), 2, 1, 8), rows(batch(), 2, 1, 4),
                       given(batch(), 2, 2));
        break;
      case 4:
        sequences.push_back(cache.fork(sequences[0]));
        cache.truncate(sequences[1], 9);
        serving.append(cache, std::span(sequences).last(1), rows(1, 6, 1, 8), rows(1, 6, 1, 4), appended(1, 6));
        break;
      case 5:
        serving.decode(cache, sequences, rows(batch(), 1, heads, 8), given(batch(), 1, 0));
        break;
      case 9:
        serving.decode(cache, std::span(sequences).first(1), rows(1, 5, heads, 8), given(1, 5, 0));
        for (Index sequence : sequences) cache.release(sequence);
        break;
    }
  }

  Ring& ring_;
  annulus::CpuBackend backend_{.threads = 1};
  std::map<std::array<int, 2>, Attention> kept_;   ///< by shape, and whether passes are reproducible
  std::array<annulus::KvCache<float>, 2> caches_;  ///< without and with document ids
  Ids query_ids_, row_ids_;
  std::array<Serving, 2> serving_;
  std::array<std::vector<Index>, 2> sequences_;
};

/// Memory in use at two times of a run.
struct SoakReport {
  int warm_up = 0, calls = 0;
  std::array<MemoryUse, 2> memory{};
  std::array<annulus::Index, 2> buffers{};  ///< bytes that the objects of this rank keep

  /// Prints them; true if nothing has grown. The number of messages that wait at a time, and so the length of the lists
  /// that hold them, depends on the timing of the ranks; what lies below the library allocates memory of its own, in
  /// chunks: a leak in every tenth call would exceed the bounds. Of free memory the C library keeps up to 128 KiB in
  /// the arena of each thread: of three ranks and the main thread.
  bool print(char const* ring) const {
    std::printf(
        "%s: from call %d to %d: allocations %ld to %ld, their bytes %ld to %ld, resident KiB %ld to %ld, buffers "
        "%td to %td\n",
        ring, warm_up, calls, memory[0].allocations, memory[1].allocations, memory[0].bytes, memory[1].bytes,
        memory[0].resident / 1024, memory[1].resident / 1024, buffers[0], buffers[1]);
    long const measured = calls - warm_up;
    return memory[1].allocations <= memory[0].allocations + measured / 100 &&
           memory[1].bytes <= memory[0].bytes + 2 * measured &&
           memory[1].resident <= memory[0].resident + 4 * 128 * 1024 + 100 * measured && buffers[1] == buffers[0];
  }
};

/// Calls after which the shapes have repeated so often that whatever the timing of threads makes grow has grown.
constexpr int warm_up = 1000;

/// Makes `calls` calls, rounded to whole periods, of which the first thousand warm up.
template <class Ring>
SoakReport soak(Ring& ring, int calls) {
  constexpr int period = SoakCalls<Ring>::period;
  static_assert(warm_up % period == 0);
  SoakReport report{.warm_up = warm_up, .calls = (calls + period - 1) / period * period};
  std::vector<std::byte> records(static_cast<std::size_t>(ring.size()));
  auto const synchronize_ranks = [&] {
    std::byte const mine{};
    ring.all_gather({&mine, 1}, records);
  };
  SoakCalls<Ring> ranks_calls(ring);
  for (int call = 1; call <= report.calls; ++call) {
    ranks_calls.call(call - 1);
    if (call != report.warm_up && call != report.calls) continue;
    std::size_t const when = call == report.warm_up ? 0 : 1;
    report.buffers[when] = ranks_calls.buffer_bytes();
    synchronize_ranks();
    report.memory[when] = memory_use();
    synchronize_ranks();
  }
  return report;
}

/// The number of calls that the command line asks for; 0, with a message, if it is too small or not a number.
inline int calls_of(int argc, char** argv) {
  int const calls = argc == 2 ? std::atoi(argv[1]) : 0;
  if (calls >= 2 * warm_up) return calls;
  std::fprintf(stderr, "usage: %s <calls>; at least %d are accepted\n", argv[0], 2 * warm_up);
  return 0;
}

}  // namespace annulus_test
