#pragma once
// Operand elements of products: single values, or pairs or quads of bfloat16 where the target has an instruction for
// their product; and products of pairs on AMX tiles, the matrix registers of x86: sums of 16 x 16 floats, from 16 rows
// of 16 pairs and 16 rows of pairs for 16 columns (Intel 64 and IA-32 Architectures Software Developer's Manual, volume
// 1, chapter 18).

#include <Eigen/Core>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "annulus/backend/cpu/simd/vector.hpp"
#include "annulus/core/index.hpp"
#include "annulus/core/scalar.hpp"

#if defined(ANNULUS_CPU_HAS_AMX)
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#endif

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Two bfloat16 neighbours along the summed axis; the first in the low bits.
struct BfloatPair {
  std::uint32_t bits;
};

/// Four bfloat16 neighbours along the summed axis; the first in the low bits.
struct BfloatQuad {
  std::uint64_t bits;
};

/// Loads and multiply-adds for elements E.
template <class E>
struct Operand {
  using Sum = E;
  using Row = Vector<E>;
  static constexpr int depth = 1;  ///< products per element

  [[gnu::always_inline]] static Row load(E const* from) { return Row::load(from); }
  /// Loads a factor of several products into a register. GCC 12 might otherwise load it once for each.
  [[gnu::always_inline]] static Row load_once(E const* from) {
    Row row = Row::load(from);
    keep_in_register(row.native);
    return row;
  }
  [[gnu::always_inline]] static Row repeat(E element) { return Row::of(element); }
  [[gnu::always_inline]] static Vector<E> multiply_add(Row a, Row b, Vector<E> sum) {
    return detail::multiply_add(a, b, sum);
  }
};

/// Pair products. Where the target has none, the type is needed for its sizes alone.
template <>
struct Operand<BfloatPair> {
  using Sum = float;
  static constexpr int depth = 2;

#if defined(ANNULUS_CPU_HAS_PAIRS)
  typedef std::uint32_t Row __attribute__((vector_size(vector_bytes)));

  [[gnu::always_inline]] static Row load(BfloatPair const* from) {
    Row row;
    std::memcpy(&row, from, sizeof row);
    return row;
  }
  [[gnu::always_inline]] static Row load_once(BfloatPair const* from) {
    Row row = load(from);
    keep_in_register(row);
    return row;
  }
  [[gnu::always_inline]] static Row repeat(BfloatPair element) { return element.bits + Row{}; }
  [[gnu::always_inline]] static Vector<float> multiply_add(Row a, Row b, Vector<float> sum) {
#if defined(__AVX512BF16__)
    return {_mm512_dpbf16_ps(sum.native, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b))};
#else
    return {reinterpret_cast<Vector<float>::Native>(vbfdotq_f32(reinterpret_cast<float32x4_t>(sum.native),
                                                                reinterpret_cast<bfloat16x8_t>(a),
                                                                reinterpret_cast<bfloat16x8_t>(b)))};
#endif
  }

  /// Pairs of neighbouring lanes, rounded to nearest, first those of `low`.
  [[gnu::always_inline]] static Row pairs_of_lanes(Vector<float> low, Vector<float> high) {
#if defined(__AVX512BF16__)
    return reinterpret_cast<Row>(_mm512_cvtne2ps_pbh(high.native, low.native));
#else
    auto const pairs = vcvtq_low_bf16_f32(reinterpret_cast<float32x4_t>(low.native));
    return reinterpret_cast<Row>(vcvtq_high_bf16_f32(pairs, reinterpret_cast<float32x4_t>(high.native)));
#endif
  }
  /// Pairs rounded to nearest: lane i holds (even, odd) of lane i.
  [[gnu::always_inline]] static Row pairs_of_rows(Vector<float> even, Vector<float> odd) {
    typedef std::uint16_t Words __attribute__((vector_size(vector_bytes)));
    auto const both = reinterpret_cast<Words>(pairs_of_lanes(even, odd));
    constexpr int lanes = Vector<float>::lanes;
    return [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
      return reinterpret_cast<Row>(__builtin_shufflevector(both, both, (I / 2 + I % 2 * lanes)...));
    }
    (std::make_integer_sequence<int, 2 * lanes>());
  }
  /// Pairs of two rows of bfloat16: lane i of the two vectors together holds elements i of `first` and of `second`.
  [[gnu::always_inline]] static void interleave(void const* first, void const* second, Row* pairs) {
    typedef std::uint16_t Words __attribute__((vector_size(vector_bytes)));
    constexpr int halves = vector_bytes / 2;
    Words a, b;
    std::memcpy(&a, first, sizeof a);
    std::memcpy(&b, second, sizeof b);
    [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
      pairs[0] = reinterpret_cast<Row>(__builtin_shufflevector(a, b, (I / 2 + I % 2 * halves)...));
      pairs[1] = reinterpret_cast<Row>(__builtin_shufflevector(a, b, (halves / 2 + I / 2 + I % 2 * halves)...));
    }
    (std::make_integer_sequence<int, halves>());
  }
  [[gnu::always_inline]] static void store(Row row, BfloatPair* to) { std::memcpy(to, &row, sizeof row); }
  /// Stores the pairs of each lane, rounded.
  [[gnu::always_inline]] static void store_rows(Vector<float> const (&rows)[depth], BfloatPair* to) {
    store(pairs_of_rows(rows[0], rows[1]), to);
  }
#endif
};

#if defined(ANNULUS_CPU_HAS_PAIRS)
inline constexpr bool multiplies_bfloat_pairs = true;
#else
inline constexpr bool multiplies_bfloat_pairs = false;
#endif

#if defined(ANNULUS_CPU_HAS_QUADS)
inline constexpr bool multiplies_bfloat_quads = true;

/// Products of two quads and two quads (BFMMLA of Arm), rounded like two products of pairs, one after the other (Arm
/// Architecture Reference Manual, BFMMLA): sums have the same bits as with pairs.
template <>
struct Operand<BfloatQuad> {
  using Sum = float;
  typedef std::uint64_t Row __attribute__((vector_size(vector_bytes)));
  static constexpr int depth = 4;

  [[gnu::always_inline]] static Row load(BfloatQuad const* from) {
    Row row;
    std::memcpy(&row, from, sizeof row);
    return row;
  }
  [[gnu::always_inline]] static Row repeat(BfloatQuad element) { return element.bits + Row{}; }
  /// Adds the product of quad i of a and quad j of b to lane 2 i + j.
  [[gnu::always_inline]] static Vector<float> multiply_add(Row a, Row b, Vector<float> sum) {
    return {reinterpret_cast<Vector<float>::Native>(vbfmmlaq_f32(reinterpret_cast<float32x4_t>(sum.native),
                                                                 reinterpret_cast<bfloat16x8_t>(a),
                                                                 reinterpret_cast<bfloat16x8_t>(b)))};
  }

  /// Stores the quad of one vector, then that of the other, rounded to nearest.
  [[gnu::always_inline]] static void store_lanes(Vector<float> first, Vector<float> second, BfloatQuad* to) {
    auto const quads = Operand<BfloatPair>::pairs_of_lanes(first, second);
    std::memcpy(to, &quads, sizeof quads);
  }
  /// Stores the quads of each lane, rounded to nearest.
  [[gnu::always_inline]] static void store_rows(Vector<float> const (&rows)[depth], BfloatQuad* to) {
    using Pairs = Operand<BfloatPair>;
    auto const low = Pairs::pairs_of_rows(rows[0], rows[1]), high = Pairs::pairs_of_rows(rows[2], rows[3]);
    Pairs::Row const quads[] = {__builtin_shufflevector(low, high, 0, 4, 1, 5),
                                __builtin_shufflevector(low, high, 2, 6, 3, 7)};
    std::memcpy(to, quads, sizeof quads);
  }
};
#else
inline constexpr bool multiplies_bfloat_quads = false;
#endif

/// Packed element type of operands of type T.
template <class T>
using PackedElement =
    std::conditional_t<multiplies_bfloat_pairs && std::same_as<T, Eigen::bfloat16>, BfloatPair, Accumulator<T>>;

/// The same for the packed groups, panels and strips that products of many rows read.
template <class T>
using BlockElement =
    std::conditional_t<multiplies_bfloat_quads && std::same_as<T, Eigen::bfloat16>, BfloatQuad, PackedElement<T>>;

template <class E>
inline constexpr bool is_pair = std::same_as<E, BfloatPair>;
template <class E>
inline constexpr bool is_quad = std::same_as<E, BfloatQuad>;
/// Pairs and quads hold operands unscaled, so that the softmax scale is applied after the products.
template <class E>
inline constexpr bool is_joined = is_pair<E> || is_quad<E>;

/// Rows of an AMX tile, pairs in a row of factors, and columns of sums.
inline constexpr Index amx_tile_side = 16;

/// Prepares this thread, for the lifetime of the object, to multiply elements E: AMX needs its tiles configured.
template <class E>
class AmxTilesFor {};

#if defined(ANNULUS_CPU_HAS_AMX)
/// True if Linux permits the AMX tile registers, which it grants on request, once for all threads of the process
/// (kernel documentation, "Using XSTATE features in user space applications"). Otherwise vector instructions are used.
inline bool amx_is_permitted() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  enum { unknown, permitted, refused };
  // Constant initialisation takes no lock, which a child forked at that moment would find locked.
  static constinit std::atomic<int> known{unknown};
  int answer = known.load(std::memory_order_relaxed);
  if (answer == unknown) {
    answer = syscall(SYS_arch_prctl, request_permission, tile_data) == 0 ? permitted : refused;
    known.store(answer, std::memory_order_relaxed);
  }
  return answer == permitted;
}

/// Configures this thread's AMX tiles to their full size for the lifetime of the object.
template <>
class AmxTilesFor<BfloatPair> {
 public:
  AmxTilesFor() {
    struct alignas(64) Configuration {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static constexpr Configuration configuration;
    if (amx_is_permitted()) _tile_loadconfig(&configuration);
  }
  ~AmxTilesFor() {
    if (amx_is_permitted()) _tile_release();
  }
  AmxTilesFor(AmxTilesFor const&) = delete;
  AmxTilesFor& operator=(AmxTilesFor const&) = delete;
};

/// Compiler barrier: some compilers do not know that tile instructions read memory.
[[gnu::always_inline]] inline void finish_stores() { asm volatile("" ::: "memory"); }
#endif

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
