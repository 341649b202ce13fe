// The foreign memory space of the tests: its registry, and the refusal of host memory.

#include "support/foreign_space.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "annulus/comm/simulated_ring.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("foreign memory is registered, aligned and poisoned", "[support]") {
  auto& registry = ForeignRegistry::instance();
  auto const before = registry.allocations();
  auto const bytes_before = registry.bytes();
  registry.restart_peak();
  {
    ForeignAllocation allocation(100), empty(0);
    CHECK(registry.allocations() == before + 2);
    CHECK(registry.bytes() == bytes_before + 100);
    CHECK(reinterpret_cast<std::uintptr_t>(allocation.data()) % 64 == 0);
    for (auto const byte : allocation.bytes()) CHECK(byte == std::byte{0xFF});

    CHECK(registry.contains(allocation.data(), 100));
    CHECK(registry.contains(allocation.data() + 99, 1));
    CHECK_FALSE(registry.contains(allocation.data() + 99, 2));
    CHECK_FALSE(registry.contains(allocation.data() - 1, 2));
    CHECK_FALSE(registry.contains(allocation.data() + 100, 1));
    CHECK(registry.contains(nullptr, 0));
    CHECK_FALSE(registry.contains(&registry, 1));

    auto moved = std::move(allocation);
    CHECK(moved.size() == 100);
    CHECK(allocation.data() == nullptr);
    CHECK(registry.contains(moved.data(), 100));
  }
  CHECK(registry.allocations() == before);
  CHECK(registry.bytes() == bytes_before);
  CHECK(registry.most_bytes() == bytes_before + 100);
  CHECK(registry.take_overruns() == 0);
}

TEST_CASE("a write outside a foreign allocation is found", "[support]") {
  auto& registry = ForeignRegistry::instance();
  for (std::ptrdiff_t const offset : {-64, -1, 10, 73}) {
    {
      ForeignAllocation allocation(10);
      allocation.data()[offset] = std::byte{0};
    }
    CHECK(registry.take_overruns() == 1);
  }
  {
    ForeignAllocation allocation(10);
    allocation.data()[9] = std::byte{0};
  }
  CHECK(registry.take_overruns() == 0);
}

TEST_CASE("a foreign ring refuses to send or receive host memory", "[support]") {
  for (bool const to_send : {true, false}) {
    auto const run = [&] {
      run_ring(2, [&](SimulatedRing& simulated) {
        ForeignRing ring(simulated);
        ForeignAllocation foreign(8), other(8);
        std::vector<std::byte> host(8);
        std::array const out = {std::span<std::byte const>(),
                                to_send ? std::span<std::byte const>(host) : other.bytes()};
        std::array const in = {std::span<std::byte>(), to_send ? foreign.bytes() : std::span<std::byte>(host)};
        DeferredQueue work({});
        ring.start_shift(Channel::prefetched, 1, out, in, ForeignQueue{&work}).wait(ForeignQueue{&work});
      });
    };
    CHECK_THROWS_AS(run(), HostMemoryRefused);
    CHECK_THROWS_WITH(run(), ContainsSubstring(to_send ? "8 bytes to send" : "8 bytes to receive"));
  }
}

TEST_CASE("a run that extends past its foreign allocation is refused", "[support]") {
  run_ring(1, [](SimulatedRing& simulated) {
    ForeignRing ring(simulated);
    ForeignAllocation from(8), to(8);
    std::array const out = {std::span<std::byte const>(from.data() + 4, 8)};
    std::array const in = {to.bytes()};
    DeferredQueue work({});
    CHECK_THROWS_AS(ring.start_shift(Channel::prefetched, 1, out, in, ForeignQueue{&work}), HostMemoryRefused);
  });
}

namespace {

/// What a shift of one rank to itself leaves, with work before and after it; `use` is called between start and wait.
template <class Use>
std::byte shifted(ForeignRingOptions const& options, Use use) {
  std::byte result{};
  run_ring(1, [&](SimulatedRing& simulated) {
    ForeignRing ring(simulated, options);
    ForeignAllocation from(8), to(8);
    DeferredQueue work({.when = DeferralOptions::lazy});
    ForeignQueue const queue{&work};
    std::array const out = {std::span<std::byte const>(from.bytes())};
    std::array const in = {to.bytes()};
    auto const fill = [](std::span<std::byte> bytes, int value) {
      std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(value));
    };
    work.push([&] { fill(from.bytes(), 1); });
    auto transfer = ring.start_shift(Channel::prefetched, 1, out, in, queue);
    use(work, from.bytes(), to.bytes());
    transfer.wait(queue);
    work.push([&] { fill(from.bytes(), 2); });
    work.push([&] { result = to.bytes()[7]; });
    ring.finish(queue);
  });
  return result;
}

}  // namespace

TEST_CASE("a foreign shift begins and ends at its places on the queue", "[support]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto const nothing = [](auto&&...) {};
    CHECK(shifted({.seed = seed}, nothing) == std::byte{1});
    CHECK(shifted({.seed = seed, .late = true}, nothing) == std::byte{1});
    auto const overwrite_out = [](DeferredQueue& work, std::span<std::byte> from, std::span<std::byte>) {
      work.push([=] { from[3] = std::byte{5}; });
    };
    CHECK_THROWS_AS(shifted({.seed = seed}, overwrite_out), MisusedTransfer);
    auto const overwrite_in = [](DeferredQueue& work, std::span<std::byte>, std::span<std::byte> to) {
      work.push([=] { to[3] = std::byte{5}; });
    };
    CHECK_THROWS_AS(shifted({.seed = seed}, overwrite_in), MisusedTransfer);
  }
}

TEST_CASE("what arrives is seen early and late between the two places", "[support]") {
  bool early = false, late = false;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::byte between{};
    shifted({.seed = seed}, [&](DeferredQueue& work, std::span<std::byte>, std::span<std::byte> to) {
      work.push([] {});
      work.push([&between, to] { between = to[0]; });
    });
    CHECK((between == std::byte{1} || between == std::byte{0xFF}));
    (between == std::byte{1} ? early : late) = true;
  }
  CHECK((early && late));
}
