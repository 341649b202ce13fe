#pragma once
// Cycles of compute instructions, by the vendor's last published formulas. Source tags: L = published for
// NeuronCore-v2, D = a current page, I = inferred here. Cycles are of the engine's clock; N = elements per partition.

#include <algorithm>

#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

/// Duration of one instruction.
struct Cycles {
  double count = 0;
  bool estimate = false;  ///< tag I
  bool tiny = false;      ///< has the minimum duration of an instruction
};

/// Visitor of Instruction that returns its Cycles. The program and hardware outlive it.
class ComputeCycles {
 public:
  ComputeCycles(Program const& program, Hardware const& hardware) : program_(program), hardware_(hardware) {}

  /// L: max(min(64, M), N); fp32 takes four passes. The stationary operand is loaded during the previous matmul.
  Cycles operator()(MatMul const& i) const {
    double const cycles =
        std::max(std::min(costs().shortest_instruction, count(i.stationary)), count(i.moving)) * passes(i.moving);
    return {cycles, false, false};
  }
  /// L: TensorE max(P, min(64, F)), VectorE max(64, N). I: fp32 through TensorE takes the passes of a matmul.
  Cycles operator()(Transpose const& i) const {
    if (i.engine != Engine::tensor) return at_least_shortest(count(i.data));
    double const rows = static_cast<double>(i.data.partitions());
    return {std::max(rows, std::min(costs().shortest_instruction, count(i.data))) * passes(i.data), passes(i.data) != 1,
            false};
  }
  /// L: max(64, N), plus 64 to read out the accumulator registers.
  Cycles operator()(Activation const& i) const {
    Cycles cycles = at_least_shortest(count(i.data) / costs().activation_width);
    if (i.reduce_res) cycles.count += costs().shortest_instruction;
    return cycles;
  }
  /// L: N with an operand in PSUM; D: N with 16-bit operands in SBUF; else 2N.
  Cycles operator()(TensorTensor const& i) const {
    if (i.engine == Engine::gpsimd) return on_gpsimd(2 * count(i.dst));
    bool const fast = in_psum(i.data1) || in_psum(i.data2) || (is_16_bit(i.data1) && is_16_bit(i.data2));
    return at_least_shortest((fast ? 1 : 2) * count(i.dst));
  }
  Cycles operator()(TensorScalar const& i) const { return one_tensor(i.dst, i.data, i.engine); }
  Cycles operator()(TensorCopy const& i) const { return one_tensor(i.dst, i.src, i.engine); }
  /// L: N for 16-bit tensors, subtraction and multiplication, N even; else 2N.
  Cycles operator()(ScalarTensorTensor const& i) const {
    auto const simple = [](Operator op) { return op == Operator::subtract || op == Operator::multiply; };
    bool const fast =
        is_16_bit(i.data) && is_16_bit(i.operand1) && simple(i.op0) && simple(i.op1) && i.data.elements() % 2 == 0;
    return at_least_shortest((fast ? 1 : 2) * count(i.dst));
  }
  /// L: max(64, N) + 64.
  Cycles operator()(TensorScalarReduce const& i) const {
    Cycles cycles = at_least_shortest(count(i.data));
    cycles.count += costs().shortest_instruction;
    return cycles;
  }
  /// L: N; N / 2 for sums and maxima of 16-bit elements in SBUF.
  Cycles operator()(TensorReduce const& i) const {
    bool const fast = is_16_bit(i.data) && in_sbuf(i.data) && (i.op == Operator::add || i.op == Operator::maximum);
    return at_least_shortest(count(i.data) / (fast ? 2 : 1));
  }
  Cycles operator()(RangeSelect const& i) const { return at_least_shortest(count(i.dst)); }  // L
  /// D: max(64, 8N).
  Cycles operator()(Reciprocal const& i) const { return at_least_shortest(costs().reciprocal_cycles * count(i.data)); }
  /// D: four times as fast as ScalarE; I: taken as N / 4.
  Cycles operator()(Exponential const& i) const { return inferred(at_least_shortest(count(i.src) / 4)); }
  /// L: N; N / 2 for zeros of 16 bits. I: GpSimdE adds its start-up.
  Cycles operator()(Memset const& i) const {
    bool const zero = std::visit([](auto value) { return value == 0; }, i.value);
    double const n = count(i.dst) / (zero && is_16_bit(i.dst) ? 2 : 1);
    return i.engine == Engine::gpsimd ? on_gpsimd(n) : at_least_shortest(n);
  }
  Cycles operator()(Iota const& i) const { return {costs().gpsimd_start + count(i.dst)}; }          // L
  Cycles operator()(AffineSelect const& i) const { return {costs().gpsimd_start + count(i.dst)}; }  // L
  Cycles operator()(StreamShuffle const& i) const { return at_least_shortest(count(i.dst)); }       // L
  /// DMA, barriers and collectives: cost_of() gives their times in seconds, not in cycles.
  Cycles operator()(DmaCopy const&) const { return {}; }
  Cycles operator()(DmaTranspose const&) const { return {}; }
  Cycles operator()(CoreBarrier const&) const { return {}; }
  Cycles operator()(CollectivePermute const&) const { return {}; }
  Cycles operator()(CollectivePermuteReduce const&) const { return {}; }
  Cycles operator()(ProcessingRank const&) const { return {}; }

 private:
  Costs const& costs() const { return hardware_.costs; }
  static double count(Access const& access) { return static_cast<double>(access.elements()); }
  ElementType type(Access const& access) const { return program_.buffer(access).type; }
  bool is_16_bit(Access const& access) const { return bytes_of(type(access)) == 2; }
  bool in_psum(Access const& access) const { return program_.buffer(access).memory == Memory::psum; }
  bool in_sbuf(Access const& access) const { return program_.buffer(access).memory == Memory::sbuf; }
  double passes(Access const& access) const { return bytes_of(type(access)) == 4 ? costs().fp32_matmul_passes : 1; }

  Cycles at_least_shortest(double cycles) const {
    return {std::max(cycles, costs().shortest_instruction), false, cycles <= costs().shortest_instruction};
  }
  static Cycles inferred(Cycles cycles) {
    cycles.estimate = true;
    return cycles;
  }
  /// I: no formula is published for GpSimdE's copies and arithmetic; start-up and N are taken from iota.
  Cycles on_gpsimd(double cycles) const { return inferred({costs().gpsimd_start + cycles}); }

  /// tensor_copy, tensor_scalar. L: N. D (trn2), I (trn3): VectorE with 16-bit input and output takes N / 4 from SBUF
  /// to SBUF without strides, else N / 2. D: ScalarE of trn3 takes N / 2 with 16-bit input and output.
  Cycles one_tensor(Access const& dst, Access const& src, Engine engine) const {
    double const n = count(dst);
    if (engine == Engine::gpsimd) return on_gpsimd(n);
    if (!is_16_bit(dst) || !is_16_bit(src)) return at_least_shortest(n);
    bool const trn3 = hardware_.target == Target::trn3;
    if (engine == Engine::scalar) return at_least_shortest(trn3 ? n / 2 : n);
    bool const fastest = in_sbuf(dst) && in_sbuf(src) && dst.contiguous() && src.contiguous();
    Cycles cycles = at_least_shortest(n / (fastest ? 4 : 2));
    cycles.estimate = trn3;
    return cycles;
  }

  Program const& program_;
  Hardware const& hardware_;
};

}  // namespace annulus::nki
