#include "mpi_session.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#if ANNULUS_COMMAND_HAS_MPI
#include <annulus/comm/mpi.hpp>
#endif

namespace annulus_command {

bool asks_for_mpi(std::span<char* const> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string_view const argument = arguments[i];
    if (argument == "--comm=mpi") return true;
    if (argument == "--comm" && i + 1 < arguments.size() && std::string_view(arguments[i + 1]) == "mpi") return true;
  }
  return false;
}

#if ANNULUS_COMMAND_HAS_MPI

namespace {

/// MPI counts with int.
constexpr std::size_t chunk_bytes = std::size_t{1} << 30;
constexpr int tag = 0;

/// The command's own messages and the ring's do not meet: the ring talks on a communicator of its own.
constexpr auto world = [] { return MPI_COMM_WORLD; };

template <class Bytes, class Function>
void for_each_chunk(Bytes bytes, Function&& function) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(chunk_bytes, bytes.size())))
    function(bytes.first(std::min(chunk_bytes, bytes.size())));
}

}  // namespace

bool MpiSession::is_built_in() { return true; }

MpiSession::MpiSession(int& argc, char**& argv) {
  annulus::detail::check_mpi(MPI_Init(&argc, &argv), "MPI_Init");
  rank_ = annulus::detail::mpi_rank(world());
  size_ = annulus::detail::mpi_size(world());
}

MpiSession::~MpiSession() { MPI_Finalize(); }

void MpiSession::agree(std::exception_ptr const& mine) {
  int culprit = mine ? rank_ : size_;
  MPI_Allreduce(MPI_IN_PLACE, &culprit, 1, MPI_INT, MPI_MIN, world());
  if (culprit == size_) return;
  Ending ending;
  if (mine) ending = ending_of(mine);
  int header[2] = {static_cast<int>(ending.status), static_cast<int>(ending.line.size())};
  MPI_Bcast(header, 2, MPI_INT, culprit, world());
  ending.status = static_cast<ExitStatus>(header[0]);
  ending.line.resize(static_cast<std::size_t>(header[1]));
  MPI_Bcast(ending.line.data(), header[1], MPI_CHAR, culprit, world());
  throw AgreedEnding(ending);
}

void MpiSession::broadcast(std::span<std::byte> bytes) {
  for_each_chunk(bytes, [&](std::span<std::byte> chunk) {
    MPI_Bcast(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, 0, world());
  });
}

void MpiSession::send(std::span<std::byte const> bytes, annulus::Rank to) {
  for_each_chunk(bytes, [&](std::span<std::byte const> chunk) {
    MPI_Send(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, to, tag, world());
  });
}

void MpiSession::receive(std::span<std::byte> bytes, annulus::Rank from) {
  for_each_chunk(bytes, [&](std::span<std::byte> chunk) {
    MPI_Recv(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, from, tag, world(), MPI_STATUS_IGNORE);
  });
}

void MpiSession::barrier() { MPI_Barrier(world()); }

void MpiSession::with_ring(std::function<void(AnyRing&)> const& function) {
  annulus::MpiRing ring(world());
  AnyRing any(ring);
  function(any);
}

void MpiSession::abort(Ending const& ending) {
  std::fprintf(stderr, "annulus: rank %d: %s\n", rank_, ending.line.c_str());
  MPI_Abort(world(), ending.status);
  std::abort();
}

#else

bool MpiSession::is_built_in() { return false; }

MpiSession::MpiSession(int&, char**&) {
  throw InputError("--comm mpi: this build of the command has no MPI; accepted: sim");
}
MpiSession::~MpiSession() = default;
void MpiSession::agree(std::exception_ptr const& mine) {
  if (mine) throw AgreedEnding(ending_of(mine));
}
void MpiSession::broadcast(std::span<std::byte>) {}
void MpiSession::send(std::span<std::byte const>, annulus::Rank) {}
void MpiSession::receive(std::span<std::byte>, annulus::Rank) {}
void MpiSession::barrier() {}
void MpiSession::with_ring(std::function<void(AnyRing&)> const&) {}
void MpiSession::abort(Ending const& ending) {
  std::fprintf(stderr, "annulus: %s\n", ending.line.c_str());
  std::abort();
}

#endif

}  // namespace annulus_command
