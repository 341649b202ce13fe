#pragma once
// Choices of a backward kernel (stages), the map of its shared memory, and the choice for each shape.

#include "annulus/backend/cuda/hopper/pipeline.cuh"
#include "annulus/backend/cuda/hopper/products.cuh"
#include "annulus/backend/cuda/hopper/visible_blocks.cuh"

namespace annulus::cuda::detail::hopper {

struct GradientStages {
  int q, dout;  ///< blocks of 64 queries in shared memory
  int dq;       ///< blocks of dq on their way to memory
};

/// Numbers of a row of queries in a stage: see gradient_rows.cuh.
inline constexpr int row_stages = 3, row_stage_words = 3 * bounded_rows + bounded_rows / 2 + 4;

/// Registers of a thread of a computing warpgroup: dK and dV have head_dim/2 and value_dim/2 words, S^T and dP^T 32
/// each, P^T 16: 208 of 240 for 128. dQ takes the place of dP^T.
template <int HeadDim, int ValueDim, GradientStages stages>
struct GradientChoice {
  static constexpr int head_dim = HeadDim, value_dim = ValueDim;
  static constexpr int q_stages = stages.q, o_stages = stages.dout, dq_stages = stages.dq;
  static constexpr int ds_stages = dq_stages + 2;  ///< see GradientWarpgroup::differentiate
  static constexpr int queries = bounded_rows, keys = gradient_keys, threads = 384;
  static constexpr bool many_registers = HeadDim + ValueDim > 192;
  static constexpr int feeder_registers = many_registers ? 24 : 56, computing_registers = many_registers ? 240 : 224;
  static constexpr int dq_columns = panels_of(HeadDim) * 32;  ///< that a warpgroup computes

  static constexpr int k_bytes = keys * panels_of(HeadDim) * 128, v_bytes = keys * panels_of(ValueDim) * 128;
  static constexpr int q_bytes = queries * panels_of(HeadDim) * 128, o_bytes = queries * panels_of(ValueDim) * 128;
  static constexpr int ds_bytes = keys * queries * 2, dq_bytes = queries * 2 * dq_columns * 4;
  static constexpr int k_at = 0, v_at = k_at + k_bytes, q_at = v_at + v_bytes, o_at = q_at + q_stages * q_bytes,
                       ds_at = o_at + o_stages * o_bytes, dq_at = ds_at + ds_stages * ds_bytes,
                       rows_at = dq_at + dq_stages * dq_bytes, barriers_at = rows_at + row_stages * row_stage_words * 4;
  static constexpr int barrier_count = 2 * q_stages + 2 * o_stages + 2 * row_stages + 10;
  static constexpr int slots_at = barriers_at + 8 * barrier_count, slot_words = 6;
  static constexpr int shared_bytes = slots_at + 2 * slot_words * 4;
  static_assert(HeadDim % 32 == 0 && ValueDim % 32 == 0 && HeadDim <= 128 && ValueDim <= 128);
  static_assert(shared_bytes <= 232448, "shared memory of a block on sm_90");
};

/// Where everything lies in shared memory.
template <class C>
struct GradientMap {
  std::uint32_t base;

  __device__ std::uint32_t k() const { return base + C::k_at; }
  __device__ std::uint32_t v() const { return base + C::v_at; }
  __device__ std::uint32_t q(int stage) const { return base + C::q_at + stage * C::q_bytes; }
  __device__ std::uint32_t o(int stage) const { return base + C::o_at + stage * C::o_bytes; }
  __device__ std::uint32_t ds(int stage) const { return base + C::ds_at + stage * C::ds_bytes; }
  __device__ std::uint32_t dq(int stage) const { return base + C::dq_at + stage * C::dq_bytes; }
  __device__ std::uint32_t barrier(int index) const { return base + C::barriers_at + 8 * index; }
  __device__ std::uint32_t kv_full() const { return barrier(0); }
  __device__ std::uint32_t kv_empty() const { return barrier(1); }
  __device__ std::uint32_t dq_full(int parity) const { return barrier(2 + parity); }  ///< of even and of odd steps
  __device__ std::uint32_t dq_empty(int stage) const { return barrier(4 + stage); }
  __device__ std::uint32_t tile_full(int slot) const { return barrier(6 + slot); }
  __device__ std::uint32_t tile_empty(int slot) const { return barrier(8 + slot); }
  __device__ std::uint32_t rows_full(int stage) const { return barrier(10 + stage); }
  __device__ std::uint32_t rows_empty(int stage) const { return barrier(10 + row_stages + stage); }
  __device__ std::uint32_t q_full(int stage) const { return barrier(q_barriers + stage); }
  __device__ std::uint32_t q_empty(int stage) const { return barrier(q_barriers + C::q_stages + stage); }
  __device__ std::uint32_t o_full(int stage) const { return barrier(o_barriers + stage); }
  __device__ std::uint32_t o_empty(int stage) const { return barrier(o_barriers + C::o_stages + stage); }

 private:
  static constexpr int q_barriers = 10 + 2 * row_stages, o_barriers = q_barriers + 2 * C::q_stages;
};

/// The stages of each shape, as measured for 64 and 128, and by the budget of shared memory for the others.
constexpr GradientStages gradient_stages(int head_dim, int value_dim) {
  if (value_dim > 64) return {.q = 3, .dout = 2, .dq = 1};
  if (head_dim > 64) return {.q = 3, .dout = 3, .dq = 1};
  return {.q = 3, .dout = 3, .dq = 2};
}

}  // namespace annulus::cuda::detail::hopper
