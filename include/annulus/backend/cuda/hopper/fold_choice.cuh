#pragma once
// Choices of a forward kernel (tile, stages), the map of its shared memory, and the choice for each shape.

#include "annulus/backend/cuda/hopper/pipeline.cuh"
#include "annulus/backend/cuda/hopper/products.cuh"
#include "annulus/backend/cuda/hopper/visible_blocks.cuh"

namespace annulus::cuda::detail::hopper {

/// What a tile may be. Registers of a thread of a computing warpgroup: O has value_dim/2, S keys/2, P keys/4 and, if
/// they stay in registers, Q head_dim/4 words; 232 in all with two warpgroups, 160 with three, of which about 20 must
/// be left.
struct FoldTile {
  int groups;    ///< warpgroups that compute, of 64 queries each
  int keys;      ///< of a block
  int k_stages;  ///< blocks of keys in shared memory
  int v_stages;
  /// Saves reading Q from shared memory for each block: 5 to 10 % (head_dim 128).
  bool queries_in_registers;
  /// Whether sums that overflow are noticed behind the barrier of the next turn instead of one of their own: 2 to 5 %
  /// with two warpgroups (head_dim 128), a loss with three.
  bool late_alarm = false;
};

template <int HeadDim, int ValueDim, FoldTile tile>
struct FoldChoice {
  static constexpr int head_dim = HeadDim, value_dim = ValueDim;
  static constexpr int groups = tile.groups, keys = tile.keys, k_stages = tile.k_stages, v_stages = tile.v_stages;
  static constexpr bool queries_in_registers = tile.queries_in_registers, late_alarm = tile.late_alarm;

  static constexpr int queries = bounded_rows * groups, threads = 128 * (groups + 1);
  static constexpr int feeder_registers = groups == 2 ? 40 : 32, computing_registers = groups == 2 ? 232 : 160;

  static constexpr int group_bytes = bounded_rows * panels_of(HeadDim) * 128;
  static constexpr int k_bytes = keys * panels_of(HeadDim) * 128, v_bytes = keys * panels_of(ValueDim) * 128;
  static constexpr int q_at = 0, k_at = q_at + groups * group_bytes, v_at = k_at + k_stages * k_bytes,
                       barriers_at = v_at + v_stages * v_bytes;
  static constexpr int tile_slots = 4, barrier_count = 2 * (groups + k_stages + v_stages + tile_slots);
  static constexpr int slots_at = barriers_at + 8 * barrier_count;
  static constexpr int slot_bytes = 4 * (5 + 4 * groups), alarms_at = slots_at + tile_slots * slot_bytes;
  static constexpr int shared_bytes = alarms_at + 8 * groups;
  static_assert(HeadDim % 32 == 0 && ValueDim % 32 == 0 && keys % 16 == 0 && groups > 1);
  static_assert(shared_bytes <= 232448, "shared memory of a block on sm_90");
};

/// Where everything lies in shared memory.
template <class C>
struct FoldMap {
  std::uint32_t base;

  __device__ std::uint32_t q(int group) const { return base + C::q_at + group * C::group_bytes; }
  __device__ std::uint32_t k(int stage) const { return base + C::k_at + stage * C::k_bytes; }
  __device__ std::uint32_t v(int stage) const { return base + C::v_at + stage * C::v_bytes; }
  __device__ std::uint32_t barrier(int index) const { return base + C::barriers_at + 8 * index; }
  __device__ std::uint32_t q_full(int group) const { return barrier(group); }
  __device__ std::uint32_t q_empty(int group) const { return barrier(C::groups + group); }
  __device__ std::uint32_t tile_full(int slot) const { return barrier(2 * C::groups + slot); }
  __device__ std::uint32_t tile_empty(int slot) const { return barrier(2 * C::groups + C::tile_slots + slot); }
  __device__ std::uint32_t k_full(int stage) const { return barrier(k_barriers + stage); }
  __device__ std::uint32_t k_empty(int stage) const { return barrier(k_barriers + C::k_stages + stage); }
  __device__ std::uint32_t v_full(int stage) const { return barrier(v_barriers + stage); }
  __device__ std::uint32_t v_empty(int stage) const { return barrier(v_barriers + C::v_stages + stage); }

 private:
  static constexpr int k_barriers = 2 * (C::groups + C::tile_slots), v_barriers = k_barriers + 2 * C::k_stages;
};

/// The tile of each shape, as measured for head_dim 64 and 128, and by the budgets of registers and shared memory for
/// the others.
constexpr FoldTile fold_tile(int head_dim, int value_dim) {
  if (value_dim > 192) return {.groups = 2, .keys = 64, .k_stages = 3, .v_stages = 2, .queries_in_registers = false};
  if (value_dim > 128) return {.groups = 2, .keys = 112, .k_stages = 2, .v_stages = 2, .queries_in_registers = false};
  if (head_dim > 128) return {.groups = 2, .keys = 128, .k_stages = 2, .v_stages = 2, .queries_in_registers = false};
  if (head_dim > 64)
    return {.groups = 2, .keys = 128, .k_stages = 3, .v_stages = 3, .queries_in_registers = true, .late_alarm = true};
  return {.groups = 3, .keys = 112, .k_stages = 4, .v_stages = 4, .queries_in_registers = true};
}

}  // namespace annulus::cuda::detail::hopper
