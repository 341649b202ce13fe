#pragma once
// Cost and footprint of each instruction in the text of a program.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/program/walk.hpp"

namespace annulus::nki {

/// All times in seconds.
struct InstructionCost {
  Engine engine = Engine::tensor;
  double seconds = 0;     ///< busy time of the engine; DMA and collectives: transfer time
  double latency = 0;     ///< DMA and collectives: time before the transfer
  double issue = 0;       ///< DMA: busy time of a descriptor generator, before the latency
  double share = 1;       ///< DMA: fraction of the core's DMA bandwidth used during the transfer
  double dependent = 0;   ///< added if it needs what the same engine has just written
  bool estimate = false;  ///< depends on an inferred constant or formula

  bool operator==(InstructionCost const&) const = default;
  /// Total duration without contention.
  double alone() const { return issue + latency + seconds; }
};

namespace cost_detail {

/// Visitor of Instruction that returns its cost by the vendor's last published formulas. Source tags: L = published for
/// NeuronCore-v2, D = a current page, I = inferred here. Cycles are of the engine's clock; N = elements per partition.
/// The program and hardware outlive it.
class CostVisitor {
 public:
  CostVisitor(Program const& program, Hardware const& hardware, Engine engine)
      : program_(program), hardware_(hardware), clock_(nth(hardware.costs.clock, engine)) {}

  /// L: max(min(64, M), N); fp32 takes four passes. The stationary operand is loaded during the previous matmul.
  InstructionCost operator()(MatMul const& i) const {
    return busy(std::max(std::min(costs().shortest_instruction, count(i.stationary)), count(i.moving)) *
                passes(i.moving));
  }
  /// L: max(P, min(64, F)). I: fp32 takes the passes of a matmul.
  InstructionCost operator()(Transpose const& i) const {
    double const rows = static_cast<double>(i.data.partitions());
    return busy(std::max(rows, std::min(costs().shortest_instruction, count(i.data))) * passes(i.data),
                passes(i.data) != 1);
  }
  /// L: max(64, N), plus 64 to read out the accumulator registers.
  InstructionCost operator()(Activation const& i) const {
    return at_least_shortest(count(i.data), i.reduce_res ? costs().shortest_instruction : 0);
  }
  /// L: N with an operand in PSUM; D: N with 16-bit operands in SBUF; else 2N.
  InstructionCost operator()(TensorTensor const& i) const {
    if (i.engine == Engine::gpsimd) return on_gpsimd(2 * count(i.dst));
    bool const fast = in_psum(i.data1) || in_psum(i.data2) || (is_16_bit(i.data1) && is_16_bit(i.data2));
    return at_least_shortest((fast ? 1 : 2) * count(i.dst));
  }
  InstructionCost operator()(TensorScalar const& i) const { return one_tensor(i.dst, i.data, i.engine); }
  InstructionCost operator()(TensorCopy const& i) const { return one_tensor(i.dst, i.src, i.engine); }
  /// L: N for 16-bit tensors, subtraction and multiplication, N even; else 2N.
  InstructionCost operator()(ScalarTensorTensor const& i) const {
    auto const simple = [](Operator op) { return op == Operator::subtract || op == Operator::multiply; };
    bool const fast =
        is_16_bit(i.data) && is_16_bit(i.operand1) && simple(i.op0) && simple(i.op1) && i.data.elements() % 2 == 0;
    return at_least_shortest((fast ? 1 : 2) * count(i.dst));
  }
  /// L: N; N / 2 for sums and maxima of 16-bit elements in SBUF.
  InstructionCost operator()(TensorReduce const& i) const {
    bool const fast = is_16_bit(i.data) && in_sbuf(i.data) && (i.op == Operator::add || i.op == Operator::maximum);
    return at_least_shortest(count(i.data) / (fast ? 2 : 1));
  }
  InstructionCost operator()(RangeSelect const& i) const { return at_least_shortest(count(i.dst)); }  // L
  /// D: max(64, 8N).
  InstructionCost operator()(Reciprocal const& i) const {
    return at_least_shortest(costs().reciprocal_cycles * count(i.data));
  }
  /// L: N; N / 2 for zeros of 16 bits. I: GpSimdE adds its start-up.
  InstructionCost operator()(Memset const& i) const {
    double const n = count(i.dst) / (i.value == 0 && is_16_bit(i.dst) ? 2 : 1);
    return i.engine == Engine::gpsimd ? on_gpsimd(n) : at_least_shortest(n);
  }
  InstructionCost operator()(Iota const& i) const { return busy(costs().gpsimd_start + count(i.dst)); }  // L
  InstructionCost operator()(StreamShuffle const& i) const { return at_least_shortest(count(i.dst)); }   // L
  InstructionCost operator()(DmaCopy const& i) const { return dma(i.dst, i.src, false); }
  InstructionCost operator()(DmaTranspose const& i) const { return dma(i.dst, i.src, true); }
  InstructionCost operator()(CollectivePermute const& i) const { return permute(i.dst); }                          // I
  InstructionCost operator()(CollectivePermuteReduce const& i) const { return permute(i.dst); }                    // I
  InstructionCost operator()(CoreBarrier const&) const { return {.seconds = costs().barrier, .estimate = true}; }  // I
  InstructionCost operator()(ProcessingRank const&) const { return register_load(); }
  InstructionCost operator()(RegisterLoad const&) const { return register_load(); }

 private:
  Costs const& costs() const { return hardware_.costs; }
  static double count(Access const& access) { return static_cast<double>(access.elements()); }
  ElementType type(Access const& access) const { return program_.buffer(access).type; }
  bool is_16_bit(Access const& access) const { return bytes_of(type(access)) == 2; }
  bool in_psum(Access const& access) const { return program_.buffer(access).memory == Memory::psum; }
  bool in_sbuf(Access const& access) const { return program_.buffer(access).memory == Memory::sbuf; }
  double passes(Access const& access) const { return bytes_of(type(access)) == 4 ? costs().fp32_matmul_passes : 1; }

  InstructionCost busy(double cycles, bool estimate = false) const {
    return {.seconds = cycles / clock_, .estimate = estimate};
  }
  /// max(64, cycles) + more.
  InstructionCost at_least_shortest(double cycles, double more = 0) const {
    InstructionCost cost = busy(std::max(cycles, costs().shortest_instruction) + more);
    if (cycles <= costs().shortest_instruction) cost.dependent = costs().dependent_tiny_instruction / clock_;
    return cost;
  }
  /// I: no formula is published for GpSimdE's copies and arithmetic; start-up and N are taken from iota.
  InstructionCost on_gpsimd(double cycles) const { return busy(costs().gpsimd_start + cycles, true); }

  /// tensor_copy, tensor_scalar. L: N. D (trn2), I (trn3): VectorE with 16-bit input and output takes N / 4 from SBUF
  /// to SBUF without strides, else N / 2. D: ScalarE of trn3 takes N / 2 with 16-bit input and output.
  InstructionCost one_tensor(Access const& dst, Access const& src, Engine engine) const {
    double const n = count(dst);
    if (engine == Engine::gpsimd) return on_gpsimd(n);
    if (!is_16_bit(dst) || !is_16_bit(src)) return at_least_shortest(n);
    bool const trn3 = hardware_.target == Target::trn3;
    if (engine == Engine::scalar) return at_least_shortest(trn3 ? n / 2 : n);
    bool const fastest = in_sbuf(dst) && in_sbuf(src) && dst.contiguous() && src.contiguous();
    InstructionCost cost = at_least_shortest(n / (fastest ? 4 : 2));
    cost.estimate = trn3;
    return cost;
  }

  InstructionCost register_load() const { return {.seconds = costs().register_load, .estimate = true}; }  // I

  InstructionCost permute(Access const& dst) const {
    double const bytes = static_cast<double>(dst.size() * bytes_of(type(dst)));
    return {.seconds = bytes / costs().permute_rate, .latency = costs().permute_latency, .estimate = true};
  }

  /// Contiguous bytes at the beginning of an operand, along its axes from `first_axis` on.
  Index contiguous_bytes(Access const& access, std::size_t first_axis) const {
    Index adjacent = 1;
    Runs::in_order(access.axes().subspan(first_axis)).visit(0, [&](Index, Index run, Index step) {
      if (step == 1) adjacent = run;
      return false;
    });
    return adjacent * bytes_of(type(access));
  }

  /// A generator writes the descriptors, a latency follows, then some of the DMA engines move rows. I, from the
  /// vendor's rates (D): 1.3 us + bytes / (engines * rate * b / (b + 256)), with one engine per 8 partitions and b =
  /// contiguous bytes of a row of a partition, the smaller of both sides. HBM traffic of a core is limited to its part
  /// of the stack that a pair shares; from HBM to HBM every byte counts twice there. A cast moves the wider type.
  InstructionCost dma(Access const& dst, Access const& src, bool transpose) const {
    bool const to_chip = on_chip(program_.buffer(dst).memory), from_chip = on_chip(program_.buffer(src).memory);
    std::size_t const first_axis = to_chip || from_chip ? 1 : 0;
    double const row =
        static_cast<double>(std::min(contiguous_bytes(dst, first_axis), contiguous_bytes(src, first_axis)));
    double const bytes =
        static_cast<double>(std::max(dst.size() * bytes_of(type(dst)), src.size() * bytes_of(type(src))));

    double const all_engines = costs().dma_engines;
    double engines = std::ceil(bytes / std::min(row, costs().dma_piece));
    if (to_chip || from_chip) {
      Index const partitions = std::max(to_chip ? dst.partitions() : 0, from_chip ? src.partitions() : 0);
      engines = static_cast<double>(detail::ceil_divide(partitions, 8));
    }
    engines = std::min(engines, all_engines);

    double rate = engines * costs().dma_engine_rate * row / (row + costs().dma_row_overhead);
    if (transpose) rate *= from_chip ? costs().dma_transpose_share : costs().dma_transpose_share_hbm;
    double const hbm_sides = (to_chip ? 0 : 1) + (from_chip ? 0 : 1);
    double const hbm_rate = costs().hbm_rate / program_.cores;
    double share = engines / all_engines;
    if (hbm_sides > 0) {
      rate = std::min(rate, hbm_rate / hbm_sides);
      share = std::max(share, rate * hbm_sides / hbm_rate);
    }
    return {.seconds = bytes / rate,
            .latency = costs().dma_latency,
            .issue = costs().dma_issue,
            .share = share,
            .estimate = true};
  }

  Program const& program_;
  Hardware const& hardware_;
  double clock_;
};

}  // namespace cost_detail

/// The cost of an instruction that waits for nothing. It is the same for every execution, because shapes are constant.
inline InstructionCost cost_of(Program const& program, Hardware const& hardware, Instruction const& instruction) {
  Engine const engine = engine_of(instruction);
  InstructionCost cost = std::visit(cost_detail::CostVisitor(program, hardware, engine), instruction);
  cost.engine = engine;
  return cost;
}

/// Elements [begin, begin + length), counted from the offset of an access.
struct Run {
  Index begin = 0;
  Index length = 0;
  bool operator==(Run const&) const = default;
};

/// The runs of an access in ascending order, adjacent ones joined: in a partition on chip, in the whole tensor in HBM.
/// More than 4096 runs become one, from the first to the last element.
inline std::vector<Run> runs_of(Access const& access, bool on_chip) {
  constexpr std::size_t most = 4096;
  std::size_t const first = on_chip ? 1 : 0;
  std::vector<Run> runs, joined;
  Runs::adjacent(access.axes().subspan(first)).visit(0, [&](Index begin, Index count, Index) {
    runs.push_back({begin, count});
    return runs.size() <= most;
  });
  if (runs.size() > most) {
    auto const [low, high] = access.extremes(first);
    return {{low, high - low + 1}};
  }
  std::ranges::sort(runs, {}, &Run::begin);
  for (Run const& run : runs)
    if (!joined.empty() && run.begin <= joined.back().begin + joined.back().length)
      joined.back().length = std::max(joined.back().length, run.begin + run.length - joined.back().begin);
    else
      joined.push_back(run);
  return joined;
}

/// The greatest common divisor of all boundaries of an access's runs, and of `so_far`.
inline Index common_divisor(Access const& access, std::vector<Run> const& runs, Index so_far) {
  so_far = std::gcd(so_far, access.offset.constant());
  for (Affine::Term const& term : access.offset.terms()) so_far = std::gcd(so_far, term.coefficient);
  for (Run const& run : runs) so_far = std::gcd(std::gcd(so_far, run.begin), run.length);
  return so_far;
}

/// Footprint of one operand. It holds all of the access that the timeline needs, because reading the program once for
/// every executed instruction would take longer than all else.
struct OperandPlan {
  int buffer = -1, age = 0;  ///< of the access
  int by_register = -1;      ///< number of the register in its offset; -1: none
  Use use = Use::read;
  bool all = false;                ///< touches the whole place in every iteration; else the runs
  Affine const* moving = nullptr;  ///< the offset, if it depends on loops
  Index offset = 0;                ///< else its value
  std::vector<Run> runs{};
};

/// Cost and footprints of one instruction.
struct InstructionPlan {
  Instruction const* instruction = nullptr;
  InstructionCost cost{};
  bool meeting = false;  ///< a barrier or collective, which the cores of a pair execute together
  std::vector<OperandPlan> operands{};
};

/// Refers to the program, which outlives it.
class CostPlan {
 public:
  /// Throws Error if the program names a buffer, variable or register that it does not declare.
  CostPlan(Program const& program, Hardware const& hardware) : pieces_(program.buffers.size(), 0) {
    std::string const missing = dangling(program);
    detail::check<Error>(missing.empty(), "cost of program ", program.name, ": ", missing,
                         "; accepted is a program that passes validation");
    add(program, hardware, program.body);
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i] == 0) continue;
      Buffer const& buffer = program.buffers[i];
      Index const most = on_chip(buffer.memory) ? most_pieces_on_chip : most_pieces_in_hbm;
      Index const pieces = detail::ceil_divide(buffer.elements_per_partition(), pieces_[i]);
      if (pieces > most) pieces_[i] *= detail::ceil_divide(pieces, most);
    }
  }

  /// Of the node that the walk returned last, if that is an instruction.
  InstructionPlan const& of(Walk const& walk) const {
    auto const [body, place] = walk.position();
    return plans_.find(body)->second[place];
  }
  /// Elements per piece in which the uses of a buffer are tracked; 0: only as a whole.
  Index piece(std::size_t buffer) const { return pieces_[buffer]; }

 private:
  /// Above these numbers pieces are merged: finer ones cost memory and time for little accuracy.
  static constexpr Index most_pieces_on_chip = 4096, most_pieces_in_hbm = Index{1} << 16;

  void add(Program const& program, Hardware const& hardware, Body const& body) {
    std::vector<InstructionPlan>& plans = plans_[&body];
    for (Node const& node : body) {
      InstructionPlan& plan = plans.emplace_back();
      if (auto const* loop = node.as<Loop>()) add(program, hardware, loop->body);
      if (auto const* branch = node.as<OnCore>()) add(program, hardware, branch->body);
      if (auto const* instruction = node.as<Instruction>())
        plan = {instruction, cost_of(program, hardware, *instruction), is_core_barrier(node),
                operands_of(program, *instruction)};
    }
  }

  std::vector<OperandPlan> operands_of(Program const& program, Instruction const& instruction) {
    std::vector<OperandPlan> operands;
    for_each_access(instruction, [&](std::string_view, Use use, Access const& access) {
      Buffer const& buffer = program.buffer(access);
      std::vector<Run> runs = runs_of(access, on_chip(buffer.memory));
      auto const& by_register = access.register_offset;
      // A register offset may point anywhere.
      bool const all =
          by_register || (access.offset == Affine(0) && runs == std::vector<Run>{{0, buffer.elements_per_partition()}});
      Index& piece = nth(pieces_, access.buffer);
      if (!all) piece = common_divisor(access, runs, piece);
      operands.push_back({access.buffer, access.age, by_register ? by_register->register_number : -1, use, all,
                          access.offset.is_constant() ? nullptr : &access.offset, access.offset.constant(),
                          std::move(runs)});
    });
    return operands;
  }

  std::unordered_map<Body const*, std::vector<InstructionPlan>> plans_;  ///< of the nodes of each body
  std::vector<Index> pieces_;
};

}  // namespace annulus::nki
