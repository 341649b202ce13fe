#include "mpi_roll_call.hpp"

#if ANNULUS_COMMAND_HAS_MPI

#include <algorithm>
#include <annulus/comm/mpi/call.hpp>
#include <thread>

namespace annulus_command {

namespace {

/// Carries only these messages, because the ring has a separate communicator.
constexpr auto world = [] { return MPI_COMM_WORLD; };
constexpr int tag = 0;

}  // namespace

MpiRollCall::MpiRollCall(Reason const& mine)
    : rank_(annulus::detail::mpi_rank(world())),
      reasons_(static_cast<std::size_t>(annulus::detail::mpi_size(world()))),
      answer_{.status = mine.ending.status, .is_cause = mine.is_cause, .reports = false, .line = {}} {
  mine.ending.line.copy(answer_.line.data(), answer_.line.size() - 1);
  reasons_[static_cast<std::size_t>(rank_)] = mine;
  send(answer_);
}

void MpiRollCall::send(Message const& message) {
  for (annulus::Rank rank = 0; rank < static_cast<annulus::Rank>(reasons_.size()); ++rank) {
    if (rank == rank_) continue;
    // The process ends with MPI_Abort, so no request needs to be completed.
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(&message, sizeof message, MPI_BYTE, rank, tag, world(), &request);
  }
}

void MpiRollCall::progress() {
  for (;;) {
    int arrived = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, tag, world(), &arrived, &status) != MPI_SUCCESS || arrived == 0) return;
    Message message{};
    MPI_Recv(&message, sizeof message, MPI_BYTE, status.MPI_SOURCE, tag, world(), MPI_STATUS_IGNORE);
    another_reports_ = another_reports_ || message.reports;
    Ending const ending{static_cast<ExitStatus>(message.status), std::string(message.line.data())};
    reasons_[static_cast<std::size_t>(status.MPI_SOURCE)] = Reason{ending, message.is_cause};
  }
}

void MpiRollCall::await(std::chrono::milliseconds limit) {
  auto const end = std::chrono::steady_clock::now() + limit;
  for (progress(); !complete() && std::chrono::steady_clock::now() < end; progress())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool MpiRollCall::complete() const {
  return std::all_of(reasons_.begin(), reasons_.end(), [](auto const& reason) { return reason.has_value(); });
}

bool MpiRollCall::speaks() {
  auto const first =
      std::find_if(reasons_.begin(), reasons_.end(), [](auto const& reason) { return reason.has_value(); });
  if (another_reports_ || first - reasons_.begin() != rank_) return false;
  claim_ = answer_;
  claim_.reports = true;
  send(claim_);
  return true;
}

Ending MpiRollCall::ending() const {
  auto const cause =
      std::find_if(reasons_.begin(), reasons_.end(), [](auto const& reason) { return reason && reason->is_cause; });
  if (cause != reasons_.end()) {
    Ending const& ending = (*cause)->ending;
    return {ending.status, "rank " + std::to_string(cause - reasons_.begin()) + ": " + ending.line};
  }
  Ending ending = reasons_[static_cast<std::size_t>(rank_)]->ending;
  std::string silent;
  for (std::size_t rank = 0; rank < reasons_.size(); ++rank)
    if (!reasons_[rank]) silent += (silent.empty() ? "; no answer from rank " : ", ") + std::to_string(rank);
  ending.line += silent;
  return ending;
}

}  // namespace annulus_command

#endif
