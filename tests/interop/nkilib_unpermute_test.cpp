// Conversion of striped shards to contiguous ones.

#include <annulus/annulus.hpp>
#include <annulus/interop/nkilib.hpp>

#include "support/recording_communicator.hpp"
#include "support/refusal.hpp"

namespace nkilib = annulus::nkilib;
using annulus::Index;

namespace {

using Tensor = Eigen::Tensor<double, 3>;

double element(Index item, Index position, Index dim) {
  return static_cast<double>(item * 10000 + position * 10 + dim);
}

Tensor striped_shard(Index items, Index rows, Index dims, int rank, int ranks) {
  Tensor x(items, rows, dims);
  for (Index b = 0; b < items; ++b)
    for (Index i = 0; i < rows; ++i)
      for (Index d = 0; d < dims; ++d) x(b, i, d) = element(b, i * ranks + rank, d);
  return x;
}

}  // namespace

TEST_CASE("ring_attention_unpermute: every rank gets its contiguous part of the sequence", "[nkilib]") {
  int const ranks = GENERATE(1, 2, 3, 4, 5);
  Index const rows = GENERATE(0, 1, 3) * ranks;
  auto const results = annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    annulus_test::RecordingCommunicator recorded(ring);
    auto y = nkilib::ring_attention_unpermute(recorded, striped_shard(2, rows, 3, ring.rank(), ranks),
                                              {.num_workers = ranks});
    std::size_t bytes = 0;
    for (auto const& event : recorded.events())
      if (event.kind == annulus_test::RecordedEvent::started) bytes += event.bytes_sent;
    return std::pair{std::move(y), bytes};
  });
  for (int rank = 0; rank < ranks; ++rank) {
    auto const& [y, bytes] = results[static_cast<std::size_t>(rank)];
    REQUIRE(y.dimension(1) == rows);
    int wrong = 0;
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < rows; ++i)
        for (Index d = 0; d < 3; ++d) wrong += y(b, i, d) != element(b, rank * rows + i, d);
    CHECK(wrong == 0);
    CHECK(bytes == static_cast<std::size_t>(2 * (rows - rows / ranks) * 3) * sizeof(double));
  }
}

TEST_CASE("ring_attention_unpermute: indivisible or differing lengths are refused on all ranks", "[nkilib]") {
  auto const called = [](Index first_rows, Index other_rows, int num_workers) {
    return [=](annulus::SimulatedRing& ring) {
      auto const shard = striped_shard(1, ring.rank() == 0 ? first_rows : other_rows, 1, ring.rank(), 2);
      nkilib::ring_attention_unpermute(ring, shard, {.num_workers = num_workers});
    };
  };
  std::vector<annulus_test::Refusal<annulus::SimulatedRing&>> const table{
      {"indivisible", "ShapeError", "x has 3 rows; expected a multiple of num_workers = 2", called(3, 3, 2)},
      {"differing", "CommunicationError", "different s", called(2, 4, 2)},
      {"ranks", "UnsupportedError", "num_workers is 3", called(2, 2, 3)}};
  check_refused(table, annulus_test::on_ring(2));
}
