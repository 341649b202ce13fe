#pragma once
// One physical NeuronCore as plain data, and the memory that tiles take of it. Every figure has its source: D a current
// page of the vendor (Neuron SDK 2.30 to 2.33), L a page for NeuronCore-v2 that has since been dropped, S the vendor's
// public kernels, I inferred here.

#include <array>

#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

/// Limits of the hardware on programs; v3 is trn2, v4 is trn3.
struct Limits {
  Index partitions = 128;              ///< rows of SBUF and of PSUM (D)
  Index sbuf_bytes = 0;                ///< usable, per partition (I: physical - 16 KiB - 8; S uses this margin on trn2)
  Index hbm_bytes = 0;                 ///< of the whole chip (D)
  Index psum_banks = 8;                ///< per partition (D); 7 where DMA transposes run on TensorE
  Index psum_bank_bytes = 2048;        ///< per partition (D)
  Index open_accumulations = 8;        ///< accumulation groups that may be outstanding (D)
  Index stationary_columns = 128;      ///< M of a matmul (D)
  Index moving_columns = 512;          ///< N of a matmul with a result of 4 bytes (D; trn3: all of PSUM)
  bool matmul_may_span_banks = false;  ///< of PSUM (D: v4 only)
  Index transpose_extent = 128;        ///< of a transpose (D)
  Index free_axes = 4;                 ///< of an operand on chip (D)
  Index axis_count = 65535;            ///< largest count of an axis (D: uint16)
  Index axis_stride = 32767;           ///< largest stride on chip (D: int16)
  Index sbuf_elements = 65536;         ///< per partition and operand (D)
  Index psum_elements = 4096;          ///< per partition and operand (D)
  Index exact_index = Index{1} << 24;  ///< range_select counts in fp32 (D)
  bool has_bfloat16_psum = false;      ///< (D: v4 only; v3 has it for transposes alone)
};

/// Constants of the cost model. Times in seconds, rates in bytes or cycles per second.
struct Costs {
  std::array<double, engine_count> clock{};  ///< cycles per second of tensor, vector, scalar, gpsimd, sync (D)
  double shortest_instruction = 64;          ///< cycles between two instructions of vector, scalar, gpsimd, tensor (L)
  double gpsimd_start = 150;                 ///< cycles (L)
  double dependent_tiny_instruction = 100;   ///< cycles more for a shortest one that needs the one before it (L)
  double semaphore = 64 / 1.4e9;             ///< first or last access to a tensor, ~60 cycles of a v2 engine (L)
  double fp32_matmul_passes = 4;             ///< per matmul of fp32 operands (L)
  double reciprocal_cycles = 8;              ///< per element, VectorE (D)
  double dma_latency = 1.3e-6;               ///< from semaphore to data (D)
  double dma_issue = 0.6e-6;                 ///< one hardware descriptor generator, per instruction (D)
  int dma_generators = 2;                    ///< per core (D)
  int dma_engines = 16;                      ///< per core (D)
  double dma_engine_rate = 0;                ///< bytes per second of one engine (D)
  double dma_row_overhead = 256;         ///< bytes; a row of b contiguous ones moves at b / (b + this) of the rate (I)
  double dma_piece = 4096;               ///< bytes; HBM to HBM is cut into such pieces, which all engines share (I)
  double dma_transpose_share = 0.5;      ///< upper bound of the copy rate, SBUF to SBUF (D)
  double dma_transpose_share_hbm = 0.9;  ///< upper bound of the copy rate, HBM to SBUF (D)
  double hbm_rate = 0;                   ///< of one stack, which a pair of cores shares; chip / 4 (D)
  double barrier = 1.3e-6;               ///< one semaphore round between cores (I)
  double register_load = 2.0e-6;         ///< load of a register (I)
  double permute_latency = 1.5e-6;       ///< 1 to 2 us per hop inside a node (D)
  double permute_rate = 256e9;           ///< bytes per second to one neighbour (I)
  double tensor_peak = 79e12;            ///< bf16 operations per second (D)
};

/// Limits and costs of one target.
struct Hardware {
  Target target = Target::trn2;  ///< hardware generation
  Limits limits{};               ///< what programs must satisfy
  Costs costs{};                 ///< constants of the cost model
};

/// Figures of a target.
inline Hardware hardware_of(Target target) {
  Hardware core{.target = target};
  if (target == Target::trn2) {
    core.limits.sbuf_bytes = 224 * 1024 - 16 * 1024 - 8;  // D: 224 KiB
    core.limits.hbm_bytes = Index{96} << 30;
    core.costs.clock = {2.4e9, 0.96e9, 1.2e9, 1.2e9, 1.2e9, 1e9, 1e9};
    core.costs.dma_engine_rate = 23e9;
    core.costs.hbm_rate = 2.9e12 / 4;
  } else {
    core.limits.sbuf_bytes = 256 * 1024 - 16 * 1024 - 8;  // D: 256 KiB
    core.limits.hbm_bytes = Index{144} << 30;
    core.limits.moving_columns = 4096;
    core.limits.matmul_may_span_banks = true;
    core.limits.has_bfloat16_psum = true;
    core.costs.clock = {2.4e9, 1.2e9, 1.2e9, 1.2e9, 1.2e9, 1e9, 1e9};
    core.costs.dma_engine_rate = 33e9;
    core.costs.hbm_rate = 4.7e12 / 4;
  }
  return core;
}

/// Bytes of SBUF per partition that the tiles of a buffer take, over all places of its rotation.
inline Index bytes_per_partition(Buffer const& buffer) {
  return detail::saturating_product(detail::saturating_product(buffer.elements_per_partition(), bytes_of(buffer.type)),
                                    buffer.rotation);
}

/// The same in banks of PSUM. Every place begins at a bank boundary, so that no result crosses one.
inline Index psum_banks(Buffer const& buffer, Limits const& limits) {
  Index const bytes = detail::saturating_product(buffer.elements_per_partition(), bytes_of(buffer.type));
  return detail::saturating_product(detail::ceil_divide(bytes, limits.psum_bank_bytes), buffer.rotation);
}

}  // namespace annulus::nki
