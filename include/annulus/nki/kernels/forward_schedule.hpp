#pragma once
// Schedule of a forward round: ring steps, sections of keys, units of work, and the times of copies, sends and loads.

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "annulus/nki/kernels/forward_pipeline.hpp"
#include "annulus/nki/kernels/rotating_buffers.hpp"
#include "annulus/nki/kernels/work_notes.hpp"

namespace annulus::nki {

/// Work list of a forward round, written to a program as a software pipeline.
class ForwardSchedule {
 public:
  /// Step 0 is that of the rank's own keys, later steps may be those of any other rank; steps without visible pairs are
  /// omitted.
  ForwardSchedule(KernelSpec const& spec, RingMask const& mask, std::vector<RowTile> const& tiles, SbufPlan const& plan,
                  int ranks)
      : heads_(spec.query_heads_per_item()), tile_count_(std::ssize(tiles)) {
    for (int step = 0; step < ranks; ++step) {
      std::size_t const before = sections_.size();
      bool const chosen = step > 0 && mask.chooses_halves();
      // The order alternates between ascending and descending, and ends such that the pipeline drains on little work:
      // causal row tiles have less the lower their index, and those of a half equally much but for a short last one.
      bool const falling = ((ranks - 1 - step) % 2 == 0) != chosen;
      // With stationary keys each half begins a key tile.
      bool const halves = chosen || (spec.keys_stationary && mask.key_parts().size() > 1);
      Index const keys = halves ? spec.local_keys / 2 : spec.local_keys,
                  most = halves ? plan.section / 2 / tile_rows * tile_rows : plan.section;
      for (Index begin = 0; begin < keys; begin += most) {
        KeySection section{
            .rows = {begin, std::min(begin + most, keys)}, .chosen = chosen, .step = step, .first_slot = slots_.size()};
        if (halves) section.late = {keys + section.rows.begin, keys + section.rows.end};
        std::size_t const first = units_.size();
        for (Index head = 0; head < heads_; ++head)
          for (Index i = 0; i < tile_count_; ++i) {
            Index const tile = falling ? tile_count_ - 1 - i : i;
            add_units(mask, section, head, tile, nth(tiles, tile).rows_of_all_cores, plan.group,
                      spec.keys_stationary ? 0 : plan.group);
          }
        if (units_.size() == first) continue;
        sections_.push_back(section);
        add_slots(first, plan.group);
      }
      if (sections_.size() == before && step > 0) break;
      steps_ = step + 1;
    }
  }

  int steps() const { return steps_; }

  /// Notes the work of the slots. `tiles`: as before.
  void note_work(Builder& builder, std::vector<RowTile> const& tiles, WorkNotes notes) const {
    std::size_t slot = 0, section = 0;
    for (int step = 0; step < steps_; ++step) {
      notes.begin_step();
      while (section < sections_.size() && sections_[section].step == step) ++section;
      for (; slot < first_slot(section); ++slot) {
        TileWork work{};
        for (ForwardUnit const& unit : slot_units(slot))
          work.add({{unit.head, unit.head + 1}, nth(tiles, unit.tile).rows_of_all_cores, unit.keys, unit.chosen});
        notes.add(work);
      }
    }
    notes.write(builder);
  }

  /// Writes the round. `operands`: k and v. finish(head, tiles, drained) stores finished row tiles while others are
  /// computed; drained: no unit is left to be scored. Copies of the rank's own keys and values to the send buffers,
  /// sends and loads are spread over the work of a section, because units wait for bursts of transfers.
  template <class Stages, class Finish>
  void write(Builder& builder, Stages& stages, std::vector<RotatingRows> const& operands, BoundsTiles& bounds,
             Finish&& finish) {
    RoundParts<Stages> const parts{stages, operands, bounds};
    Events events;
    for (std::size_t section = 0; section < sections_.size(); ++section) {
      if (begins_step(section)) add_sends(events, parts, section);
      if (section + 1 < sections_.size()) add_loads(events, parts, section);
    }
    add_batches<Stages>(events, finish);

    Roller steps(builder, "steps", 2);
    std::size_t section = 0, slot = 0;
    for (int step = 0; step < steps_; ++step)
      steps.add(builder.collect([&] { write_step(builder, parts, events, step, section, slot); }));
    steps.flush();
  }

 private:
  // Fractions of a section's work after which transfers begin or end.
  static constexpr double copy_begin = 0.05, copy_end = 0.4;   // later than the loads of the first units
  static constexpr double send_own = 0.4;                      // the copies are complete
  static constexpr double send_others = 0.2;                   // the other core has begun the step too
  static constexpr double load_own = 0.65, load_others = 0.5;  // a permute of a long shard is complete
  static constexpr double load_end = 0.95;                     // the next section is about to begin
  static constexpr double choose_first = 0.25;                 // the offsets have arrived
  static constexpr Index copy_parts = 8, load_parts = 8;       // a longer DMA would delay transposes

  /// Actions by the slot before which they are emitted.
  using Events = std::multimap<std::size_t, std::function<void()>>;

  /// What a round computes with, and k and v, which travel.
  template <class Stages>
  struct RoundParts {
    Stages& stages;
    std::vector<RotatingRows> const& operands;
    BoundsTiles& bounds;
  };

  /// Adds act(part, parts) for each part, between fractions `begin` and `end` of the work of a section.
  template <class Act>
  void spread(Events& events, std::size_t section, double begin, double end, Index parts, Act act) const {
    for (Index part = 0; part < parts; ++part) {
      double const at = begin + (end - begin) * static_cast<double>(part) / static_cast<double>(parts);
      events.insert({slot_at(section, at), [=] { act(part, parts); }});
    }
  }

  /// Adds the copies of the rank's own keys and values to the send buffers, and the sends of the step that a section
  /// begins.
  template <class Stages>
  void add_sends(Events& events, RoundParts<Stages> const& round, std::size_t section) const {
    int const step = sections_[section].step;
    if (step == 0)
      spread(events, section, copy_begin, copy_end, copy_parts,
             [&round](Index part, Index parts) { copy(round.operands, part, parts); });
    double const at = step == 0 ? send_own : send_others;
    spread(events, section, at, at, 2, [&round, step](Index operand, Index) {
      round.stages.begin_permute(nth(round.operands, operand).send(step));
    });
  }

  /// Adds the loads of the section after `section`, while that is computed.
  template <class Stages>
  void add_loads(Events& events, RoundParts<Stages> const& round, std::size_t section) {
    int const step = sections_[section].step, next = sections_[section + 1].step;
    double const begin = step == 0 ? load_own : load_others;
    // Chosen operands are loaded from addresses in registers, which take some microseconds: offsets a step ahead.
    bool const chosen = sections_[section + 1].chosen;
    if (chosen && step == 0) events.insert({first_slot(section), [&round, next] { round.bounds.prefetch(next); }});
    double const at = !chosen ? begin : step == 0 ? choose_first : Stages::choose;
    events.insert({std::min(slot_at(section, at), first_slot(section + 1) - chosen), [=, this, &round] {
                     load_bounds(round.bounds, section + 1);
                     if (chosen && next + 1 < steps_) round.bounds.prefetch(next + 1);
                   }});
    spread(events, section, begin, load_end, load_parts,
           [this, &round, section](Index part, Index parts) { load(round, section + 1, part, parts); });
  }

  static void copy(std::vector<RotatingRows> const& operands, Index part, Index parts) {
    if (part == 0) before_filling(operands);
    fill_buffers(operands, part, parts);
  }

  void load_bounds(BoundsTiles& bounds, std::size_t index) {
    KeySection& section = sections_[index];
    section.bounds_number = begins_step(index) ? bounds.load(section.step) : sections_[index - 1].bounds_number;
  }

  template <class Stages>
  void load(RoundParts<Stages> const& round, std::size_t index, Index part, Index parts) {
    KeySection& section = sections_[index];
    round.stages.section_tiles().load(section, round.operands[0].head(section.step),
                                      round.operands[1].head(section.step), round.bounds, part, parts);
  }

  /// Writes a step, whose first section and slot these are, with the events of its slots; counts both on.
  template <class Stages>
  void write_step(Builder& builder, RoundParts<Stages> const& round, Events& events, int step, std::size_t& section,
                  std::size_t& slot) {
    builder.section("step", step);
    std::size_t const first = section;
    while (section < sections_.size() && sections_[section].step == step) ++section;
    if (section == first) {
      if (step == 0) copy(round.operands, 0, 1);
      for (RotatingRows const& rows : round.operands) rows.send(step);
    } else if (first == 0) {
      round.stages.slot(slot_units(0), {}, {}, {}, {}, sections_);
      load_bounds(round.bounds, 0);
      load(round, 0, 0, 1);
    }
    bool const drains = step + 1 == steps_ && !slots_.empty();
    std::size_t const end = first_slot(section) + (drains ? Stages::depth - 1 : 0);
    while (slot < end || (!events.empty() && events.begin()->first <= slot)) {
      for (; !events.empty() && events.begin()->first <= slot; events.erase(events.begin())) events.begin()->second();
      std::size_t const stop = events.empty() ? end : std::clamp(events.begin()->first, slot, end);
      write_slots(builder, round.stages, slot, stop);
      slot = stop;
    }
  }

  /// Adds the finish of batches of row tiles, each before the slot after the one in which its last unit is summed.
  template <class Stages, class Finish>
  void add_batches(Events& events, Finish& finish) const {
    constexpr Index batch_tiles = Stages::finished_together;
    constexpr bool short_pipeline = Stages::depth == 2;  // ScalarE would wait for the sums of chosen units
    Index const per_head = detail::ceil_divide(tile_count_, batch_tiles);
    std::vector<std::size_t> ends(static_cast<std::size_t>(heads_ * per_head), 0);
    for (std::size_t slot = 0; slot < slots_.size(); ++slot)
      for (ForwardUnit const& unit : slot_units(slot))
        for (Index tile : {unit.tile, unit.tile - unit.chosen * tile_count_ / 2})
          nth(ends, unit.head * per_head + tile / batch_tiles) =
              std::min(slot + (unit.chosen && short_pipeline), slots_.size() - 1) + Stages::depth;
    for (Index i = 0; i < std::ssize(ends); ++i) {
      Index const first = i % per_head * batch_tiles;
      std::size_t const end = nth(ends, i);
      RowRange const tiles{first, std::min(first + batch_tiles, tile_count_)};
      events.insert({end, [&finish, head = i / per_head, tiles, drained = end > slots_.size()] {
                       finish(head, tiles, drained);
                     }});
    }
  }

  bool begins_step(std::size_t section) const {
    return section == 0 || sections_[section - 1].step != sections_[section].step;
  }
  /// First slot of a section, or the number of slots after the last section.
  std::size_t first_slot(std::size_t section) const {
    return section < sections_.size() ? sections_[section].first_slot : slots_.size();
  }
  /// First slot of a section before which this fraction of its work is done.
  std::size_t slot_at(std::size_t section, double part) const {
    std::size_t slot = first_slot(section), last = first_slot(section + 1);
    Index all = 0, done = 0;
    for (std::size_t i = slot; i < last; ++i) all += slots_[i].keys;
    for (; slot < last && static_cast<double>(done) < part * static_cast<double>(all); ++slot)
      done += slots_[slot].keys;
    return slot;
  }

  ForwardSlot slot_units(std::size_t slot) const { return {units_.data() + slots_[slot].first, slots_[slot].count}; }

  template <class Stages>
  void write_slots(Builder& builder, Stages& stages, std::size_t begin, std::size_t end) {
    auto const units = [&](std::size_t slot, std::size_t stage) {
      return slot >= stage && slot - stage < slots_.size() ? slot_units(slot - stage) : ForwardSlot{};
    };
    emit_rolled(
        builder, "slot", static_cast<Index>(begin), static_cast<Index>(end),
        [&](Index index) {
          auto const slot = static_cast<std::size_t>(index);
          stages.slot(units(slot + 1, 0), units(slot, 0), units(slot, 1), units(slot, 2),
                      units(slot, Stages::depth - 1), sections_);
        },
        4);
  }

  /// Units of up to most_joined keys that only the end of a piece separates become one.
  void add_units(RingMask const& mask, KeySection const& keys_of, Index head, Index tile, RowRange queries,
                 Index most_keys, Index most_joined) {
    std::size_t const before = units_.size();
    for (std::size_t i = 0; i < mask.pieces().size(); ++i) {
      // Chosen keys come first: their sums take longer, and early rows have no others.
      std::size_t const piece = keys_of.chosen ? 1 - i : i;
      Cover const cover = mask.cover(keys_of.step == 0, queries, piece);
      bool const late = piece == 1 && !keys_of.late.empty(), chosen = late && keys_of.chosen;
      RowRange const section = late ? keys_of.late : keys_of.rows;
      RowRange const seen = detail::intersection(cover.by_any, section);
      if (seen.empty()) continue;
      // Whole blocks of 128 keys, counted from the section's first: values are stored in SBUF by such blocks.
      Index const begin = section.begin + (seen.begin - section.begin) / tile_rows * tile_rows;
      Index const end =
          std::min(section.end, section.begin + detail::ceil_divide(seen.end - section.begin, tile_rows) * tile_rows);
      if (units_.size() > before && keys_of.late.empty()) {
        ForwardUnit& last = units_.back();
        if (!last.select && last.keys.end == begin && end - last.keys.begin <= most_joined &&
            last.keys.size() % tile_rows == 0) {
          last.visible = last.keys.size();
          last.select = !cover.full({begin, end});
          last.keys.end = end;
          last.piece = piece;
          continue;
        }
      }
      Index const groups = detail::ceil_divide(end - begin, most_keys),
                  blocks = detail::ceil_divide(end - begin, tile_rows);
      for (Index group = 0; group < groups; ++group) {
        RowRange const keys{begin + blocks * group / groups * tile_rows,
                            std::min(end, begin + blocks * (group + 1) / groups * tile_rows)};
        units_.push_back({.head = head,
                          .tile = tile,
                          .keys = keys,
                          .piece = piece,
                          .chosen = chosen,
                          .select = !cover.full(keys),
                          .section = sections_.size()});
      }
    }
    check_units(units_.size());
    if (units_.size() == before) return;
    units_[before].first = true;
    units_.back().last = true;
  }

  /// Assigns units from `first` on to slots; short units share one of up to `most` keys.
  void add_slots(std::size_t first, Index most) {
    bool open = false;
    for (std::size_t i = first; i < units_.size(); ++i) {
      Index const keys = detail::ceil_divide(units_[i].keys.size(), tile_rows) * tile_rows;
      if (!open || slots_.back().keys >= ForwardTuning::slot_keys || slots_.back().keys + keys > most)
        slots_.push_back({.first = i});
      open = true;
      units_[i].column = slots_.back().keys;
      slots_.back().keys += keys;
      ++slots_.back().count;
    }
  }

  struct Slot {
    std::size_t first = 0, count = 0;  ///< units_ [first, first + count)
    Index keys = 0;                    ///< in whole blocks of 128
  };

  Index heads_, tile_count_;
  std::vector<ForwardUnit> units_;
  std::vector<Slot> slots_;
  std::vector<KeySection> sections_;
  int steps_ = 0;
};

}  // namespace annulus::nki
