#pragma once
// Tags of a ring's private communicator. A stream is a channel or the all-gathers; streams share no tag.

#include <cstddef>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/mpi/call.hpp"

namespace annulus::detail {

/// The tags of one stream. The tag of a payload encodes its length: some versions of Open MPI write past the end of a
/// receive that is shorter than what a faulty peer sends, so the two must not match. Lengths share a tag only if they
/// differ by a multiple of an odd number near a quarter of MPI's largest tag.
class MpiTags {
 public:
  static constexpr int notice = 0;

  static MpiTags of_all_gathers(int largest_tag) { return {0, largest_tag}; }
  static MpiTags of(Channel channel, int largest_tag) { return {1 + static_cast<int>(channel), largest_tag}; }

  /// Tag of the list of runs.
  int list() const { return first_list + stream_; }
  /// Tag of a message of `bytes` bytes.
  int payload(std::size_t bytes) const {
    return first_payload + stream_ + streams * static_cast<int>(bytes % static_cast<std::size_t>(lengths_));
  }

 private:
  static constexpr int streams = 4, first_list = notice + 1, first_payload = first_list + streams;

  MpiTags(int stream, int largest_tag) : stream_(stream), lengths_(((largest_tag - first_payload) / streams - 1) | 1) {}

  int stream_;
  int lengths_;
};

/// The largest tag of this MPI library; the standard guarantees at least 32767.
inline int largest_mpi_tag() {
  int* largest = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest), &found), "MPI_Comm_get_attr");
  return found != 0 ? *largest : 32767;
}

}  // namespace annulus::detail
