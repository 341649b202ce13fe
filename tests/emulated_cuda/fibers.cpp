// Threads of a block as fibers of one host thread: they run in turn, each until it waits for its block or its warp. In
// every other turn they run in reverse order, so that a missing barrier shows.

// The check of jumps would take those between stacks for errors.
#undef _FORTIFY_SOURCE

#include "annulus/backend/cuda/warp_instructions.cuh"

#include <cuda_runtime.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <memory>

uint3 threadIdx, blockIdx;
dim3 gridDim;

namespace emulated_cuda {
namespace {

enum class Waits { no, warp, block, done };

/// A copy of 16 bytes to shared memory, of a group of copies.
struct Copy {
  void* to;
  void const* from;
  bool exists;
  int group;
};

struct Fiber {
  static constexpr std::size_t stack_bytes = 256 * 1024;

  std::unique_ptr<unsigned char[]> stack{new unsigned char[stack_bytes]};
  ucontext_t context;
  jmp_buf place;
  bool begun = false;
  Waits waits = Waits::no;
  uint3 index{};
  bool second_exchange = false;
  std::vector<Copy> copies{};  ///< that have not been waited for
  int copy_groups = 0;         ///< that have ended
};

struct Exchanged {
  unsigned char bytes[32][most_exchanged];
};

/// The block that runs.
struct Block {
  std::vector<Fiber> fibers;
  Fiber* running = nullptr;
  jmp_buf scheduler;
  std::function<void()> const* kernel = nullptr;
  std::vector<Exchanged> exchanged;
  unsigned threads = 0;

  static Block& instance() {
    static Block block;
    return block;
  }
};

void run_fiber() {
  Block& block = Block::instance();
  (*block.kernel)();
  block.running->waits = Waits::done;
  _longjmp(block.scheduler, 1);
}

void resume(Fiber& fiber) {
  Block& block = Block::instance();
  block.running = &fiber;
  threadIdx = fiber.index;
  if (_setjmp(block.scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = Fiber::stack_bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, run_fiber, 0);
  setcontext(&fiber.context);
}

void wait(Waits for_whom) {
  Block& block = Block::instance();
  block.running->waits = for_whom;
  if (_setjmp(block.running->place) == 0) _longjmp(block.scheduler, 1);
}

/// Releases the fibers [begin, end) if none of them runs and some wait for `whom`. False if they wait for another.
bool release(Block& block, unsigned begin, unsigned end, Waits whom) {
  bool some = false;
  for (unsigned t = begin; t < end; ++t) {
    Waits const waits = block.fibers[t].waits;
    if (waits != whom && waits != Waits::done) return false;
    some = some || waits == whom;
  }
  for (unsigned t = begin; some && t < end; ++t)
    if (block.fibers[t].waits == whom) block.fibers[t].waits = Waits::no;
  return some;
}

void run_block(Block& block) {
  for (unsigned t = 0; t < block.threads; ++t)
    block.fibers[t].begun = block.fibers[t].second_exchange = false, block.fibers[t].waits = Waits::no,
    block.fibers[t].copies.clear();
  for (bool reverse = false;; reverse = !reverse) {
    bool released = false;
    for (unsigned n = 0; n < block.threads; ++n) {
      Fiber& fiber = block.fibers[reverse ? block.threads - 1 - n : n];
      if (fiber.waits != Waits::no) continue;
      resume(fiber);
      released = true;
    }
    for (unsigned warp = 0; warp < block.threads; warp += 32)
      released = release(block, warp, std::min(warp + 32, block.threads), Waits::warp) || released;
    released = release(block, 0, block.threads, Waits::block) || released;
    if (released) continue;
    for (unsigned t = 0; t < block.threads; ++t)
      if (block.fibers[t].waits != Waits::done) {
        std::fputs("a block waits for threads that do not come\n", stderr);
        std::abort();
      }
    return;
  }
}

}  // namespace

void run_grid(dim3 blocks, dim3 threads, std::function<void()> const& kernel) {
  Block& block = Block::instance();
  block.threads = threads.x * threads.y * threads.z;
  if (block.fibers.size() < block.threads) block.fibers.resize(block.threads);
  block.exchanged.resize((block.threads + 31) / 32 * 2);
  block.kernel = &kernel;
  gridDim = blocks;
  for (unsigned t = 0; t < block.threads; ++t)
    block.fibers[t].index = {t % threads.x, t / threads.x % threads.y, t / threads.x / threads.y};
  // In descending order: no block may rely on an earlier one.
  for (unsigned z = blocks.z; z-- > 0;)
    for (unsigned y = blocks.y; y-- > 0;)
      for (unsigned x = blocks.x; x-- > 0;) {
        blockIdx = {x, y, z};
        run_block(block);
      }
}

void meet_block() { wait(Waits::block); }
void meet_warp() { wait(Waits::warp); }

unsigned lane_of_thread() {
  return static_cast<unsigned>(Block::instance().running - Block::instance().fibers.data()) % 32;
}
WarpExchange next_exchange() {
  Block& block = Block::instance();
  auto const number = static_cast<unsigned>(block.running - block.fibers.data());
  bool const second = std::exchange(block.running->second_exchange, !block.running->second_exchange);
  return {block.exchanged[number / 32 * 2 + (second ? 1 : 0)].bytes, number % 32};
}

}  // namespace emulated_cuda

namespace annulus::cuda::detail {

using emulated_cuda::Block;

void begin_copy(void* to, void const* from, bool exists) {
  auto* const fiber = Block::instance().running;
  fiber->copies.push_back({to, from, exists, fiber->copy_groups});
}
void end_copies() { ++Block::instance().running->copy_groups; }
void wait_for_copies_but(int pending) {
  auto* const fiber = Block::instance().running;
  std::erase_if(fiber->copies, [&](auto const& copy) {
    if (copy.group >= fiber->copy_groups - pending) return false;
    if (copy.exists)
      std::memcpy(copy.to, copy.from, 16);
    else
      std::memset(copy.to, 0, 16);
    return true;
  });
}

}  // namespace annulus::cuda::detail
