// Memory and events of GPUs that processes share: a ring of pushed copies, ordered by events alone, with one and with
// several processes on a GPU. For CUDA's runtime and for the one of support/cuda_on_threads.

#include "annulus/core/cuda/interprocess.hpp"

#include "support/catch.hpp"
#include "support/forks.hpp"

#if defined(ANNULUS_TEST_FORKS)

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

using namespace annulus;
using namespace annulus::cuda::detail;

namespace {

constexpr int rounds = 24, most_ranks = 4;
constexpr std::size_t length = 1 << 16;
enum Outcome { right, no_gpu, wrong, threw };

/// What a rank lets the others know. Counts are of rounds whose work has been submitted.
struct Posted {
  MemoryAddress in;
  cudaIpcEventHandle_t ready, copied;
  std::atomic<int> readied, pushed;
};

/// In memory that the ranks share; zeros at first.
struct Board {
  std::array<Posted, most_ranks> ranks;
  std::atomic<int> joined, done;
};

/// Host waits are for what another process posts; the alarm of the process ends those that are never satisfied.
void await(std::atomic<int> const& count, int least) {
  while (count < least) std::this_thread::yield();
}

void pause(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

void copy(std::byte* to, std::byte const* from, std::size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}
void record(cudaEvent_t event, cudaStream_t stream) { check(cudaEventRecord(event, stream), "cudaEventRecord"); }
void wait(cudaStream_t stream, cudaEvent_t event) {
  check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

/// True if a process refuses to open its own memory, and to give memory of the host an address.
bool refuses_own(Posted const& mine, std::byte* host) {
  auto const throws = [](auto function) {
    try {
      function();
    } catch (Error const&) {
      return true;
    }
    return false;
  };
  return throws([&] { OpenedMemory().open(mine.in); }) && throws([&] { address_of(host + 1); });
}

/// One process of the ring, on the current GPU. Sends its bytes of a round to the next one.
class RingProcess {
 public:
  RingProcess(Board& board, int rank, int size)
      : board_(board),
        mine_(at(rank)),
        next_(at((rank + 1) % size)),
        previous_(at((rank + size - 1) % size)),
        rank_(rank),
        size_(size) {
    mine_.in = address_of(in_);
    mine_.ready = address_of(ready_);
    mine_.copied = address_of(copied_);
    for (int round = 0; round < rounds; ++round) std::memset(sent(round), value(rank, round), length);
    std::memset(sent(rounds), 0xEE, length);
    ++board.joined;
    await(board.joined, size);
  }

  Outcome run() {
    std::vector<std::byte> pageable(2);
    if (!refuses_own(mine_, pageable.data())) return wrong;
    OpenedMemory opened;
    std::byte* const there = opened.open(next_.in);
    if (opened.open(next_.in) != there) return wrong;
#if !defined(CUDART_VERSION)
    if (cuda_on_threads::Machine::instance().opened != 1) return wrong;
#endif
    Event const their_ready = open_event(next_.ready), arrived = open_event(previous_.copied);
    for (int round = 0; round < rounds; ++round) shift(round, there, their_ready, arrived);
    check(cudaStreamSynchronize(queue_), "cudaStreamSynchronize");
    ++board_.done;
    await(board_.done, size_);  // nobody frees what another one uses
    return all_arrived() ? right : wrong;
  }

 private:
  static int value(int rank, int round) { return 16 * rank + round % 16; }
  Posted& at(int rank) const { return board_.ranks[static_cast<std::size_t>(rank)]; }
  std::byte* sent(int round) const { return host_.data() + static_cast<std::size_t>(round) * length; }
  std::byte* seen(int round) const { return seen_.data() + 2 * round; }

  void shift(int round, std::byte* there, cudaEvent_t their_ready, cudaEvent_t arrived) {
    if (round % size_ == rank_) check(cudaLaunchHostFunc(queue_, pause, nullptr), "cudaLaunchHostFunc");
    copy(out_, sent(round), length, queue_);
    record(ready_, queue_);
    mine_.readied = round + 1;
    await(next_.readied, round + 1);
    wait(copies_, ready_);
    wait(copies_, their_ready);
    copy(there, out_, length, copies_);
    record(copied_, copies_);
    mine_.pushed = round + 1;
    await(previous_.pushed, round + 1);
    wait(queue_, arrived);
    wait(queue_, copied_);
    copy(seen(round), in_, 1, queue_);
    copy(seen(round) + 1, in_ + length - 1, 1, queue_);
    copy(in_, sent(rounds), length, queue_);
  }

  bool all_arrived() const {
    for (int round = 0; round < rounds; ++round) {
      auto const expected = static_cast<std::byte>(value((rank_ + size_ - 1) % size_, round));
      if (seen(round)[0] == expected && seen(round)[1] == expected) continue;
      std::fprintf(stderr, "rank %d, round %d: wrong bytes\n", rank_, round);
      return false;
    }
    return true;
  }

  Board& board_;
  Posted &mine_, &next_, &previous_;
  int rank_, size_;
  DeviceBytes memory_ = allocate_device(2 * length);
  std::byte *out_ = memory_.data(), *in_ = out_ + length;  // `in` is not the first byte of its allocation
  PinnedBytes host_ = allocate_pinned((rounds + 1) * length), seen_ = allocate_pinned(2 * rounds);
  Event ready_ = make_interprocess_event(), copied_ = make_interprocess_event();
  Stream queue_ = make_stream(), copies_ = make_stream();
};

Outcome run_process(Board& board, int rank, int size, int ranks_a_gpu) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return no_gpu;
  CurrentDevice const current(rank / ranks_a_gpu % gpus);
  Outcome const outcome = RingProcess(board, rank, size).run();
#if !defined(CUDART_VERSION)
  auto& machine = cuda_on_threads::Machine::instance();
  if (machine.opened != 0 || machine.events != 0 || machine.allocations != 0) return wrong;
#endif
  return outcome;
}

/// Ends with the Outcome of the rank as its status; a signal ends it if it hangs.
pid_t fork_rank(Board& board, int rank, int size, int ranks_a_gpu) {
  pid_t const child = fork();
  if (child != 0) return child;
  alarm(60);
  try {
    _exit(run_process(board, rank, size, ranks_a_gpu));
  } catch (std::exception const& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    _exit(threw);
  }
}

}  // namespace

TEST_CASE("processes push into each other's GPU memory, ordered by each other's events", "[peer][processes]") {
#if !defined(CUDART_VERSION)
  cuda_on_threads::SharedWithForks const shared;
#endif
  // The parent does not use CUDA, which does not survive a fork.
  for (int const size : {2, 3, 4})
    for (int const ranks_a_gpu : {1, 2, size}) {
      CAPTURE(size, ranks_a_gpu);
      void* const data = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      REQUIRE(data != MAP_FAILED);
      std::vector<pid_t> children;
      for (int rank = 0; rank < size; ++rank)
        children.push_back(fork_rank(*static_cast<Board*>(data), rank, size, ranks_a_gpu));
      for (pid_t const child : children) {
        int status = 0;
        REQUIRE(waitpid(child, &status, 0) == child);
        REQUIRE(WIFEXITED(status));
        if (WEXITSTATUS(status) == no_gpu)
          std::puts("skipped: there is no GPU");
        else
          CHECK(WEXITSTATUS(status) == right);
      }
      munmap(data, sizeof(Board));
    }
}

#endif
