#pragma once
// Schedule of a forward round: ring steps, sections of keys, units of work, and the times of copies, sends and loads.

#include <functional>
#include <map>
#include <vector>

#include "annulus/nki/kernels/forward_units.hpp"
#include "annulus/nki/program/roll.hpp"

namespace annulus::nki {

/// Work list of a forward round, written to a program as a software pipeline.
class RingSchedule {
 public:
  /// Step 0 is that of the rank's own keys, later steps may be those of any other rank; steps without visible pairs are
  /// omitted.
  RingSchedule(KernelSpec const& spec, RingMask const& mask, std::vector<RowTile> const& tiles, Index section_keys,
               ForwardTuning const& tuning, int ranks)
      : heads_(spec.query_heads_per_item()), tile_count_(tiles.size()) {
    for (int step = 0; step < ranks; ++step) {
      bool any = false;
      // Causal row tiles have more work the higher their index. The order alternates between ascending and descending,
      // and ends descending, so that the pipeline drains on small tiles.
      bool const falling = (ranks - 1 - step) % 2 == 0;
      for (Index begin = 0; begin < spec.local_keys; begin += section_keys) {
        RowRange const rows{begin, std::min(begin + section_keys, spec.local_keys)};
        std::size_t const first = units_.size();
        for (Index head = 0; head < spec.query_heads_per_item(); ++head)
          for (std::size_t i = 0; i < tiles.size(); ++i) {
            std::size_t const tile = falling ? tiles.size() - 1 - i : i;
            add_units(mask, step == 0, head, tile, tiles[tile].rows_of_all_cores, rows, tuning.group_keys);
          }
        if (units_.size() == first) continue;
        any = true;
        sections_.push_back({.rows = rows});
        first_slots_.push_back(slots_.size());
        step_of_.push_back(step);
        add_slots(first, std::min(tuning.group_keys, section_keys), tuning.slot_keys);
      }
      if (!any && step > 0) break;
      steps_ = step + 1;
    }
    first_slots_.push_back(slots_.size());
  }

  int steps() const { return steps_; }
  int step_of(std::size_t section) const { return step_of_[section]; }
  std::vector<KeySection>& sections() { return sections_; }

  /// Writes the round. Callbacks: copy(part, parts) copies a part of the rank's own keys and values to the send
  /// buffers; send(step, part) starts sending keys (0) or values (1); load(section, part, parts) loads a part of a
  /// section. They are spread over the work of a section, because units wait for bursts of transfers. finish(head,
  /// tiles, drained) stores finished row tiles while others are computed; drained: no unit is left to be scored.
  template <class Copy, class Send, class Load, class Finish>
  void write(Builder& builder, ForwardUnits& stages, Copy&& copy, Send&& send, Load&& load, Finish&& finish) {
    Events events;
    for (std::size_t section = 0; section < sections_.size(); ++section) {
      int const step = step_of_[section];
      bool const begins_step = section == 0 || step_of_[section - 1] != step;
      auto const spread = [&](double begin, double end, Index parts, auto const& act) {
        for (Index part = 0; part < parts; ++part)
          events.insert(
              {slot_at(section, begin + (end - begin) * static_cast<double>(part) / static_cast<double>(parts)),
               [=] { act(part, parts); }});
      };
      if (begins_step && step == 0) spread(copy_begin, copy_end, copy_parts, copy);
      if (begins_step)
        spread(step == 0 ? send_own : send_others, step == 0 ? send_own_end : send_others_end, 2,
               [&send, step](Index part, Index) { send(step, part); });
      if (section + 1 < sections_.size())
        spread(step == 0 ? load_own : load_others, load_end, load_parts,
               [&load, section](Index part, Index parts) { load(section + 1, part, parts); });
    }
    for (auto const& [slot, batch] : batches())
      events.insert({slot, [&finish, batch = batch, drained = slot > slots_.size()] {
                       finish(batch.head, batch.tiles, drained);
                     }});

    Roller steps(builder, "steps", 2);
    std::size_t section = 0, at = 0;
    for (int step = 0; step < steps_; ++step)
      steps.add(builder.collect([&] {
        builder.section("step", step);
        std::size_t const first = section;
        while (section < sections_.size() && step_of_[section] == step) ++section;
        if (section == first) {
          if (step == 0) copy(0, 1);
          for (Index part : {0, 1}) send(step, part);
        } else if (first == 0) {
          stages.slot(slot_units(0), {}, {}, {}, {}, sections_);
          load(0, 0, 1);
        }
        bool const drains = step + 1 == steps_ && !slots_.empty();
        std::size_t const end = first_slots_[section] + (drains ? depth - 1 : 0);
        while (at < end || (!events.empty() && events.begin()->first <= at)) {
          for (; !events.empty() && events.begin()->first <= at; events.erase(events.begin())) events.begin()->second();
          std::size_t const stop = events.empty() ? end : std::clamp(events.begin()->first, at, end);
          write_slots(builder, stages, at, stop);
          at = stop;
        }
      }));
    steps.flush();
  }

 private:
  static constexpr std::size_t depth = 5;        // four stages, and a slot for the latency of DMA transposes
  static constexpr std::size_t batch_tiles = 4;  // fewer cause more short instructions, more delay the next unit

  // Fractions of a section's work after which transfers begin or end.
  static constexpr double copy_begin = 0.05, copy_end = 0.4;         // later than the loads of the first units
  static constexpr double send_own = 0.4, send_own_end = 0.5;        // the copies are complete
  static constexpr double send_others = 0.2, send_others_end = 0.3;  // the other core has begun the step too
  static constexpr double load_own = 0.65, load_others = 0.5;        // a permute of a long shard is complete
  static constexpr double load_end = 0.95;                           // the next section is about to begin
  static constexpr Index copy_parts = 8, load_parts = 8;             // a longer DMA would delay transposes

  /// Actions by the slot before which they are emitted.
  using Events = std::multimap<std::size_t, std::function<void()>>;

  struct Batch {
    Index head = 0;
    RowRange tiles;
  };

  /// Batches of row tiles by the slot before which they are finished: the one after their last unit is summed.
  std::multimap<std::size_t, Batch> batches() const {
    std::size_t const per_head = (tile_count_ + batch_tiles - 1) / batch_tiles;
    std::vector<std::size_t> ends(static_cast<std::size_t>(heads_) * per_head, 0);
    for (std::size_t slot = 0; slot < slots_.size(); ++slot)
      for (ForwardUnit const& unit : slot_units(slot))
        ends[static_cast<std::size_t>(unit.head) * per_head + unit.tile / batch_tiles] = slot + depth;
    std::multimap<std::size_t, Batch> found;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      auto const first = static_cast<Index>(i % per_head * batch_tiles);
      found.insert({ends[i],
                    {static_cast<Index>(i / per_head),
                     {first, std::min<Index>(first + batch_tiles, static_cast<Index>(tile_count_))}}});
    }
    return found;
  }

  /// First slot of a section before which this fraction of its work is done.
  std::size_t slot_at(std::size_t section, double part) const {
    std::size_t const first = first_slots_[section], last = first_slots_[section + 1];
    Index all = 0, done = 0;
    for (std::size_t slot = first; slot < last; ++slot) all += slots_[slot].keys;
    std::size_t slot = first;
    for (; slot < last && static_cast<double>(done) < part * static_cast<double>(all); ++slot)
      done += slots_[slot].keys;
    return slot;
  }

  ForwardSlot slot_units(std::size_t slot) const { return {units_.data() + slots_[slot].first, slots_[slot].count}; }

  void write_slots(Builder& builder, ForwardUnits& stages, std::size_t begin, std::size_t end) {
    std::vector<Body> bodies;
    auto const units = [&](std::size_t slot, std::size_t stage) {
      return slot >= stage && slot - stage < slots_.size() ? slot_units(slot - stage) : ForwardSlot{};
    };
    for (std::size_t slot = begin; slot < end; ++slot)
      bodies.push_back(builder.collect([&] {
        stages.slot(units(slot + 1, 0), units(slot, 0), units(slot, 1), units(slot, 2), units(slot, depth - 1),
                    sections_);
      }));
    append_rolled(builder, "slot", std::move(bodies), 4);
  }

  void add_units(RingMask const& mask, bool own_step, Index head, std::size_t tile, RowRange queries, RowRange section,
                 Index group_keys) {
    std::size_t const before = units_.size();
    for (std::size_t piece = 0; piece < mask.pieces().size(); ++piece) {
      Cover const cover = mask.cover(own_step, queries, piece);
      RowRange const seen = intersection(cover.by_any, section);
      if (seen.empty()) continue;
      // Whole blocks of 128 keys, counted from the section's first: values are stored in SBUF by such blocks.
      Index const begin = section.begin + (seen.begin - section.begin) / tile_rows * tile_rows;
      Index const end =
          std::min(section.end, section.begin + ceil_divide(seen.end - section.begin, tile_rows) * tile_rows);
      Index const groups = ceil_divide(end - begin, group_keys), blocks = ceil_divide(end - begin, tile_rows);
      for (Index group = 0; group < groups; ++group) {
        RowRange const keys{begin + blocks * group / groups * tile_rows,
                            std::min(end, begin + blocks * (group + 1) / groups * tile_rows)};
        units_.push_back({.head = head, .tile = tile, .keys = keys, .piece = piece, .select = !cover.full(keys),
                          .section = sections_.size()});
      }
    }
    check_units(units_.size());
    if (units_.size() == before) return;
    units_[before].first = true;
    units_.back().last = true;
  }

  /// Assigns units from `first` on to slots; short units share a slot until it has `enough` keys, but at most `most`.
  void add_slots(std::size_t first, Index most, Index enough) {
    bool open = false;
    for (std::size_t i = first; i < units_.size(); ++i) {
      Index const keys = ceil_divide(units_[i].keys.size(), tile_rows) * tile_rows;
      if (!open || slots_.back().keys >= enough || slots_.back().keys + keys > most) slots_.push_back({.first = i});
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

  Index heads_;
  std::size_t tile_count_;
  std::vector<ForwardUnit> units_;
  std::vector<Slot> slots_;
  std::vector<KeySection> sections_;
  std::vector<std::size_t> first_slots_;  ///< first slot of each section, then the number of slots
  std::vector<int> step_of_;
  int steps_ = 0;
};

}  // namespace annulus::nki
