#pragma once
// Gathers of records on a new ring: checks that options are equal, and whether the ranks can share memory.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "annulus/comm/mpi/endpoint.hpp"
#include "annulus/comm/mpi/options.hpp"

namespace annulus::detail {

/// The records of all ranks, in rank order. Record is trivially copyable.
template <class Record>
std::vector<Record> gather_from_all(MpiEndpoint& endpoint, Record const& mine) {
  std::vector<Record> all(static_cast<std::size_t>(endpoint.size()));
  endpoint.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// Throws on all ranks UnsupportedError for options of a rank that are out of range, and CommunicationError if ranks
/// differ in an option that must be the same. The endpoint does not use the options yet.
inline void require_equal_options(MpiEndpoint& endpoint, MpiRingOptions const& options) {
  struct Record {
    std::int64_t timeout;
    std::uint64_t max_message_bytes, zero_copy;
  };
  auto const all = gather_from_all(endpoint, Record{options.timeout.count(), options.max_message_bytes,
                                                    static_cast<std::uint64_t>(options.zero_copy)});
  for (Rank rank = 0; rank < endpoint.size(); ++rank) {
    Record const& record = all[static_cast<std::size_t>(rank)];
    validate({.timeout = std::chrono::milliseconds(record.timeout),
              .max_message_bytes = record.max_message_bytes,
              .zero_copy = static_cast<ZeroCopy>(record.zero_copy)},
             rank);
  }
  auto const require_equal = [&](std::string_view name, auto option) {
    for (Rank other = 1; other < endpoint.size(); ++other)
      if (auto const theirs = option(all[static_cast<std::size_t>(other)]); theirs != option(all[0]))
        throw CommunicationError(message_of("MpiRingOptions: ", name, " is ", option(all[0]), " on rank 0 and ", theirs,
                                            " on rank ", other, "; it must be the same on all ranks"),
                                 endpoint.rank(), CommunicationError::unknown, other);
  };
  require_equal("max_message_bytes", [](Record const& record) { return record.max_message_bytes; });
  require_equal("zero_copy", [](Record const& record) { return name_of(static_cast<ZeroCopy>(record.zero_copy)); });
}

/// Enables zero-copy exchange if the options and the machine allow it. Throws UnsupportedError, on all ranks, if
/// zero_copy is `always` and a rank cannot map memory of another.
inline void share_memory(MpiEndpoint& endpoint, MpiRingOptions const& options) {
  if (options.zero_copy == ZeroCopy::never) return;
  struct Table {
    MappingAddress address;
    std::uint64_t key;
  };
  std::random_device random;
  std::uint64_t const key = std::uint64_t{random()} << 32 | random();
  auto const memory = std::make_shared<MpiSharedMemory>(endpoint.rank(), endpoint.size(), key);
  std::vector<MappingAddress> addresses;
  std::vector<std::uint64_t> keys;
  for (Table const& table : gather_from_all(endpoint, Table{memory->address(), key})) {
    addresses.push_back(table.address);
    keys.push_back(table.key);
  }
  Rank const unreachable = memory->open(addresses, keys).value_or(-1);
  auto const all = gather_from_all(endpoint, unreachable);
  for (Rank rank = 0; rank < endpoint.size(); ++rank)
    if (Rank const other = all[static_cast<std::size_t>(rank)]; other >= 0) {
      check<UnsupportedError>(options.zero_copy != ZeroCopy::always, "MpiRingOptions: zero_copy is always, but rank ",
                              rank, " cannot map memory of rank ", other,
                              "; all ranks must run on one Linux node, for one user and in one container");
      return;
    }
  endpoint.share(memory);
}

}  // namespace annulus::detail
