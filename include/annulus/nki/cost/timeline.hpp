#pragma once
// Timeline of a program: begin and end of every instruction. Each engine executes its instructions in program order
// (the device's compiler may find a better order) and waits for the data that they need. Nothing is stored per executed
// instruction, so memory does not grow with the length of the program.
//
// - A read waits for the last write to the same piece of the same place; a write waits for reads too. Between engines a
//   semaphore adds its delay; for DMA and collectives that delay is included in their latency.
// - DMA: one of the descriptor generators writes the descriptors as soon as the data are ready; one latency later the
//   transfer takes its share of the core's DMA engines. DMAs with different dependencies may overtake each other.
//   Each core of a pair has half of the stack's HBM rate, even if the other is idle; HBM traffic of collectives is not
//   counted.
// - All ranks are assumed to run in lockstep: received data are available one latency and one transfer after this
//   rank's data are ready to send. The cores of a pair send together, one collective at a time.
// - Accesses of the two cores to shared HBM are ordered by barriers and collectives only, as on the device.

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/cost/instruction_cost.hpp"

namespace annulus::nki {

/// A period of time.
struct Period {
  double begin, end;  ///< seconds
};

/// Reserves spans of time, each as early as possible, also before spans reserved earlier. It remembers only the latest
/// `remembered` spans and reserves nothing before them: with that many queues, no request can overtake more of them.
class Calendar {
 public:
  explicit Calendar(int remembered) : remembered_(static_cast<std::size_t>(remembered)) {
    taken_.reserve(remembered_ + 1);
  }

  /// The begin, in seconds, that reserve() would return.
  double earliest(double ready, double duration) const { return find(ready, duration).begin; }

  /// Reserves `duration` seconds, not before `ready`; returns the begin.
  double reserve(double ready, double duration) {
    auto const [begin, place] = find(ready, duration);
    taken_.insert(at(place), {begin, begin + duration});
    join(place + 1);
    join(place);
    if (taken_.size() > remembered_) {
      floor_ = taken_.front().end;
      taken_.erase(taken_.begin());
    }
    return begin;
  }

 private:
  struct Found {
    double begin;
    std::size_t place;
  };

  Found find(double ready, double duration) const {
    double begin = std::max(ready, floor_);
    // Searches from the latest span backwards: spans that end before `begin` do not matter, and usually few remain.
    std::size_t place = taken_.size();
    while (place > 0 && taken_[place - 1].end > begin) --place;
    for (; place < taken_.size() && begin + duration > taken_[place].begin; ++place)
      begin = std::max(begin, taken_[place].end);
    return {begin, place};
  }

  std::vector<Period>::iterator at(std::size_t place) { return taken_.begin() + static_cast<std::ptrdiff_t>(place); }
  /// Joins a span with the one before it if they touch.
  void join(std::size_t place) {
    if (place == 0 || place >= taken_.size() || taken_[place - 1].end != taken_[place].begin) return;
    taken_[place - 1].end = taken_[place].end;
    taken_.erase(at(place));
  }

  std::size_t remembered_;
  std::vector<Period> taken_;
  double floor_ = 0;
};

/// The waiting instruction's engine and delays. In-order engines need not wait for themselves; DMA and collectives give
/// `nobody`.
struct Waiting {
  static constexpr int nobody = -1;

  int engine = nobody;
  double signal = 0;     ///< seconds until the end of another engine's instruction is visible
  double dependent = 0;  ///< seconds to wait for what the same engine has just written
};

/// End time in seconds, and the engine whose instruction ends then.
struct End {
  static constexpr double never = std::numeric_limits<double>::lowest() / 2;

  double seconds = never;
  int engine = Waiting::nobody;

  void wait_for(End const& other) {
    if (other.seconds > seconds) *this = other;
  }
  End after(double delay) const { return {seconds + delay, engine}; }
};

/// The latest of many ends, and the latest among the other engines.
class LatestEnds {
 public:
  void note(End const& end) {
    if (end.engine == latest_.engine) {
      latest_.wait_for(end);
    } else if (end.seconds > latest_.seconds) {
      others_ = latest_;
      latest_ = end;
    } else {
      others_.wait_for(end);
    }
  }
  /// The latest end as seen by `engine`: delayed by own_delay for its own instructions, by signal for others.
  End seen_by(int engine, double own_delay, double signal) const {
    if (engine != latest_.engine) return latest_.after(signal);
    End seen = latest_.after(own_delay);
    seen.wait_for(others_.after(signal));
    return seen;
  }

 private:
  End latest_{End::never, Waiting::nobody - 1}, others_;
};

/// Ends of the reads and writes of one piece of memory.
struct Uses {
  LatestEnds reads, writes;

  /// When a use may begin: readers wait for writers, writers for both.
  End free_for(Use use, Waiting const& waiting) const {
    End end = writes.seen_by(waiting.engine, use == Use::write ? 0 : waiting.dependent, waiting.signal);
    if (use != Use::read) end.wait_for(reads.seen_by(waiting.engine, 0, waiting.signal));
    return end;
  }
  void note(Use use, End const& end) {
    if (use != Use::write) reads.note(end);
    if (use != Use::read) writes.note(end);
  }
};

/// One place: a tensor in HBM, or one of the tiles in the rotation of an on-chip buffer. Uses of an older tile in the
/// same place are waited for as well, piece by piece. Uses of the whole place are stored separately, so that they cost
/// nothing per piece.
class Place {
 public:
  Place(Index elements, Index piece)
      : elements_(elements),
        piece_(piece),
        pieces_(static_cast<std::size_t>(piece == 0 ? 0 : detail::ceil_divide(elements, piece))) {}

  Index elements() const { return elements_; }  ///< of a partition; in HBM all

  /// When the use of the operand at `offset` may begin.
  End free_for(OperandPlan const& operand, Index offset, Waiting const& waiting) const {
    if (operand.all) return any_.free_for(operand.use, waiting);
    End free = whole_.free_for(operand.use, waiting);
    for_each_piece(operand, offset, [&](std::size_t i) { free.wait_for(pieces_[i].free_for(operand.use, waiting)); });
    return free;
  }
  void note(OperandPlan const& operand, Index offset, End const& end) {
    any_.note(operand.use, end);
    if (operand.all) return whole_.note(operand.use, end);
    for_each_piece(operand, offset, [&](std::size_t i) { pieces_[i].note(operand.use, end); });
  }

 private:
  template <class Visit>
  void for_each_piece(OperandPlan const& operand, Index offset, Visit&& visit) const {
    for (Run const& run : operand.runs) {
      Index const begin = offset + run.begin;
      for (Index piece = begin / piece_; piece <= (begin + run.length - 1) / piece_; ++piece)
        visit(static_cast<std::size_t>(piece));
    }
  }

  Index elements_;
  Index piece_;  // 0: always used as a whole
  Uses whole_, any_;
  std::vector<Uses> pieces_;
};

/// One executed instruction. A collective of both cores of a pair is reported once, for core 0.
struct Execution {
  InstructionPlan const& plan;
  int core;
  double begin, end;                   ///< seconds; DMA: from its descriptors to its last byte
  double busy;                         ///< seconds of the engine; DMA: of all the core's DMA engines
  double waited = 0;                   ///< idle seconds of a compute engine before it
  Engine waited_for = Engine::tensor;  ///< engine whose instruction it waited for last
};

/// Computes begin and end of every instruction by simulating the engines' queues, without computing values.
class Timeline {
 public:
  /// The program outlives it. Throws Error for undeclared names and for numbers of cores other than 1 and 2.
  Timeline(Program const& program, Hardware const& hardware)
      : program_(program), costs_(hardware.costs), plan_(program, hardware) {
    if (program.cores < 1 || program.cores > static_cast<int>(most_cores))
      fail(concat("it is for ", program.cores, " cores"));
    for (int core = 0; core < program.cores; ++core) cores_.emplace_back(program, costs_, plan_, core);
  }
  Timeline(Timeline const&) = delete;
  Timeline& operator=(Timeline const&) = delete;

  /// Call once. Calls observer.section(core, Section const&, Index number) when a core enters a section, and
  /// observer.executed(Execution const&) for every instruction, in program order for each core. Throws Error for
  /// programs that validation would refuse.
  template <class Observer>
  void run(Observer&& observer) {
    while (true) {
      bool all_meet = true, none_meets = true;
      for (Core& core : cores_) {
        advance(core, observer);
        (core.meeting ? none_meets : all_meet) = false;
      }
      if (none_meets) return;
      if (!all_meet) fail("one core of the pair waits for the other, which has nothing left to do");
      meet(observer);
    }
  }

 private:
  struct Core {
    Core(Program const& program, Costs const& costs, CostPlan const& plan, int number)
        : walk(program, number),
          generators(static_cast<std::size_t>(costs.dma_generators), Calendar(costs.dma_engines)),
          bandwidth(costs.dma_engines),
          registers(program.registers.size()) {
      for (std::size_t i = 0; i < program.buffers.size(); ++i)
        places.emplace_back(on_chip(program.buffers[i].memory) ? program.buffers[i].rotation : 1,
                            Place(program.buffers[i].elements_per_partition(), plan.piece(i)));
    }

    Walk walk;
    std::array<double, engine_count> free{};
    std::vector<Calendar> generators;
    Calendar bandwidth;
    std::vector<End> registers;
    std::vector<std::vector<Place>> places;  ///< by buffer and place of its rotation
    InstructionPlan const* meeting = nullptr;
    double transposed = 0;  ///< end of the latest DMA transpose
  };
  struct Resolved {
    Place* place;
    Index offset;
  };
  static constexpr std::size_t most_cores = 2, most_operands = 8;
  using Operands = std::array<Resolved, most_operands>;

  [[noreturn]] void fail(std::string const& what) const {
    throw Error("cost of program " + program_.name + ": " + what + "; accepted is a program that passes validation");
  }

  /// Executes a core up to its next barrier or collective, or to its end.
  template <class Observer>
  void advance(Core& core, Observer& observer) {
    core.meeting = nullptr;
    while (Node const* node = core.walk.next()) {
      if (node->as<Instruction>()) {
        InstructionPlan const& plan = plan_.of(core.walk);
        if (plan.meeting) {
          core.meeting = &plan;
          return;
        }
        execute(core, plan, observer);
      } else if (auto const* section = node->as<Section>()) {
        observer.section(core.walk.core(), *section, core.walk.at(section->number));
      }
    }
  }

  Resolved resolve(Core& core, OperandPlan const& operand) const {
    int const number = core.walk.place_of(operand.buffer, operand.age);
    if (number < 0) fail("a tile of " + program_.buffer(operand.buffer).name + " is used that is not alive");
    Place& place = nth(nth(core.places, operand.buffer), number);
    Index const offset = operand.moving ? core.walk.at(*operand.moving) : operand.offset;
    if (!operand.all && (offset + operand.runs.front().begin < 0 ||
                         offset + operand.runs.back().begin + operand.runs.back().length > place.elements()))
      fail("an operand reaches beyond " + program_.buffer(operand.buffer).name);
    return {&place, offset};
  }

  /// Resolves all operands and returns when their data are available.
  End ready(Core& core, InstructionPlan const& plan, Operands& operands) const {
    InstructionCost const& cost = plan.cost;
    bool const in_order = cost.engine != Engine::dma && cost.engine != Engine::collective;
    Waiting const waits =
        in_order ? Waiting{static_cast<int>(cost.engine), costs_.semaphore, cost.dependent} : Waiting{};
    End ready;
    for (std::size_t i = 0; i < plan.operands.size(); ++i) {
      OperandPlan const& operand = plan.operands[i];
      Resolved const& used = operands[i] = resolve(core, operand);
      ready.wait_for(used.place->free_for(operand, used.offset, waits));
      if (operand.by_register >= 0) ready.wait_for(nth(core.registers, operand.by_register));
    }
    return ready;
  }

  static void note(InstructionPlan const& plan, Operands const& operands, End const& end) {
    for (std::size_t i = 0; i < plan.operands.size(); ++i)
      operands[i].place->note(plan.operands[i], operands[i].offset, end);
  }

  template <class Observer>
  void execute(Core& core, InstructionPlan const& plan, Observer& observer) {
    Operands operands;
    End const data = ready(core, plan, operands);
    InstructionCost const& cost = plan.cost;
    Execution execution{plan, core.walk.core(), std::max(data.seconds, 0.0), 0, cost.seconds * cost.share};
    double& begin = execution.begin;
    if (cost.engine == Engine::dma) {
      Calendar* generator = &core.generators.front();
      for (Calendar& other : core.generators)
        if (other.earliest(begin, cost.issue) < generator->earliest(begin, cost.issue)) generator = &other;
      begin = generator->reserve(begin, cost.issue);
      bool const transposes = std::holds_alternative<DmaTranspose>(*plan.instruction);
      double moving = begin + cost.issue + cost.latency;
      while (transposes) {
        double const free = core.bandwidth.earliest(after_permutes(moving, cost.seconds), execution.busy);
        if (std::exchange(moving, free) == free) break;
      }
      moving = core.bandwidth.reserve(moving, execution.busy);
      execution.end = moving + cost.seconds;
      if (transposes) core.transposed = std::max(core.transposed, execution.end);
    } else {
      double& free = nth(core.free, cost.engine);
      if (begin > free) {
        execution.waited = begin - free;
        execution.waited_for = static_cast<Engine>(data.engine);
      }
      begin = std::max(begin, free);
      execution.end = free = begin + cost.seconds;
    }
    End const end{execution.end, static_cast<int>(cost.engine)};
    note(plan, operands, end);
    if (int const* set = register_of(*plan.instruction)) nth(core.registers, *set) = end;
    observer.executed(execution);
  }

  /// The begin of a DMA transpose: it does not run during a permute (S: nki-library, attention_const_max).
  double after_permutes(double begin, double duration) const {
    for (auto span = std::ranges::upper_bound(permutes_, begin, {}, &Period::end);
         span != permutes_.end() && begin + duration > span->begin; ++span)
      begin = span->end;
    return begin;
  }

  /// A barrier or collective that all cores have reached. A permute waits for the DMA transposes before it.
  template <class Observer>
  void meet(Observer& observer) {
    InstructionPlan const& plan = *cores_.front().meeting;
    bool const collective = plan.cost.engine == Engine::collective;
    std::array<Operands, most_cores> operands;
    std::array<double, most_cores> reached{};
    for (std::size_t c = 0; c < cores_.size(); ++c) {
      Core& core = cores_[c];
      if (core.meeting->instruction->index() != plan.instruction->index())
        fail("the cores of the pair wait for each other in different instructions");
      reached[c] = std::max({ready(core, *core.meeting, operands[c]).seconds, nth(core.free, plan.cost.engine),
                             collective ? core.transposed : 0});
    }
    double const begin = std::ranges::max(reached), end = begin + plan.cost.latency + plan.cost.seconds;
    if (collective) permutes_.push_back({begin, end});
    for (std::size_t c = 0; c < cores_.size(); ++c) {
      Core& core = cores_[c];
      note(*core.meeting, operands[c], {end, static_cast<int>(plan.cost.engine)});
      nth(core.free, plan.cost.engine) = end;
      // A barrier occupies each core's engine from when that core reaches it.
      if (!collective || c == 0)
        observer.executed(
            Execution{*core.meeting, static_cast<int>(c), collective ? begin : reached[c], end, plan.cost.alone()});
    }
  }

  Program const& program_;
  Costs costs_;
  CostPlan plan_;
  std::vector<Core> cores_;
  std::vector<Period> permutes_;  ///< so far, in order
};

}  // namespace annulus::nki
