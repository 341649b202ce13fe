#pragma once
// Shadow pass of the validator: a symbolic run of the program on all its cores, without data. It tracks for each
// element whether it was written, and by whom, and relies on a program in which the text pass found no fault.

#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/program/walk.hpp"
#include "annulus/nki/validate/fault_list.hpp"
#include "annulus/nki/validate/reduction_chain.hpp"
#include "annulus/nki/validate/shadow_place.hpp"
#include "annulus/nki/validate/tensor_shadow.hpp"
#include "annulus/nki/validate/tile_shadow.hpp"

namespace annulus::nki::validate_detail {

/// Third stage of the validation.
class ShadowPass {
 public:
  ShadowPass(Program const& program, Hardware const& hardware, Assumptions const& assumptions, FaultList& faults)
      : program_(program), limits_(hardware.limits), assumptions_(assumptions), faults_(faults) {
    for (int core = 0; core < program.cores; ++core) cores_.emplace_back(program, core);
    tensors_.reserve(program.buffers.size() * cores_.size());
    for (Buffer const& buffer : program.buffers) {
      int const copies = buffer.memory == Memory::private_hbm ? program.cores : on_chip(buffer.memory) ? 0 : 1;
      first_tensor_.push_back(tensors_.size());
      for (int copy = 0; copy < copies; ++copy)
        tensors_.emplace_back(buffer, buffer.memory == Memory::shared_hbm ? program.cores : 1);
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
    Core(Program const& program, int number)
        : walk(program, number), tiles(program), register_set(static_cast<std::size_t>(program.registers), false) {}
    Walk walk;
    TileShadow tiles;
    std::vector<bool> register_set;
    ReductionChain scalar_accumulators{1}, vector_accumulators{2};
    Node const* node = nullptr;
    Section const* section = nullptr;
    Index section_number = 0;
  };

  template <class... Parts>
  void report(Core const& core, std::string_view rule, std::string_view operand, Parts const&... parts) {
    auto const* instruction = core.node ? core.node->as<Instruction>() : nullptr;
    faults_.add(
        core.node, rule, instruction ? name_of(*instruction) : "program",
        [&] { return place_of(program_, core.walk, core.node, core.section, core.section_number); }, operand, parts...);
  }

  /// Runs a core up to its next barrier or collective; false at the end of the program or when the fault list is full.
  bool run_to_meeting(Core& core) {
    while ((core.node = core.walk.next()) && !faults_.full()) {
      if (auto const* instruction = core.node->as<Instruction>()) {
        if (is_core_barrier(*core.node)) return true;
        std::visit([&](auto const& typed) { execute(core, typed); }, *instruction);
      } else if (auto const* made = core.node->as<Allocate>()) {
        Access newest;
        newest.buffer = made->buffer;
        core.tiles.make(made->buffer, core.walk.place_of(newest));
      } else if (auto const* section = core.node->as<Section>()) {
        core.section = section;
        core.section_number = core.walk.at(section->number);
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
    if constexpr (std::same_as<I, MatMul>) check_bank(core, instruction.dst);
    if constexpr (std::same_as<I, Transpose>)
      if (instruction.engine == Engine::tensor) check_bank(core, instruction.dst);
  }

  /// Reads only the partitions of src that the mask selects and writes only the partitions of dst that it changes.
  void execute(Core& core, StreamShuffle const& i) {
    PartitionSet selected, changed;
    for (Index partition = 0; partition < i.dst.partitions(); ++partition) {
      int const entry = i.shuffle_mask[static_cast<std::size_t>(partition % 32)];
      if (entry == 255) continue;
      selected = selected.with(PartitionSet::of(i.src.start_partition + partition / 32 * 32 + entry, 1));
      changed = changed.with(PartitionSet::of(i.dst.start_partition + partition, 1));
    }
    if (TileState const* const src = tile_of(core, "src", i.src)) require_defined(core, "src", i.src, *src, selected);
    if (TileState* const dst = tile_of(core, "dst", i.dst)) {
      dst->defined.add(i.dst, core.walk.at(i.dst.offset), changed);
      dst->by_matmul.remove(i.dst, core.walk.at(i.dst.offset), changed);
    }
  }

  void execute(Core& core, ProcessingRank const& i) {
    core.register_set[static_cast<std::size_t>(i.register_number)] = true;
  }

  /// The tile of an access; null, and reported, if it is not allocated yet or no longer kept.
  TileState* tile_of(Core& core, std::string_view keyword, Access const& access) {
    int const place = core.walk.place_of(access);
    if (place >= 0) return &core.tiles.tile(access.buffer, place);
    Buffer const& buffer = program_.buffer(access);
    report(core, "lifetime", keyword, "tile ", buffer.name, ", made ", access.age,
           " allocations ago, was not made yet; it must be allocated before it is used");
    return nullptr;
  }

  void read(Core& core, std::string_view keyword, Access const& access) {
    if (!on_chip(program_.buffer(access).memory)) return read_tensor(core, keyword, access);
    if (TileState const* const tile = tile_of(core, keyword, access))
      require_defined(core, keyword, access, *tile, PartitionSet::of(access.start_partition, access.partitions()));
  }

  void require_defined(Core& core, std::string_view keyword, Access const& access, TileState const& tile,
                       PartitionSet const& wanted) {
    Index const element = tile.defined.first_lacking(access, core.walk.at(access.offset), wanted);
    if (element >= 0)
      report(core, "R14", keyword, "element ", element, " of tile ", program_.buffer(access).name,
             " was never written in all of partitions ", access.start_partition, "..",
             access.start_partition + access.partitions() - 1, "; what is read must have been written");
  }

  template <class I>
  void write(Core& core, std::string_view keyword, Use use, Access const& access) {
    if (!on_chip(program_.buffer(access).memory)) return write_tensor(core, keyword, access);
    TileState* const tile = tile_of(core, keyword, access);
    if (!tile) return;
    PartitionSet const touched = PartitionSet::of(access.start_partition, access.partitions());
    Index const begin = core.walk.at(access.offset);
    if (use == Use::update) {
      Index const element = tile->by_matmul.first_lacking(access, begin, touched);
      if (element >= 0)
        report(core, "R5", keyword, "accumulates onto element ", element, " of tile ", program_.buffer(access).name,
               ", which no matmul wrote last; the first matmul of a tile has accumulate=False");
    }
    tile->defined.add(access, begin, touched);
    if constexpr (std::same_as<I, MatMul>)
      tile->by_matmul.add(access, begin, touched);
    else
      tile->by_matmul.remove(access, begin, touched);
  }

  void check_bank(Core& core, Access const& dst) {
    if (limits_.matmul_may_span_banks) return;
    Index const bytes = bytes_of(program_.buffer(dst).type), bank = limits_.psum_bank_bytes;
    Index const first = core.walk.at(dst.offset) * bytes, last = first + (dst.extremes(1).second + 1) * bytes - 1;
    if (first / bank != last / bank)
      report(core, "R3", "dst", "bytes ", first, "..", last, " of a partition of tile ", program_.buffer(dst).name,
             "; a result stays in one bank of ", bank, " bytes");
  }

  TensorShadow& tensor_of(int core, Access const& access) {
    bool const own = program_.buffer(access).memory == Memory::private_hbm;
    return tensors_[first_tensor_[static_cast<std::size_t>(access.buffer)] + static_cast<std::size_t>(own ? core : 0)];
  }

  void read_tensor(Core& core, std::string_view keyword, Access const& access) {
    TensorShadow& tensor = tensor_of(core.walk.core(), access);
    Index const begin = core.walk.at(access.offset), step = register_step(core, keyword, access);
    for (Index rank = 0; rank < (step == 0 ? 1 : program_.ranks); ++rank) {
      TensorAnswer const answer = tensor.read(core.walk.core(), access, begin + rank * step);
      if (answer.fault != TensorFault::none) return report_tensor(core, keyword, access, answer, "read");
    }
  }

  void write_tensor(Core& core, std::string_view keyword, Access const& access) {
    TensorShadow& tensor = tensor_of(core.walk.core(), access);
    Index const begin = core.walk.at(access.offset), step = register_step(core, keyword, access);
    for (Index rank = 0; rank < (step == 0 ? 1 : program_.ranks); ++rank) {
      TensorAnswer const answer = tensor.write(core.walk.core(), access, begin + rank * step, step == 0);
      if (answer.fault != TensorFault::none) return report_tensor(core, keyword, access, answer, "overwritten");
    }
  }

  /// Distance in elements between consecutive values of the access's register, 0 without a register.
  Index register_step(Core const& core, std::string_view keyword, Access const& access) {
    if (!access.register_offset) return 0;
    int const number = access.register_offset->register_number;
    if (!core.register_set[static_cast<std::size_t>(number)])
      report(core, "R14", keyword, "register ", number,
             " is used before a rank was read into it; accepted after "
             "collective_permute_implicit_current_processing_rank_id");
    Buffer const& buffer = program_.buffer(access);
    Index step = 1;
    for (std::size_t i = static_cast<std::size_t>(access.register_offset->dimension) + 1; i < buffer.shape.size(); ++i)
      step *= buffer.shape[i];
    return step;
  }

  void report_tensor(Core const& core, std::string_view keyword, Access const& access, TensorAnswer const& answer,
                     std::string_view what) {
    std::string_view const name = program_.buffer(access).name;
    if (answer.fault == TensorFault::undefined)
      report(core, "R14", keyword, "element ", answer.element, " of tensor ", name,
             " was never written; what is read must have been written",
             program_.cores == 2 ? ", by the other core before a barrier" : "");
    else if (answer.fault == TensorFault::unseen_write)
      report(core, what == "overwritten" ? "R21" : "R20", keyword, "element ", answer.element, " of tensor ", name,
             " is ", what, " after a core wrote it; between them a core_barrier on the tensor is needed");
    else
      report(core, "R21", keyword, "element ", answer.element, " of tensor ", name, " is ", what, " after ",
             answer.fault == TensorFault::unseen_sending ? "a collective sent it" : "a core read it",
             "; between them a core_barrier on the tensor is needed");
  }

  template <class I>
  void use_accumulators(Core&, I const&) {}
  void use_accumulators(Core& core, Activation const& i) {
    bool const takes = i.reduce_res.has_value(),
               accumulates_idly = i.reduce_cmd == ReduceCommand::idle && i.reduce_op && !takes;
    if (i.reduce_cmd != ReduceCommand::idle || takes || accumulates_idly)
      follow(core, core.scalar_accumulators, i.dst, Operator::add, i.reduce_cmd, takes, accumulates_idly);
  }
  void use_accumulators(Core& core, RangeSelect const& i) {
    follow(core, core.vector_accumulators, i.dst, i.reduce_op, i.reduce_cmd, i.reduce_res.has_value(), true);
  }
  void use_accumulators(Core& core, Exponential const& i) {
    follow(core, core.vector_accumulators, i.dst, Operator::add, i.reduce_cmd, i.reduce_res.has_value(), true);
  }
  void use_accumulators(Core& core, TensorScalarReduce const& i) {
    follow(core, core.vector_accumulators, i.dst, i.reduce_op, ReduceCommand::reset_reduce, true, true);
  }
  void follow(Core& core, ReductionChain& sums, Access const& dst, Operator op, ReduceCommand command, bool takes,
              bool clobbers) {
    std::string const refusal = sums.follow(
        {name_of(*core.node->as<Instruction>()), op, dst.start_partition, dst.partitions(), command, takes, clobbers});
    if (!refusal.empty()) report(core, "R15", "reduce_cmd", refusal);
  }

  /// Executes the barrier or collective that all cores have reached.
  void meet() {
    Core const& core = cores_.front();
    std::visit([&](auto const& typed) { carry_out(core, typed); }, std::get<Instruction>(core.node->content));
  }
  template <class I>
  void carry_out(Core const&, I const&) {}
  void carry_out(Core const& core, CoreBarrier const& i) { tensor_of(core.walk.core(), i.data).meet(); }
  void carry_out(Core const& core, CollectivePermute const& i) {
    send(core, "srcs_by_channel", i.src);
    receive(core, i.dst);
  }
  void carry_out(Core const& core, CollectivePermuteReduce const& i) {
    send(core, "srcs0_by_channel", i.src0);
    send(core, "srcs1_by_channel", i.src1);
    receive(core, i.dst);
  }
  void send(Core const& core, std::string_view keyword, Access const& src) {
    TensorAnswer const answer = tensor_of(core.walk.core(), src).send(assumptions_);
    if (answer.fault != TensorFault::none) report_tensor(core, keyword, src, answer, "sent");
  }
  void receive(Core const& core, Access const& dst) {
    TensorAnswer const answer = tensor_of(core.walk.core(), dst).receive(assumptions_);
    if (answer.fault != TensorFault::none) report_tensor(core, "dsts_by_channel", dst, answer, "overwritten");
  }

  void check_outputs() {
    for (int number : program_.with_role(Role::output)) {
      Buffer const& buffer = program_.buffer(number);
      Index const element = tensors_[first_tensor_[static_cast<std::size_t>(number)]].first_undefined();
      if (element >= 0)
        faults_.add(
            &buffer, "R16", "program", [] { return std::string("end"); }, buffer.name, "element ", element, " of ",
            buffer.size(), " was never written; outputs are written whole");
    }
  }

  Program const& program_;
  Limits const& limits_;
  Assumptions assumptions_;
  FaultList& faults_;
  std::vector<Core> cores_;
  std::vector<std::size_t> first_tensor_;
  std::vector<TensorShadow> tensors_;
};

}  // namespace annulus::nki::validate_detail
