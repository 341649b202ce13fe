// MpiRing beyond the communicator suite: options, deadlines, failures and freed communicators.

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "conformance/communicator_ranks.hpp"
#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

/// One shift whose bytes identify their sender, on any ring. Returns a complaint, or an empty string.
template <class Ring>
std::string try_shift(Ring& ring, int hop, int message, std::size_t bytes) {
  ShiftBuffers<Ring> buffers(ring, hop, message, bytes);
  buffers.start(ring, Channel::prefetched).wait();
  return buffers.complaint();
}

/// A communicator whose freed duplicates are counted: MPI_Comm_dup copies an attribute, and freeing the duplicate calls
/// the attribute's delete function.
class CountedCommunicator {
 public:
  CountedCommunicator() {
    freed_ = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &communicator_);
    auto* const count = +[](MPI_Comm, int, void*, void*) {
      ++freed_;
      return MPI_SUCCESS;
    };
    MPI_Comm_create_keyval(MPI_COMM_DUP_FN, count, &key_, nullptr);
    MPI_Comm_set_attr(communicator_, key_, nullptr);
  }
  ~CountedCommunicator() {
    MPI_Comm_delete_attr(communicator_, key_);
    MPI_Comm_free_keyval(&key_);
    MPI_Comm_free(&communicator_);
  }
  CountedCommunicator(CountedCommunicator const&) = delete;
  CountedCommunicator& operator=(CountedCommunicator const&) = delete;

  MPI_Comm get() const { return communicator_; }
  int freed() const { return freed_; }

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int key_ = MPI_KEYVAL_INVALID;
  inline static int freed_ = 0;  ///< a duplicate may be freed after this object
};

}  // namespace

TEST_CASE("a ring over MPI has the rank order of its communicator", "[mpi][comm][C37]") {
  MPI_Comm reversed = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank(), &reversed);
  MpiRing ring(reversed, options_of_tests());
  MPI_Comm_free(&reversed);  // the ring has its own
  CHECK(ring.size() == world_size());
  CHECK(ring.rank() == world_size() - 1 - world_rank());
  CHECK(try_shift(ring, 1, 0, large) == "");
}

TEST_CASE("MPI_COMM_NULL and inter-communicators are refused", "[mpi][comm]") {
  CHECK_THAT(thrown<CommunicationError>([] { MpiRing ring(MPI_COMM_NULL); }), ContainsSubstring("MPI_COMM_NULL"));
  if (world_size() < 2) return;
  MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank() % 2, 0, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - world_rank() % 2, 0, &between);
  CHECK_THAT(thrown<CommunicationError>([&] { MpiRing ring(between); }), ContainsSubstring("inter-communicator"));
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
}

TEST_CASE("options of a ring over MPI are honoured or refused", "[mpi][comm]") {
  auto const refusal = [](MpiRingOptions const& options) {
    return thrown<UnsupportedError>([&] { MpiRing ring(MPI_COMM_WORLD, options); });
  };
  CHECK_THAT(refusal({.timeout = 0ms}), ContainsSubstring("timeout is 0 ms"));
  CHECK_THAT(refusal({.timeout = -5ms}), ContainsSubstring("timeout is -5 ms"));
  CHECK_THAT(refusal({.max_message_bytes = 0}), ContainsSubstring("max_message_bytes is 0"));
  CHECK_THAT(refusal({.max_message_bytes = std::size_t{1} << 31}),
             ContainsSubstring("max_message_bytes is 2147483648"));

  CHECK_THAT(refusal({.zero_copy = static_cast<ZeroCopy>(9)}), ContainsSubstring("zero_copy is 9"));

  MpiRing unlimited(MPI_COMM_WORLD, {.timeout = std::chrono::milliseconds::max()});
  CHECK(try_shift(unlimited, 1, 0, large) == "");

  if (world_size() < 2) return;
  MpiRingOptions const odd{.timeout = 60s, .max_message_bytes = world_rank() == 0 ? 100u : 200u};
  CHECK_THAT(thrown<CommunicationError>([&] { MpiRing ring(MPI_COMM_WORLD, odd); }),
             ContainsSubstring("max_message_bytes is 100 on rank 0 and 200 on rank 1"));
  MpiRingOptions const tiny{.timeout = 60s, .max_message_bytes = world_rank() == 1 ? std::size_t{4} : large};
  CHECK_THAT(thrown<CommunicationError>([&] { MpiRing ring(MPI_COMM_WORLD, tiny); }),
             ContainsSubstring("on rank 0 and 4 on rank 1"));
  // Out of range on one rank: refused on all.
  CHECK_THAT(refusal({.timeout = world_rank() == 1 ? 0ms : 60'000ms}),
             ContainsSubstring("rank 1: MpiRingOptions: timeout is 0 ms"));
  MpiRingOptions const mixed{.timeout = 60s, .zero_copy = world_rank() == 0 ? ZeroCopy::automatic : ZeroCopy::never};
  CHECK_THAT(thrown<CommunicationError>([&] { MpiRing ring(MPI_COMM_WORLD, mixed); }),
             ContainsSubstring("zero_copy is automatic on rank 0 and never on rank 1"));
}

TEST_CASE("runs longer than max_message_bytes are sent in several messages", "[mpi][comm]") {
  for (std::size_t const limit : {1u, 7u, 4096u}) {
    MpiRingOptions options = options_of_tests();
    options.max_message_bytes = limit;
    MpiRing ring(MPI_COMM_WORLD, options);
    for (std::size_t const bytes : {limit - 1, limit, limit + 1, 5 * limit, 300 * limit + 1}) {
      CAPTURE(limit, bytes);
      CHECK(try_shift(ring, 1, static_cast<int>(bytes), bytes) == "");
    }
  }
}

TEST_CASE("messages of the program do not match those of a ring", "[mpi][comm]") {
  int const to = (world_rank() + 1) % world_size();
  int received = -1;
  MPI_Request wildcard = MPI_REQUEST_NULL;
  MPI_Irecv(&received, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &wildcard);
  {
    MpiRing ring(MPI_COMM_WORLD, options_of_tests());
    for (int round = 0; round < 4; ++round) CHECK(try_shift(ring, 1, round, 4) == "");
    int done = 1;
    MPI_Test(&wildcard, &done, MPI_STATUS_IGNORE);
    CHECK(done == 0);
    MPI_Barrier(MPI_COMM_WORLD);

    // The reverse: a message of the program with a tag of the ring, while a shift is pending.
    ShiftBuffers buffers(ring, 1, 9, large);
    auto transfer = buffers.start(ring, Channel::prefetched);
    int const sent = 1000 + world_rank();
    MPI_Request sending = MPI_REQUEST_NULL;
    MPI_Isend(&sent, 1, MPI_INT, to, 2, MPI_COMM_WORLD, &sending);
    transfer.wait();
    CHECK(buffers.complaint() == "");
    MPI_Wait(&sending, MPI_STATUS_IGNORE);
  }
  MPI_Wait(&wildcard, MPI_STATUS_IGNORE);
  CHECK(received == 1000 + (world_rank() + world_size() - 1) % world_size());
  int stray = 1;
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &stray, MPI_STATUS_IGNORE);
  CHECK(stray == 0);
}

TEST_CASE("a late rank is given up, is named in the errors, and throws when it comes back", "[mpi][comm]") {
  if (world_size() < 2) return;
  Rank const late = world_size() - 1;
  for (bool const before_the_shift : {true, false}) {
    CAPTURE(before_the_shift);
    MpiRing ring(MPI_COMM_WORLD, {.timeout = 200ms});
    ShiftBuffers buffers(ring, 1, 0, large);
    std::optional<MpiRing::Transfer> transfer;
    if (ring.rank() == late && before_the_shift) std::this_thread::sleep_for(1000ms);
    std::string const first = thrown<CommunicationError>([&] {
      transfer.emplace(buffers.start(ring, Channel::carried));
      if (ring.rank() == late && !before_the_shift) std::this_thread::sleep_for(1000ms);
      for (int round = 0; round <= ring.size(); ++round) {
        transfer->wait();
        transfer.emplace(buffers.start(ring, Channel::carried));
      }
    });
    // The rank that gives up first writes the report; with two ranks only one can be waiting.
    CHECK_THAT(first, ContainsSubstring("waited 200 ms for rank"));
    CHECK_THAT(first, ContainsSubstring(detail::message_of("rank ", late, " does not answer")) &&
                          ContainsSubstring(detail::message_of("rank ", late, " holds up the ring")));
    if (ring.size() == 2) CHECK_THAT(first, ContainsSubstring("waited 200 ms for rank 1 (carried shift, hop 1)"));
    CHECK(thrown<CommunicationError>([&] { try_shift(ring, 1, 1, 8); }) == first);
    if (transfer) CHECK(thrown<CommunicationError>([&] { transfer->wait(); }) == first);
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST_CASE("a wait that fails ends within the timeout and a second, and blames the rank that is late", "[mpi][comm]") {
  if (world_size() < 2) return;
  Rank const late = world_size() - 1;
  for (ZeroCopy const zero_copy : {ZeroCopy::never, ZeroCopy::automatic}) {
    MpiRing ring(MPI_COMM_WORLD, {.timeout = 300ms, .zero_copy = zero_copy});
    MPI_Barrier(MPI_COMM_WORLD);
    if (ring.rank() == late) {
      std::this_thread::sleep_for(2500ms);
    } else {
      Rank blamed = CommunicationError::unknown;
      auto const start = std::chrono::steady_clock::now();
      try {
        // The exception destroys pending transfers, in addition to the one that is waited for.
        ShiftBuffers first(ring, 1, 1, large), second(ring, 1, 2, large);
        auto ahead = first.start(ring, Channel::prefetched);
        auto behind = second.start(ring, Channel::carried);
        behind.wait();
        for (int round = 0; round <= ring.size(); ++round) try_shift(ring, 1, round, large);
      } catch (CommunicationError const& error) {
        blamed = error.neighbour();
      }
      CHECK(std::chrono::steady_clock::now() - start < 1300ms);
      CHECK(blamed == late);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST_CASE("messages of different calls do not pair over MPI", "[mpi][comm]") {
  if (world_size() < 2) return;
  for (ZeroCopy const zero_copy : {ZeroCopy::never, ZeroCopy::automatic}) {
    MpiRing ring(MPI_COMM_WORLD, {.timeout = 60s, .zero_copy = zero_copy});
    for (int call = 0; call < (ring.rank() == 0 ? 2 : 3); ++call) {
      ring.flight_record().begin(Pass::backward, std::nullopt);
      ring.flight_record().step(1, 4);
    }
    std::string const text = thrown<CommunicationError>([&] {
      if (ring.shares_memory()) {
        auto const buffer = ring.allocate(64);
        std::array const out = {std::span<std::byte const>(buffer.data(), 8)};
        ring.open_window(Channel::carried, 1, out).wait();
      } else {
        try_shift(ring, 1, 0, 8);
      }
      std::vector<std::byte> mine(1), all(static_cast<std::size_t>(ring.size()));
      ring.all_gather(mine, all);  // throws if another rank has found the mismatch
    });
    CHECK_THAT(text,
               ContainsSubstring(
                   "expected rows of call 3, backward, step 1, got rows of call 2, backward, step 1 from rank 0") ||
                   ContainsSubstring(
                       "expected rows of call 2, backward, step 1, got rows of call 3, backward, step 1 from rank "));
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST_CASE("a rank that waits for long leaves its core to others", "[mpi][comm]") {
  if (world_size() < 2) return;
  MpiRing ring(MPI_COMM_WORLD, options_of_tests());
  MPI_Barrier(MPI_COMM_WORLD);
  auto const cpu_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  double const begin = cpu_seconds();
  if (ring.rank() == 0) std::this_thread::sleep_for(4s);
  std::vector<std::byte> mine(1), all(static_cast<std::size_t>(ring.size()));
  ring.all_gather(mine, all);
  // A rank that polled all the time would use 4 seconds of a core that no other rank uses.
  if (ring.rank() != 0) CHECK(cpu_seconds() - begin < 2);
}

TEST_CASE("a ring whose object is destroyed by an exception tells its peers at once", "[mpi][comm]") {
  if (world_size() < 2) return;
  auto const start = std::chrono::steady_clock::now();
  std::string const text = thrown<std::exception>([] {
    MpiRing ring(MPI_COMM_WORLD, options_of_tests());
    if (ring.rank() == 0) throw OwnFailure();
    for (int round = 0; round <= ring.size(); ++round) try_shift(ring, 1, round, large);
  });
  CHECK_THAT(text, ContainsSubstring(world_rank() == 0 ? "of this rank's own" : "an exception ended its ring"));
  CHECK(std::chrono::steady_clock::now() - start < 10s);
}

TEST_CASE("a failed ring does not affect another ring of the same ranks", "[mpi][comm]") {
  MpiRing one(MPI_COMM_WORLD, options_of_tests()), other(MPI_COMM_WORLD, options_of_tests());
  ShiftBuffers across(other, 1, 3, large);
  auto transfer = across.start(other, Channel::prefetched);
  if (one.rank() == 0) one.abandon("no longer wanted");
  CHECK_THAT(thrown<CommunicationError>([&] {
               for (int round = 0; round <= one.size(); ++round) try_shift(one, 1, round, large);
             }),
             ContainsSubstring("no longer wanted"));
  transfer.wait();
  CHECK(across.complaint() == "");
  CHECK(try_shift(other, 1, 4, large) == "");
}

TEST_CASE("destroyed rings free their communicators", "[mpi][comm]") {
  CountedCommunicator const counted;
  int const rings = 50;
  for (int i = 0; i < rings; ++i) {
    MpiRing ring(counted.get(), options_of_tests());
    CHECK(try_shift(ring, 1, i, 10) == "");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  { MpiRing last(MPI_COMM_WORLD, options_of_tests()); }
  CHECK(counted.freed() == rings);
}

TEST_CASE("failed rings free their communicators", "[mpi][comm]") {
  CountedCommunicator const counted;
  int const rings = 100, last = world_size() - 1;
  for (int i = 0; i < rings; ++i) {
    MpiRing ring(counted.get(), {.timeout = 60s, .zero_copy = i % 2 == 0 ? ZeroCopy::never : ZeroCopy::automatic});
    // One rank fails; the others have messages pending, and learn of it at different times.
    thrown<std::exception>([&] {
      if (ring.rank() == last) throw OwnFailure();
      for (int round = 0; round <= ring.size(); ++round) {
        std::vector<std::byte> mine(5000), all(5000 * static_cast<std::size_t>(ring.size()));
        if (i % 3 == 0) ring.all_gather(mine, all);
        try_shift(ring, 1, round, 100);
      }
    });
    if (ring.rank() == last) ring.abandon("this rank's own failure");
  }
  // Each new ring frees the rings that all peers have left; all ranks make new rings until each has freed its own.
  for (int i = 0; i < 10; ++i) {
    int freed = counted.freed(), least = 0;
    MPI_Allreduce(&freed, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (least == rings) break;
    MpiRing const next(MPI_COMM_WORLD, options_of_tests());
  }
  CHECK(counted.freed() == rings);
}

TEST_CASE("progress() advances a transfer while a rank computes, and wait() throws its failure", "[mpi][comm]") {
  if (world_size() < 2) return;
  MpiRing ring(MPI_COMM_WORLD, options_of_tests());
  ShiftBuffers buffers(ring, 1, 0, 20 * large);
  auto transfer = buffers.start(ring, Channel::prefetched);
  // All ranks only compute, and never wait: the bytes arrive nevertheless.
  auto const start = std::chrono::steady_clock::now();
  while (buffers.complaint() != "" && std::chrono::steady_clock::now() - start < 20s)
    for (int i = 0; i < 50; ++i) {
      transfer.progress();
      std::this_thread::sleep_for(100us);
    }
  CHECK(buffers.complaint() == "");
  MPI_Barrier(MPI_COMM_WORLD);
  transfer.wait();
  transfer.progress();  // no effect after wait()

  ShiftBuffers uneven(ring, 1, 1, 1, [&](Rank sender, std::size_t) { return sender == 0 ? 10u : 20u; });
  auto second = uneven.start(ring, Channel::prefetched);
  MPI_Barrier(MPI_COMM_WORLD);
  if (ring.rank() == 0) ring.abandon("no longer wanted");
  for (int i = 0; i < 20; ++i) {
    second.progress();
    std::this_thread::sleep_for(1ms);
  }
  CHECK_THAT(thrown<CommunicationError>([&] {
               second.wait();
               for (int round = 0; round <= ring.size(); ++round) try_shift(ring, 1, round, large);
             }),
             ContainsSubstring("no longer wanted"));
}

TEST_CASE("transfers and rings can be moved", "[mpi][comm]") {
  MpiRing made(MPI_COMM_WORLD, options_of_tests());
  MpiRing ring = std::move(made);
  CHECK(try_shift(ring, 1, 0, large) == "");
  ring = MpiRing(MPI_COMM_WORLD, options_of_tests());
  CHECK(try_shift(ring, 1, 1, large) == "");
}

TEST_CASE("ranks of one node are near each other", "[mpi]") {
  MpiRing const ring(MPI_COMM_WORLD, options_of_tests());
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  MPI_Get_processor_name(name.data(), &length);
  std::vector<char> names(name.size() * static_cast<std::size_t>(ring.size()));
  MPI_Allgather(name.data(), static_cast<int>(name.size()), MPI_CHAR, names.data(), static_cast<int>(name.size()),
                MPI_CHAR, MPI_COMM_WORLD);
  auto const name_of_rank = [&](Rank rank) { return names.data() + static_cast<std::size_t>(rank) * name.size(); };
  for (Rank rank = 0; rank < ring.size(); ++rank) {
    Rank lowest = 0;
    while (std::strcmp(name_of_rank(lowest), name_of_rank(rank)) != 0) ++lowest;
    CHECK(ring.near_ranks()[static_cast<std::size_t>(rank)] == lowest);
  }
}

TEST_CASE("near ranks of a part of the ranks are told by their first rank", "[mpi]") {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank() % 2, -world_rank(), &part);  // in the opposite order
  CHECK(detail::lowest_rank_of(part, MPI_COMM_WORLD) == world_rank() % 2);
}
