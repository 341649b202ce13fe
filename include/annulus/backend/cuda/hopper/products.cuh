#pragma once
// Asynchronous products of a warpgroup. Names in brackets are sections of NVIDIA's manual "PTX ISA".
//
// A warpgroup (4 warps) multiplies A [64 x 16] by B [16 x N] and adds to D [64 x N], which lies in its registers
// [wgmma: Register Fragments]: thread t of the warpgroup, lane l = t % 32, warp w = t / 32, holds for j = 0 .. N/8-1
//   d[4j+0], d[4j+1]: row 16w + l/4,     columns 8j + 2(l%4), +1
//   d[4j+2], d[4j+3]: row 16w + l/4 + 8, the same columns.
// A from registers has the same shape with pairs packed in a word. So 16 columns of a product D, rounded in place, are
// the A operand of the next product, without any movement between threads. That is what makes P V cheap.
//
// Tiles in shared memory are [columns / 64][rows][64] of 16-bit elements: panels of 128-byte rows whose 16-byte chunks
// are permuted by chunk ^= row % 8 (the copy engine's 128-byte swizzle), at multiples of 1024 bytes. One descriptor
// form [wgmma: Matrix Descriptor Format] serves both uses:
//   K-major (Q and K: the product runs along a row):   `stride` = 1024, from 8 rows to the next 8; `leading` unused.
//                                                      16 columns further = 32 bytes.
//   MN-major (V: the product runs along the rows):     `stride` = 1024, from 8 rows to the next 8; `leading` = from 64
//                                                      columns to the next 64 = rows * 128. 16 rows further = 2048.
// The compiler allocates D as one contiguous block, and serializes products (warnings C7510 to C7514) where it runs
// short of registers, which begins about 20 registers before spills; cold code counts. Products must not be unfinished
// where a loop turns (C7514).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace annulus::cuda::detail::hopper {

/// Columns of a panel of a tile in shared memory.
inline constexpr int panel_columns = 64;
/// Panels of a tile of that many columns. The rest of the last panel holds zeros.
__host__ __device__ constexpr int panels_of(int columns) { return (columns + panel_columns - 1) / panel_columns; }

__device__ __forceinline__ std::uint64_t tile_descriptor(std::uint32_t address, std::uint32_t leading_bytes) {
  constexpr std::uint64_t swizzle_128 = std::uint64_t{1} << 62, stride = std::uint64_t{1024 >> 4} << 32;
  return swizzle_128 | stride | (std::uint64_t{leading_bytes >> 4} << 16) | ((address & 0x3FFFF) >> 4);
}
/// What to add to a descriptor to move by so many bytes.
__host__ __device__ constexpr std::uint64_t descriptor_step(int bytes) {
  return static_cast<std::uint64_t>(bytes / 16);
}
/// The same for 16 columns number `step` of a K-major tile of `rows` rows.
__host__ __device__ constexpr std::uint64_t columns_step(int step, int rows) {
  return descriptor_step((step / 4) * (rows * 128) + (step % 4) * 32);
}
/// The same for 16 rows number `step` of an MN-major tile.
__host__ __device__ constexpr std::uint64_t rows_step(int step) { return descriptor_step(step * 2048); }

/// Before the first product, and again whenever registers of D or A were written by other instructions. [wgmma.fence]
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// [wgmma.commit_group]
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most `Left` committed groups are unfinished. The compiler moves this wait over independent arithmetic, such
/// as 60 exponentials; only a branch that depends on their results, between them and the wait, stops it.
/// [wgmma.wait_group]
template <int Left>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
}

/// Registers that products read or write asynchronously must not be moved or reused across a wait: this pins them.
template <int Count>
__device__ __forceinline__ void pin(float (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int Count>
__device__ __forceinline__ void pin(std::uint32_t (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

/// How an operand of a product lies in shared memory.
enum class Major {
  k,   ///< rows run along the summed dimension
  mn,  ///< rows run along the other one
};

#define ANNULUS_D8(i)                                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define ANNULUS_D16 ANNULUS_D8(0), ANNULUS_D8(8)
#define ANNULUS_D32 ANNULUS_D16, ANNULUS_D8(16), ANNULUS_D8(24)
#define ANNULUS_D40 ANNULUS_D32, ANNULUS_D8(32)
#define ANNULUS_D48 ANNULUS_D40, ANNULUS_D8(40)
#define ANNULUS_D56 ANNULUS_D48, ANNULUS_D8(48)
#define ANNULUS_D64 ANNULUS_D56, ANNULUS_D8(56)
#define ANNULUS_D96 ANNULUS_D64, ANNULUS_D8(64), ANNULUS_D8(72), ANNULUS_D8(80), ANNULUS_D8(88)
#define ANNULUS_D128 ANNULUS_D96, ANNULUS_D8(96), ANNULUS_D8(104), ANNULUS_D8(112), ANNULUS_D8(120)
#define ANNULUS_T16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define ANNULUS_T32 ANNULUS_T16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define ANNULUS_T40 ANNULUS_T32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define ANNULUS_T48 ANNULUS_T40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define ANNULUS_T56 ANNULUS_T48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define ANNULUS_T64 ANNULUS_T56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define ANNULUS_T96                                                                                  \
  ANNULUS_T64                                                                                        \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87" \
  ",%88,%89,%90,%91,%92,%93,%94,%95"
#define ANNULUS_T128                                                                                                  \
  ANNULUS_T96                                                                                                         \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%" \
  "119"                                                                                                               \
  ",%120,%121,%122,%123,%124,%125,%126,%127"

// multiply<T, b>(d, a, B, keep): d = A B + (keep ? d : 0), for elements of type T; the array length of d picks N. A is
// a descriptor, of a tile that is `a`-major, or four words in registers. I0.. are the numbers of the operands that
// follow d. [wgmma.mma_async]
#define ANNULUS_WGMMA_FROM_SHARED(N, WORDS, TYPE, I0, I1, I2, I3, I4)                                         \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #I2 ", 0;\n wgmma.mma_async.sync.aligned.m64n" #N       \
               "k16.f32." TYPE " {" ANNULUS_T##WORDS "}, %" #I0 ", %" #I1 ", p, 1, 1, %" #I4 ", %" #I3 ";\n}" \
               : ANNULUS_D##WORDS                                                                             \
               : "l"(a), "l"(b), "r"(keep), "n"(static_cast<int>(b_major)), "n"(static_cast<int>(a_major))    \
               : "memory")
#define ANNULUS_WGMMA_FROM_REGISTERS(N, WORDS, TYPE, I0, I1, I2, I3, I4, I5, I6)                               \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #I5 ", 0;\n wgmma.mma_async.sync.aligned.m64n" #N        \
               "k16.f32." TYPE " {" ANNULUS_T##WORDS "}, {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4      \
                                                     ", p, 1, 1, %" #I6 ";\n}"                                 \
               : ANNULUS_D##WORDS                                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(static_cast<int>(b_major)) \
               : "memory")
#define ANNULUS_WGMMA(N, WORDS, I0, I1, I2, I3, I4, I5, I6)                                                       \
  template <class Element, Major b_major, Major a_major = Major::k>                                               \
  __device__ __forceinline__ void multiply(float(&d)[N / 2], std::uint64_t a, std::uint64_t b, int keep) {        \
    if constexpr (std::is_same_v<Element, __half>)                                                                \
      ANNULUS_WGMMA_FROM_SHARED(N, WORDS, "f16.f16", I0, I1, I2, I3, I4);                                         \
    else                                                                                                          \
      ANNULUS_WGMMA_FROM_SHARED(N, WORDS, "bf16.bf16", I0, I1, I2, I3, I4);                                       \
  }                                                                                                               \
  template <class Element, Major b_major>                                                                         \
  __device__ __forceinline__ void multiply(float(&d)[N / 2], std::uint32_t const* a, std::uint64_t b, int keep) { \
    if constexpr (std::is_same_v<Element, __half>)                                                                \
      ANNULUS_WGMMA_FROM_REGISTERS(N, WORDS, "f16.f16", I0, I1, I2, I3, I4, I5, I6);                              \
    else                                                                                                          \
      ANNULUS_WGMMA_FROM_REGISTERS(N, WORDS, "bf16.bf16", I0, I1, I2, I3, I4, I5, I6);                            \
  }

ANNULUS_WGMMA(32, 16, 16, 17, 18, 19, 20, 21, 22)
ANNULUS_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
ANNULUS_WGMMA(80, 40, 40, 41, 42, 43, 44, 45, 46)
ANNULUS_WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54)
ANNULUS_WGMMA(112, 56, 56, 57, 58, 59, 60, 61, 62)
ANNULUS_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
ANNULUS_WGMMA(192, 96, 96, 97, 98, 99, 100, 101, 102)
ANNULUS_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)

#undef ANNULUS_WGMMA
#undef ANNULUS_WGMMA_FROM_REGISTERS
#undef ANNULUS_WGMMA_FROM_SHARED
#undef ANNULUS_T16
#undef ANNULUS_T32
#undef ANNULUS_T40
#undef ANNULUS_T48
#undef ANNULUS_T56
#undef ANNULUS_T64
#undef ANNULUS_T96
#undef ANNULUS_T128
#undef ANNULUS_D128
#undef ANNULUS_D96
#undef ANNULUS_D64
#undef ANNULUS_D56
#undef ANNULUS_D48
#undef ANNULUS_D40
#undef ANNULUS_D32
#undef ANNULUS_D16
#undef ANNULUS_D8

}  // namespace annulus::cuda::detail::hopper
