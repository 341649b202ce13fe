#pragma once
// Third stage of the validation: a symbolic run of the program on all its cores, without data. It tracks for each
// element whether it was written, and by whom, and relies on a program in which the text pass found no fault.

#include <concepts>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "annulus/nki/program/walk.hpp"
#include "annulus/nki/validate/operand_rules.hpp"
#include "annulus/nki/validate/shadow.hpp"

namespace annulus::nki::validate_detail {

/// One use of the accumulator registers by an instruction.
struct ChainUse {
  Index start = 0, partitions = 0;  ///< of dst
  ReduceCommand command = ReduceCommand::idle;
  bool takes = false;     ///< has a reduce_res, which reads the registers
  bool clobbers = false;  ///< an idle use that may still change the registers
};

/// Checks that chains start with a reset, continue unchanged, and do not interleave (R15).
class ReductionChain {
 public:
  /// `min_length`: a chain of at least this many accumulations must be read before the next one begins. 1 for ScalarE,
  /// which accumulates on request only; 2 for VectorE, where range_select by default runs a chain of length 1.
  explicit ReductionChain(int min_length) : min_length_(min_length) {}

  /// Reason why the use is refused; empty if it is accepted.
  std::string follow(ChainUse const& use) {
    bool const begins = use.command == ReduceCommand::reset || use.command == ReduceCommand::reset_reduce;
    bool const accumulates = use.command == ReduceCommand::reduce || use.command == ReduceCommand::reset_reduce;
    std::string refusal;
    if (begins) {
      if (state_ == State::open && accumulated_ >= min_length_)
        refusal = detail::message_of(name_of(use.command), " while the sums of ", text(),
                                     " were not read; chains must not interleave");
      begin(use);
    } else if (use.command == ReduceCommand::reduce) {
      refusal = refusal_to_continue(use);
      if (!refusal.empty()) begin(use);  // so that later instructions are not refused for the same reason
    } else if (use.clobbers) {
      state_ = state_ == State::none ? State::none : State::clobbered;
    }
    accumulated_ += accumulates ? 1 : 0;
    if (accumulates && state_ == State::taken) state_ = State::open;
    if (use.takes) {
      if (refusal.empty()) refusal = refusal_to_continue(use);
      if (state_ == State::open) state_ = State::taken;
    }
    return refusal;
  }

 private:
  enum class State { none, open, taken, clobbered };

  void begin(ChainUse const& use) {
    state_ = State::open;
    first_ = use;
    accumulated_ = 0;
  }

  std::string refusal_to_continue(ChainUse const& use) const {
    if (state_ == State::none)
      return detail::message_of(name_of(use.command), " before any reset; chains begin with reset_reduce");
    if (state_ == State::clobbered)
      return detail::message_of(name_of(use.command),
                                " after an idle use that may have changed the sums; chains begin with reset_reduce");
    if (use.start == first_.start && use.partitions == first_.partitions) return {};
    return detail::message_of(name_of(use.command), " on ", use.partitions, " partitions from ", use.start,
                              "; the sums hold ", text());
  }
  std::string text() const {
    return detail::message_of("a chain on ", first_.partitions, " partitions from ", first_.start);
  }

  int min_length_;
  State state_ = State::none;
  ChainUse first_;
  Index accumulated_ = 0;
};

/// Third stage of the validation.
class ShadowPass {
 public:
  ShadowPass(Program const& program, Hardware const& hardware, Assumptions const& assumptions, FaultList& faults)
      : program_(program), limits_(hardware.limits), assumptions_(assumptions), faults_(faults) {
    for (int core = 0; core < program.cores; ++core) cores_.emplace_back(program, core);
    Index banks = 0;
    for (Buffer const& buffer : program.buffers) {
      first_bank_.push_back(banks);
      if (buffer.memory == Memory::psum) banks += psum_banks(buffer, limits_);
      auto& copies = tensors_.emplace_back();
      if (buffer.memory == Memory::shared_hbm) copies.emplace_back(buffer, program.cores);
      if (buffer.memory == Memory::private_hbm)
        for (int core = 0; core < program.cores; ++core) copies.emplace_back(buffer, 1);
    }
  }

  void run() {
    // Branches of one core contain no barrier or collective, so all cores reach the same ones.
    for (bool more = true; more && !faults_.full();) {
      for (Core& core : cores_) more = run_to_meeting(core);
      if (more) meet();
    }
    if (!faults_.full()) check_outputs();
  }

 private:
  struct Core {
    Core(Program const& program, int number) : walk(program, number), register_set(program.registers.size(), false) {
      for (Buffer const& buffer : program.buffers)
        tiles.emplace_back(static_cast<std::size_t>(on_chip(buffer.memory) ? buffer.rotation : 0),
                           TileShadow(buffer.elements_per_partition()));
    }
    TileShadow& tile(int buffer, int place) { return nth(nth(tiles, buffer), place); }

    Walk walk;
    std::vector<std::vector<TileShadow>> tiles;  ///< by buffer and place of its rotation
    std::vector<bool> register_set;
    ReductionChain scalar_accumulators{1}, vector_accumulators{2};
    OpenGroups groups;
    Node const* node = nullptr;
  };

  template <class... Parts>
  void report(Core const& core, Rule rule, std::string_view operand, Parts const&... parts) {
    faults_.add(
        core.node, rule, name_of(*core.node->as<Instruction>()), operand, [&] { return core.walk.place(); }, parts...);
  }

  /// Runs a core up to its next barrier or collective; false at the end of the program or when the fault list is full.
  bool run_to_meeting(Core& core) {
    while ((core.node = core.walk.next()) && !faults_.full()) {
      if (auto const* instruction = core.node->as<Instruction>()) {
        if (is_core_barrier(*core.node)) return true;
        std::visit([&](auto const& typed) { execute(core, typed); }, *instruction);
        if (int const* set = register_of(*instruction)) nth(core.register_set, *set) = true;
      } else if (auto const* made = core.node->as<Allocate>()) {
        core.tile(made->buffer, core.walk.place_of(made->buffer, 0)).clear();
      }
    }
    return false;
  }

  template <class I>
  void execute(Core& core, I const& instruction) {
    for_each_access(instruction, [&](std::string_view keyword, Use use, Access const& access) {
      if (use == Use::read) read(core, keyword, access);
    });
    use_accumulators(core, instruction);
    for_each_access(instruction, [&](std::string_view keyword, Use use, Access const& access) {
      if (use != Use::read) write<I>(core, keyword, use, access);
    });
    if constexpr (std::same_as<I, MatMul> || std::same_as<I, Transpose>) check_bank(core, instruction.dst);
    if constexpr (std::same_as<I, MatMul>) count_groups(core, instruction);
  }

  /// The tile of an access; null, and reported, if it is not allocated yet or no longer kept.
  TileShadow* tile_of(Core& core, std::string_view keyword, Access const& access) {
    int const place = core.walk.place_of(access);
    if (place >= 0) return &core.tile(access.buffer, place);
    Buffer const& buffer = program_.buffer(access);
    report(core, Rule::lifetime, keyword, "tile ", buffer.name, ", made ", access.age,
           " allocations ago, was not made yet; it must be allocated before it is used");
    return nullptr;
  }

  void read(Core& core, std::string_view keyword, Access const& access) {
    if (!on_chip(program_.buffer(access).memory)) return use_tensor(core, keyword, Use::read, access);
    TileShadow const* const tile = tile_of(core, keyword, access);
    if (!tile) return;
    Index const element = tile->defined.first_lacking(access, core.walk.at(access.offset), partitions_of(access));
    if (element >= 0)
      report(core, Rule::definedness, keyword, "element ", element, " of tile ", program_.buffer(access).name,
             " was never written in all of partitions ", access.start_partition, "..",
             access.start_partition + access.partitions() - 1, "; what is read must have been written");
  }

  template <class I>
  void write(Core& core, std::string_view keyword, Use use, Access const& access) {
    if (!on_chip(program_.buffer(access).memory)) return use_tensor(core, keyword, use, access);
    TileShadow* const tile = tile_of(core, keyword, access);
    if (!tile) return;
    PartitionSet const touched = partitions_of(access);
    Index const begin = core.walk.at(access.offset);
    if (use == Use::update) {
      Index const element = tile->by_matmul.first_lacking(access, begin, touched);
      if (element >= 0)
        report(core, Rule::accumulation, keyword, "accumulates onto element ", element, " of tile ",
               program_.buffer(access).name,
               ", which no matmul wrote last; the first matmul of a tile has accumulate=False");
    }
    tile->defined.set(access, begin, touched, true);
    tile->by_matmul.set(access, begin, touched, std::same_as<I, MatMul>);
  }

  void check_bank(Core& core, Access const& dst) {
    if (limits_.matmul_may_span_banks) return;
    Index const bytes = bytes_of(program_.buffer(dst).type), bank = limits_.psum_bank_bytes;
    Index const first = core.walk.at(dst.offset) * bytes, last = first + (dst.extremes(1).second + 1) * bytes - 1;
    if (first / bank != last / bank)
      report(core, Rule::matmul, "dst", "bytes ", first, "..", last, " of a partition of tile ",
             program_.buffer(dst).name, "; a result stays in one bank of ", bank, " bytes");
  }

  /// A matmul begins or continues an accumulation group.
  void count_groups(Core& core, MatMul const& i) {
    int const place = core.walk.place_of(i.dst);
    if (place < 0) return;
    TileShadow& tile = core.tile(i.dst.buffer, place);
    Buffer const& buffer = program_.buffer(i.dst);
    Index const begin = core.walk.at(i.dst.offset), bank = nth(first_bank_, i.dst.buffer) +
                                                           place * psum_banks(buffer, limits_) / buffer.rotation +
                                                           begin * bytes_of(buffer.type) / limits_.psum_bank_bytes;
    if (!i.accumulate) return core.groups.begin(tile, begin, begin + i.dst.extremes(1).second + 1, bank);
    OpenGroups::Most const open = core.groups.proceed(tile, begin, bank);
    if (open.all > limits_.open_accumulations)
      report(core, Rule::accumulation, "dst", open.all, " accumulation groups are open at once; at most ",
             limits_.open_accumulations);
    if (assumptions_.one_accumulation_per_bank && open.in_bank > 1)
      report(core, Rule::accumulation, "dst", open.in_bank, " accumulation groups are open in a bank of psum tile ",
             buffer.name, "; at most 1");
  }

  TensorShadow& tensor_of(int core, Access const& access) {
    auto& copies = nth(tensors_, access.buffer);
    return copies.size() == 1 ? copies.front() : nth(copies, core);
  }

  void use_tensor(Core& core, std::string_view keyword, Use use, Access const& access) {
    TensorShadow& tensor = tensor_of(core.walk.core(), access);
    Index const begin = core.walk.at(access.offset);
    RegisterValues const offsets = register_offsets(core, keyword, access);
    for (Index i = 0; i < offsets.count; ++i) {
      TensorAnswer const answer =
          tensor.use(core.walk.core(), use != Use::read, access, begin + i * offsets.step, !access.register_offset);
      if (answer.fault != TensorFault::none)
        return report_tensor(core, keyword, access, answer, use == Use::read ? "read" : "overwritten");
    }
  }

  /// Elements that the access's register may add to its offset; 0 without a register.
  RegisterValues register_offsets(Core const& core, std::string_view keyword, Access const& access) {
    if (!access.register_offset) return {};
    int const number = access.register_offset->register_number;
    if (!nth(core.register_set, number))
      report(core, Rule::definedness, keyword, "register ", number,
             " is used before it was set; accepted after collective_permute_implicit_current_processing_rank_id or "
             "register_load");
    RegisterValues offsets = nth(program_.registers, number);
    offsets.step *= program_.buffer(access).stride(access.register_offset->dimension);
    return offsets;
  }

  void report_tensor(Core const& core, std::string_view keyword, Access const& access, TensorAnswer const& answer,
                     std::string_view what) {
    std::string const element = concat("element ", answer.element, " of tensor ", program_.buffer(access).name);
    if (answer.fault == TensorFault::undefined)
      return report(core, Rule::definedness, keyword, element,
                    " was never written; what is read must have been written",
                    program_.cores == 2 ? ", by the other core before a barrier" : "");
    bool const wrote = answer.fault == TensorFault::unseen_write;
    report(core, wrote && what != "overwritten" ? Rule::read_after_write : Rule::overwrite, keyword, element, " is ",
           what, " after ",
           wrote                                      ? "a core wrote it"
           : answer.fault == TensorFault::unseen_read ? "a core read it"
                                                      : "a collective sent it",
           "; between them a core_barrier on the tensor is needed");
  }

  template <class I>
  void use_accumulators(Core& core, I const& i) {
    if constexpr (requires { i.reduce_cmd; }) {
      constexpr bool on_vector = std::same_as<I, RangeSelect>;
      bool const takes = i.reduce_res.has_value(), idle = i.reduce_cmd == ReduceCommand::idle;
      bool clobbers = on_vector;
      if constexpr (!on_vector) clobbers = idle && i.reduce_op && !takes;
      if (idle && !takes && !clobbers) return;
      ReductionChain& chain = on_vector ? core.vector_accumulators : core.scalar_accumulators;
      std::string const refusal =
          chain.follow({i.dst.start_partition, i.dst.partitions(), i.reduce_cmd, takes, clobbers});
      if (!refusal.empty()) report(core, Rule::reduction_chain, "reduce_cmd", refusal);
    }
  }

  /// Executes the barrier or collective that all cores have reached.
  void meet() {
    Core const& core = cores_.front();
    for_each_access(*core.node->as<Instruction>(), [&](std::string_view keyword, Use use, Access const& access) {
      TensorShadow& tensor = tensor_of(core.walk.core(), access);
      if (use == Use::update) return tensor.meet();  // of a barrier
      TensorAnswer const answer = use == Use::read ? tensor.send(assumptions_) : tensor.receive(assumptions_);
      if (answer.fault != TensorFault::none)
        report_tensor(core, keyword, access, answer, use == Use::read ? "sent" : "overwritten");
    });
  }

  void check_outputs() {
    for (int number : program_.with_role(Role::output)) {
      Buffer const& buffer = program_.buffer(number);
      Index const element = nth(tensors_, number).front().first_undefined();
      if (element >= 0)
        faults_.add(
            &buffer, Rule::inputs_and_outputs, "program", buffer.name, [] { return "end"; }, "element ", element,
            " of ", buffer.size(), " was never written; outputs are written whole");
    }
  }

  Program const& program_;
  Limits const& limits_;
  Assumptions assumptions_;
  FaultList& faults_;
  std::vector<Core> cores_;
  std::vector<Index> first_bank_;                   ///< of each buffer in PSUM
  std::vector<std::vector<TensorShadow>> tensors_;  ///< by buffer in HBM, and core if it is private
};

}  // namespace annulus::nki::validate_detail
