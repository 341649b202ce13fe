#pragma once
// Simulator of tile programs: runs one rank of a program on simulated NeuronCores. Its one or two cores run alternately
// in the calling thread, each up to the next barrier or collective, where both synchronize.

#include <algorithm>
#include <concepts>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/nki/validate/validate.hpp"
#if defined(ANNULUS_NKI_DEFINITIONS)
#include "annulus/nki/simulate/engines.hpp"
#endif

namespace annulus::nki {

/// Choices left to the device, on which the results of a program must not depend: order of the ring, meaning of rank
/// ids, and order of the cores.
struct Arrangement {
  /// Meaning of the rank ids that programs query: position in the group, or rank number across all groups.
  enum class Ids {
    position,  ///< in the group
    global,    ///< across all groups
  };

  /// Worker that each rank of the communicator runs as; empty: worker = rank. Data moves from each rank to the next.
  std::vector<int> ring;
  Ids ids = Ids::position;  ///< meaning of rank ids
  int group_begin = 0;      ///< global number of the group's first worker
  int first_core = 0;       ///< which core of a pair runs first between two synchronization points

  /// Throws UnsupportedError unless the ring names every worker once and first_core exists.
  void check_for(int ranks, int cores) const {
    detail::check<UnsupportedError>(first_core >= 0 && first_core < cores, "core ", first_core, " is to go first of ",
                                    cores);
    if (ring.empty()) return;
    detail::check<UnsupportedError>(std::ssize(ring) == ranks, "a ring order of ", ring.size(), " workers for ", ranks,
                                    " ranks");
    std::vector<int> workers(ring.size());
    std::iota(workers.begin(), workers.end(), 0);
    detail::check<UnsupportedError>(std::ranges::is_permutation(ring, workers), "ring order ", ring,
                                    " does not name each of ", ranks, " workers once");
  }

  /// The worker that a rank runs as.
  int worker(Rank rank) const { return ring.empty() ? rank : nth(ring, rank); }
  /// The id of the worker whose data is at `rank` after `hops` hops.
  int id_after(Index hops, Rank rank, int ranks) const {
    return worker(detail::rank_at(rank - static_cast<int>(hops % ranks), ranks)) +
           (ids == Ids::global ? group_begin : 0);
  }
};

/// Values of tensors in HBM by buffer name, in row-major order.
using Tensors = std::map<std::string, std::vector<float>, std::less<>>;

namespace simulator {

/// A rank's position in the ring. shift(out, in) sends `out` to the next rank and receives `in` from the previous one.
struct RingPosition {
  Rank rank = 0;
  int ranks = 1;
  Arrangement arrangement;
  std::function<void(std::span<float const> out, std::span<float> in)> shift;
};

/// Runs the program of one rank; throws as simulate() does.
Tensors run(ValidatedProgram const& program, Tensors const& inputs, RingPosition place);

#if defined(ANNULUS_NKI_DEFINITIONS)

/// Runs once. Refers to the program, which outlives it.
class Machine {
 public:
  /// Throws UnsupportedError, ShapeError and Error as documented for simulate().
  Machine(ValidatedProgram const& validated, Tensors const& inputs, RingPosition place)
      : program_(validated.program()), place_(std::move(place)), shared_(program_.buffers.size()) {
    detail::check<UnsupportedError>(program_.ranks == place_.ranks, "a program for ", program_.ranks,
                                    " ranks on a ring of ", place_.ranks);
    place_.arrangement.check_for(program_.ranks, program_.cores);
    for (std::size_t i = 0; i < shared_.size(); ++i)
      if (program_.buffers[i].memory == Memory::shared_hbm) shared_[i] = unwritten(program_.buffers[i]);
    for (int core = 0; core < program_.cores; ++core) cores_.emplace_back(program_, core, shared_);
    load(inputs);
  }

  /// Runs all cores to the end of the program and returns the outputs by name.
  Tensors run() {
    auto const first = static_cast<std::size_t>(place_.arrangement.first_core);
    for (;;) {
      // Both cores reach the same barriers and collectives, since no branch of one core contains any.
      Node const* node = nullptr;
      for (std::size_t i = 0; i < cores_.size(); ++i) node = run_to_meeting(cores_[(first + i) % cores_.size()]);
      if (!node) break;
      execute_in_context(cores_[0], *node->as<Instruction>());
    }
    Tensors results;
    for (int number : program_.with_role(Role::output)) {
      Floats const& elements = nth(shared_, number);
      results.emplace(program_.buffer(number).name, std::vector<float>(elements.begin(), elements.end()));
    }
    return results;
  }

 private:
  void load(Tensors const& inputs) {
    for (auto const& [name, values] : inputs) {
      int const number = program_.find(name);
      detail::check<UnsupportedError>(number >= 0 && program_.buffer(number).role == Role::input, "program ",
                                      program_.name, " has no input ", name);
    }
    for (int number : program_.with_role(Role::input)) {
      Buffer const& buffer = program_.buffer(number);
      auto const found = inputs.find(buffer.name);
      detail::check<UnsupportedError>(found != inputs.end(), "input ", buffer.name, " of program ", program_.name,
                                      " is missing");
      detail::check<ShapeError>(static_cast<Index>(found->second.size()) == buffer.size(), "input ", buffer.name,
                                " has ", found->second.size(), " elements, expected ", buffer.size());
      Floats& elements = nth(shared_, number);
      std::ranges::transform(found->second, elements.begin(), [](float value) {
        return value == value ? value : std::numeric_limits<float>::quiet_NaN();
      });
      round_to(buffer.type, elements.data(), buffer.size());
    }
  }

  /// Executes a core up to its next barrier or collective and returns that node; null at the end of the program.
  Node const* run_to_meeting(CoreState& core) {
    while (Node const* const node = core.walk.next()) {
      if (auto const* instruction = node->as<Instruction>()) {
        ++core.executed;
        if (is_core_barrier(*node)) return node;
        execute_in_context(core, *instruction);
      }
    }
    return nullptr;
  }

  /// Executes an instruction; adds the position in the program to the message of an error.
  void execute_in_context(CoreState& core, Instruction const& instruction) {
    auto const context = [&] {
      Section const* const section = core.walk.section();
      return concat("core ", core.walk.core(), ", ",
                    section ? concat(section->name, " ", core.walk.section_number(), ", ") : "", "instruction ",
                    core.executed, ", ", name_of(instruction), ": ");
    };
    try {
      std::visit(
          [&](auto const& typed) {
            if constexpr (requires { perform(core, typed); })
              perform(core, typed);
            else
              execute(core, typed);
          },
          instruction);
    } catch (CommunicationError const& error) {
      throw CommunicationError(context() + error.what(), error.rank(), error.step(), error.neighbour());
    } catch (UnsupportedError const& error) {
      throw UnsupportedError(context() + error.what());
    } catch (Error const& error) {
      throw Error(context() + error.what());
    }
  }

  /// Writes to simulated shared HBM are visible to the other core immediately, so a barrier has nothing else to do.
  void perform(CoreState&, CoreBarrier const&) {}
  void perform(CoreState& core, CollectivePermute const& i) { shift(core, core.operand(i.src).base, i.dst); }
  void perform(CoreState& core, CollectivePermuteReduce const& i) {
    Operand const src0 = core.operand(i.src0), src1 = core.operand(i.src1);
    float* const joined = core.scratch[2].of(src0.size());
    apply(i.op, src0.base, src1.base, joined, src0.size());
    round_to(src0.type, joined, src0.size());
    shift(core, joined, i.dst);
  }
  /// Sets a register to the id of the worker whose data has been received.
  void perform(CoreState& core, ProcessingRank const& i) {
    nth(core.registers, i.register_number) =
        place_.arrangement.id_after(core.walk.at(i.iteration_id), place_.rank, place_.ranks);
  }
  /// Throws Error for a value that the register is not declared to hold.
  void perform(CoreState& core, RegisterLoad const& i) {
    float const value = *core.operand(i.src).base;
    RegisterValues const& values = nth(program_.registers, i.register_number);
    annulus::detail::check<Error>(
        value >= 0 && value <= static_cast<float>(values.largest()) && static_cast<Index>(value) % values.step == 0,
        "register_load of ", value, " into a register of ", values.count, " values that are multiples of ",
        values.step);
    nth(core.registers, i.register_number) = static_cast<Index>(value);
  }
  /// Operands of collectives are whole tensors, so their elements are consecutive.
  void shift(CoreState& core, float const* out, Access const& into) {
    Operand const dst = core.operand(into);
    auto const size = static_cast<std::size_t>(dst.size());
    place_.shift({out, size}, {dst.base, size});
  }

  Program const& program_;
  RingPosition place_;
  std::vector<Floats> shared_;
  std::vector<CoreState> cores_;
};

ANNULUS_NKI_INLINE Tensors run(ValidatedProgram const& program, Tensors const& inputs, RingPosition place) {
  return Machine(program, inputs, std::move(place)).run();
}

#endif

}  // namespace simulator

/// Runs the program of one rank, with values rounded as the device rounds them, and returns its outputs.
///
///   inputs       every buffer of role input, by name, elements in row-major order; rounded to the buffer's type. Rank
///                i of the ring runs as worker arrangement.worker(i), and its inputs are those of that worker.
///   ring         size() == program.ranks; all ranks call simulate with the same program and arrangement.
///   arrangement  choices that are left to the device; a correct program gives the same outputs for every choice.
///
/// Returns the buffers of role output by name, in row-major order.
/// Throws UnsupportedError if the program does not match the ring or the names of the inputs, ShapeError for inputs of
/// another size, CommunicationError when a peer is lost, and Error, with the instruction, if its data lead to undefined
/// behaviour on the device: it evaluates a function outside ScalarE's domain, writes an integer that the type cannot
/// hold, or a register that holds a global rank id selects elements that do not exist or were never written. All else
/// has been checked by the validator.
template <Communicator C>
requires std::same_as<typename C::memory_space, HostMemory> Tensors simulate(ValidatedProgram const& program,
                                                                             Tensors const& inputs, C& ring,
                                                                             Arrangement const& arrangement = {}) {
  auto const shift = [&](std::span<float const> out, std::span<float> in) {
    auto const sent = std::as_bytes(out);
    auto const received = std::as_writable_bytes(in);
    ring.start_shift(Channel::prefetched, 1, OutgoingBytes(&sent, 1), IncomingBytes(&received, 1)).wait();
  };
  try {
    return simulator::run(program, inputs, {ring.rank(), ring.size(), arrangement, shift});
  } catch (std::exception const& error) {
    ring.abandon(error.what());  // so that peers do not wait for this rank
    throw;
  }
}

/// The same for a program of one rank, without a communicator.
inline Tensors simulate(ValidatedProgram const& program, Tensors const& inputs, Arrangement const& arrangement = {}) {
  return simulator::run(program, inputs, {0, 1, arrangement, {}});
}

}  // namespace annulus::nki
