#pragma once
// Instructions of Hopper that CUDA C++ lacks, one function each: mbarriers, named barriers, register reallocation and
// bulk tensor copies. Names in brackets are sections of NVIDIA's manual "PTX ISA". Products: products.cuh.
//
// Ordinary loads and stores, the copy engine and the tensor cores are three proxies of shared memory. Where the copy
// engine writes and an mbarrier tells the reader, no fence is needed. Where threads write, shared_writes_fence() is.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "annulus/backend/cuda/warp_instructions.cuh"

namespace annulus::cuda::detail::hopper {

__device__ __forceinline__ std::uint32_t shared_address(void const* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarriers -----------------------------------------------------------------------------------------------------
// An mbarrier counts arrivals, and bytes that the copy engine still owes. When both reach zero its phase flips. A
// waiter names the parity of the phase whose end it waits for; on a fresh barrier, waiting for parity 1 passes at once.

/// [mbarrier.init]
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes the initialised barriers known to the copy engine. [membar / fence: fence.mbarrier_init]
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// [mbarrier.arrive]
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// One arrival, and a debt of `bytes` that the copy engine pays. [mbarrier.arrive: .expect_tx]
__device__ __forceinline__ void barrier_arrive_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// True if the phase of this parity has ended; may wait for a while first. [mbarrier.try_wait]
__device__ __forceinline__ bool barrier_test(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
#ifdef ANNULUS_HOPPER_WATCHDOG  // turns a deadlock into an error, for tests
  for (long long const since = clock64(); !barrier_test(barrier, parity);)
    if (clock64() - since > 4'000'000'000) __trap();
#else
  while (!barrier_test(barrier, parity)) {
  }
#endif
}

// ---- named barriers among warpgroups -------------------------------------------------------------------------------

/// [bar / barrier: bar.sync]
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts as one of the threads that others wait for, without waiting. [bar / barrier: bar.arrive]
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// True if `mine` holds for any of the threads, of which all wait for each other. [bar / barrier: bar.red]
__device__ __forceinline__ bool named_any(int id, int threads, bool mine) {
  std::uint32_t any;
  asm volatile("{\n .reg .pred p, q;\n setp.ne.u32 p, %3, 0;\n bar.red.or.pred q, %1, %2, p;\n selp.u32 %0, 1, 0, q;\n}"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"(static_cast<std::uint32_t>(mine))
               : "memory");
  return any != 0;
}

// ---- registers -----------------------------------------------------------------------------------------------------
// Executed by all warps of a warpgroup, in a kernel with __launch_bounds__(threads, 1). [setmaxnreg]

template <int Count>
__device__ __forceinline__ void registers_give_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
__device__ __forceinline__ void registers_take() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

/// The thread's lane, read here, so that nothing that follows from it stays in registers. [Special Registers: %laneid]
__device__ __forceinline__ int lane_now() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// The same value, of which the compiler does not know that: what follows from it is computed again, not kept.
__device__ __forceinline__ int recompute_from(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// ---- bulk tensor copies --------------------------------------------------------------------------------------------

/// Encodings that [createpolicy] makes for a fraction of 1.
enum class CachePolicy : std::uint64_t {
  evict_first = 0x12F0000000000000,
  evict_last = 0x14F0000000000000,
};

/// Place of a box in a tensor [batch, heads, rows, columns].
struct BoxPlace {
  int column, row, head, batch;
};

/// Copies a box of a rank-4 tensor to shared memory; `barrier` is paid its bytes. Elements outside the tensor are 0.
/// [cp.async.bulk.tensor]
__device__ __forceinline__ void copy_box(std::uint32_t destination, CUtensorMap const* map, std::uint32_t barrier,
                                         BoxPlace place, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(place.column), "r"(place.row), "r"(place.head), "r"(place.batch),
      "l"(static_cast<std::uint64_t>(policy))
      : "memory");
}

/// Adds a box of fp32 in shared memory to a rank-5 tensor [batch, heads, panels, rows, 32], beginning at panel and
/// column 0. Elements outside the tensor are left out. [cp.reduce.async.bulk.tensor]
__device__ __forceinline__ void add_box(CUtensorMap const* map, std::uint32_t source, int row, int head, int batch) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %2, %4, %5}], [%1];" ::"l"(
          map),
      "r"(source), "r"(0), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
/// The same, in place of the elements that are there. [cp.async.bulk.tensor]
__device__ __forceinline__ void store_box(CUtensorMap const* map, std::uint32_t source, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %2, %4, %5}], [%1];" ::"l"(map),
      "r"(source), "r"(0), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

/// [cp.async.bulk.commit_group]
__device__ __forceinline__ void boxes_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until the sources of all boxes of this thread have been read. [cp.async.bulk.wait_group: .read]
__device__ __forceinline__ void boxes_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// Until all boxes of this thread have been written. [cp.async.bulk.wait_group]
__device__ __forceinline__ void boxes_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Asks for memory to be brought to the L2. Address and size are multiples of 16. [cp.async.bulk.prefetch]
__device__ __forceinline__ void prefetch_to_l2(void const* address, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
}
/// [prefetch: .tensormap]
__device__ __forceinline__ void prefetch_map(CUtensorMap const* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- order of memory -----------------------------------------------------------------------------------------------

/// Before a barrier, in every thread that wrote shared memory which the copy engine or a product then reads.
/// [membar / fence: fence.proxy.async]
__device__ __forceinline__ void shared_writes_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// Between what this thread saw or did in memory and what it lets the copy engine do, either way.
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// Returns when the kernel before this one on its stream has ended and its writes are visible. [griddepcontrol: .wait]
__device__ __forceinline__ void await_earlier_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// Lets blocks of the kernel behind this one begin where blocks of this one end. [griddepcontrol: .launch_dependents]
__device__ __forceinline__ void allow_later_kernel() { asm volatile("griddepcontrol.launch_dependents;"); }

/// [ld: .acquire]
__device__ __forceinline__ int load_acquire(int const* address) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
/// [st: .release]
__device__ __forceinline__ void store_release(int* address, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// ---- numbers -------------------------------------------------------------------------------------------------------

/// Four 8x8 matrices of 16-bit elements from shared memory: for a 16 x 16 block this is the A operand of a product.
/// [ldmatrix]
__device__ __forceinline__ void load_matrices(std::uint32_t address, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// The reverse of load_matrices. [stmatrix]
__device__ __forceinline__ void store_matrices(std::uint32_t address, std::uint32_t const (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

/// 2^x on the special-function unit (16 results per clock and multiprocessor); 0 for -inf. [ex2]
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace annulus::cuda::detail::hopper
