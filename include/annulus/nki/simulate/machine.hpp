#pragma once
// One simulated rank: its one or two cores run alternately in the calling thread, each up to the next barrier or
// collective, where both synchronize.

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/program/dangling.hpp"
#include "annulus/nki/simulate/collectives.hpp"
#include "annulus/nki/simulate/data_movement.hpp"
#include "annulus/nki/simulate/gpsimd_engine.hpp"
#include "annulus/nki/simulate/scalar_engine.hpp"
#include "annulus/nki/simulate/tensor_engine.hpp"
#include "annulus/nki/simulate/vector_engine.hpp"

namespace annulus::nki {

/// Values of tensors in HBM by buffer name, in row-major order.
using Tensors = std::map<std::string, std::vector<float>, std::less<>>;

/// Numbers of instructions executed, summed over both cores.
struct Statistics {
  std::array<Index, engine_count> instructions{};  ///< by engine
  Index of(Engine engine) const { return instructions[static_cast<std::size_t>(engine)]; }
  Index total() const {
    Index sum = 0;
    for (Index count : instructions) sum += count;
    return sum;
  }
};

namespace simulator {

/// Instructions at which the cores of a rank synchronize.
template <class I>
concept Meeting =
    std::same_as<I, CoreBarrier> || std::same_as<I, CollectivePermute> || std::same_as<I, CollectivePermuteReduce>;

/// Runs once and then returns its outputs. Refers to the program and hardware, which outlive it.
class Machine {
 public:
  /// Throws UnsupportedError, ShapeError and Error as documented for simulate().
  Machine(Program const& program, Hardware const& hardware, Tensors const& inputs, RingPosition place)
      : program_(program), place_(std::move(place)), shared_(program.buffers.size()) {
    check<UnsupportedError>(program.cores == 1 || program.cores == 2, "a program for ", program.cores,
                            " cores; a logical core has 1 or 2 cores");
    check<UnsupportedError>(program.target == hardware.target, "a program for ", name_of(program.target), " on ",
                            name_of(hardware.target));
    check<UnsupportedError>(program.ranks == place_.ranks, "a program for ", program.ranks, " ranks on a ring of ",
                            place_.ranks);
    place_.arrangement.check_for(program.ranks, program.cores);
    std::string const missing = dangling(program);
    check<Error>(missing.empty(), "program ", program.name, ": ", missing, "; accepted is what the program declares");
    for (std::size_t i = 0; i < shared_.size(); ++i)
      if (program.buffers[i].memory == Memory::shared_hbm) shared_[i].forget(program.buffers[i]);
    for (int core = 0; core < program.cores; ++core) cores_.emplace_back(program, hardware, core, shared_);
    load(inputs);
  }

  /// Runs all cores to the end of the program; `statistics` may be null.
  void run(Statistics* statistics) {
    Statistics counted;
    auto const first = static_cast<std::size_t>(place_.arrangement.first_core);
    while (true) {
      std::array<Node const*, 2> nodes{};
      for (std::size_t i = 0; i < cores_.size(); ++i) {
        std::size_t const core = (first + i) % cores_.size();
        nodes[core] = run_to_meeting(cores_[core], counted);
      }
      if (cores_.size() == 2) check_together(nodes);
      if (!nodes[0]) break;
      auto const& instruction = *nodes[0]->as<Instruction>();
      with_context(cores_[0], instruction, [&] {
        std::visit(
            [&]<class I>(I const& typed) {
              if constexpr (Meeting<I>) {
                if (cores_.size() == 2) check_shared(typed);
                meet(cores_[0], place_, typed);
              }
            },
            instruction);
      });
    }
    if (statistics) *statistics = counted;
  }

  /// The outputs by name. Throws Error for an element that was never written.
  Tensors outputs() {
    Tensors results;
    for (int number : program_.with_role(Role::output)) {
      Buffer const& buffer = program_.buffer(number);
      Place& place = shared_[static_cast<std::size_t>(number)];
      check<Error>(buffer.memory == Memory::shared_hbm, "output ", buffer.name, " is in ", name_of(buffer.memory),
                   ", not in shared_hbm");
      place.fill_undefined();
      auto const missing = std::ranges::find_if(place.elements, is_poison);
      check<Error>(missing == place.elements.end(), "element ", missing - place.elements.begin(), " of output ",
                   buffer.name, " was never written");
      results.emplace(buffer.name, std::vector<float>(place.elements.begin(), place.elements.end()));
    }
    return results;
  }

 private:
  void load(Tensors const& inputs) {
    for (auto const& [name, values] : inputs) {
      int const number = program_.find(name);
      check<UnsupportedError>(number >= 0 && program_.buffer(number).role == Role::input, "program ", program_.name,
                              " has no input ", name);
    }
    for (int number : program_.with_role(Role::input)) {
      Buffer const& buffer = program_.buffer(number);
      auto const found = inputs.find(buffer.name);
      check<UnsupportedError>(found != inputs.end(), "input ", buffer.name, " of program ", program_.name,
                              " is missing");
      check<ShapeError>(static_cast<Index>(found->second.size()) == buffer.size(), "input ", buffer.name, " has ",
                        found->second.size(), " elements, expected ", buffer.size());
      check<Error>(buffer.memory == Memory::shared_hbm, "input ", buffer.name, " is in ", name_of(buffer.memory),
                   ", not in shared_hbm");
      Place& place = shared_[static_cast<std::size_t>(number)];
      std::ranges::transform(found->second, place.elements.begin(), [](float value) {
        return value == value ? value : std::numeric_limits<float>::quiet_NaN();
      });
      round_to(buffer.type, place.elements.data(), buffer.size());
      place.defined_columns = place.columns;
    }
  }

  /// Executes a core up to its next barrier or collective and returns that node; null at the end of the program.
  Node const* run_to_meeting(CoreState& core, Statistics& counted) {
    while (Node const* const node = core.walk.next()) {
      if (auto const* made = node->as<Allocate>()) {
        core.allocate(*made);
      } else if (auto const* section = node->as<Section>()) {
        core.section = section;
        core.section_number = core.walk.at(section->number);
      } else if (auto const* instruction = node->as<Instruction>()) {
        ++core.executed;
        ++counted.instructions[static_cast<std::size_t>(engine_of(*instruction))];
        if (is_core_barrier(*node)) return node;
        with_context(core, *instruction, [&] {
          std::visit(
              [&]<class I>(I const& typed) {
                if constexpr (std::same_as<I, ProcessingRank>)
                  answer(core, place_, typed);
                else if constexpr (!Meeting<I>)
                  execute(core, typed);
              },
              *instruction);
        });
      }
    }
    return nullptr;
  }

  void check_together(std::array<Node const*, 2> const& nodes) const {
    auto const values = [&](std::size_t core) { return cores_[core].walk.values().subspan(1); };
    if (nodes[0] == nodes[1] && (!nodes[0] || std::ranges::equal(values(0), values(1)))) return;
    auto const describe = [](Node const* node) {
      return node ? std::string(name_of(*node->as<Instruction>())) : std::string("its end");
    };
    throw Error(message_of("cores do not meet: core 0 is at ", where(cores_[0]), describe(nodes[0]), ", core 1 at ",
                           where(cores_[1]), describe(nodes[1])));
  }

  /// Operands of collectives and barriers must be shared by both cores, not private to one.
  template <class I>
  void check_shared(I const& instruction) const {
    for_each_access(instruction, [&](std::string_view keyword, Use, Access const& access) {
      Buffer const& buffer = program_.buffer(access);
      check<Error>(buffer.memory == Memory::shared_hbm, "operand ", keyword, ": ", buffer.name, " is in ",
                   name_of(buffer.memory), ", of which each core has its own");
    });
  }

  static std::string where(CoreState const& core) {
    return core.section ? message_of(core.section->name, ' ', core.section_number, ", ") : std::string();
  }

  /// Adds the position in the program to the message of an error.
  template <class Execute>
  static void with_context(CoreState const& core, Instruction const& instruction, Execute&& execute) {
    auto const context = [&] {
      return message_of("core ", core.walk.core(), ", ", where(core), "instruction ", core.executed, ", ",
                        name_of(instruction), ": ");
    };
    try {
      execute();
    } catch (CommunicationError const& error) {
      throw CommunicationError(context() + error.what(), error.rank(), error.step(), error.neighbour());
    } catch (UnsupportedError const& error) {
      throw UnsupportedError(context() + error.what());
    } catch (Error const& error) {
      throw Error(context() + error.what());
    }
  }

  Program const& program_;
  RingPosition place_;
  std::vector<Place> shared_;
  std::vector<CoreState> cores_;
};

}  // namespace simulator
}  // namespace annulus::nki
