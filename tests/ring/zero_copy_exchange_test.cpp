// The zero-copy exchange: ranks read rows and results where their owners hold them.

#include "annulus/ring/exchange.hpp"

#include <span>
#include <string>
#include <vector>

#include "ring/rotated_bytes.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

/// Rotates `calls` times with the same buffers; complaints of all ranks.
std::string rotate_without_copies(PlanRequest request, int calls = 1) {
  request.zero_copy = true;
  RingPlan const plan(request);
  std::vector<std::span<std::byte const>> buffer_of(static_cast<std::size_t>(plan.ranks()));
  auto const complaints =
      run_ring(plan.ranks(),
               [&](SimulatedRing& ring) {
                 ReferenceBackend reference;
                 MarkedBackend backend(reference, [](std::string_view, Index) {});
                 detail::RingBuffers<SimulatedRing, MarkedBackend> buffers;
                 buffers.reserve(backend, ring, plan);
                 buffer_of[static_cast<std::size_t>(ring.rank())] = {
                     buffers.prefetched[0].buffer(), static_cast<std::size_t>(buffers.prefetched[0].buffer_bytes())};
                 std::vector<std::byte> all(static_cast<std::size_t>(plan.ranks()));
                 ring.all_gather(std::span(all).first(1), all);  // returns when every rank has written its buffer
                 std::string wrong;
                 for (int call = 0; call < calls; ++call) {
                   buffers.call = static_cast<std::uint64_t>(call);
                   rotate_marks(
                       plan, ring, backend, buffers, wrong, [](std::string const&) {},
                       [&](int i, auto const& here) {
                         if (i == 0 || here.rows().empty()) return;
                         auto const& owned = buffer_of[static_cast<std::size_t>(plan.owner(ring.rank(), i))];
                         std::byte const* const first = here.incoming(here.rows())[0].data();
                         if (first < owned.data() || first >= owned.data() + owned.size())
                           wrong += "rows are not read in the buffer of their owner\n";
                       });
                   if (!buffers.windows.empty()) wrong += "a window is open after the pass\n";
                   if (buffers.prefetched[1].buffer_bytes() != 0) wrong += "a buffer for arriving rows was allocated\n";
                 }
                 return wrong;
               },
               {.zero_copy = ZeroCopy::always});
  std::string all;
  for (std::string const& complaint : complaints) all += complaint;
  return all;
}

}  // namespace

TEST_CASE("rows are read in the buffer of their owner, and results reach it from every rank", "[ring]") {
  for (int ranks : {1, 2, 3, 5, 8})
    for (Pass pass : {Pass::forward, Pass::backward})
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        CAPTURE(ranks, static_cast<int>(pass), static_cast<int>(rotation));
        CHECK(rotate_without_copies(
                  rotation_request(std::vector<Index>(static_cast<std::size_t>(ranks), 3), pass, rotation)) == "");
      }
}

TEST_CASE("ranks without rows share nothing", "[ring]") {
  for (Pass pass : {Pass::forward, Pass::backward}) {
    CHECK(rotate_without_copies(rotation_request({4, 0, 3}, pass, Rotation::keys)) == "");
    CHECK(rotate_without_copies(rotation_request({0, 0}, pass, Rotation::queries)) == "");
  }
}

TEST_CASE("the same buffers serve call after call, with checksums", "[ring]") {
  PlanRequest request = rotation_request({3, 4, 2, 1}, Pass::backward, Rotation::keys);
  request.checked = true;
  CHECK(rotate_without_copies(request, 20) == "");
}
