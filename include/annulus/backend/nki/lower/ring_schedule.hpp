#pragma once
// The order of a round: steps of the ring, sections of keys, units of work, and when the next section is fetched.

#include <vector>

#include "annulus/backend/nki/lower/forward_units.hpp"
#include "annulus/backend/nki/program/roll.hpp"

namespace annulus::nki {

class RingSchedule {
 public:
  /// Steps that no rank needs are left out: step 0 is the rank's own, all others may meet any other rank.
  RingSchedule(KernelSpec const& spec, RingMask const& mask, std::vector<RowTile> const& tiles, Index section_keys, Index group_keys, int ranks) {
    for (int step = 0; step < ranks; ++step) {
      bool any = false;
      for (Index begin = 0; begin < spec.local_keys; begin += section_keys) {
        RowRange const rows{begin, std::min(begin + section_keys, spec.local_keys)};
        std::size_t const first = units_.size();
        for (Index head = 0; head < spec.query_heads_per_item(); ++head)
          for (std::size_t tile = 0; tile < tiles.size(); ++tile)
            add_units(mask, step == 0, head, tile, tiles[tile].rows_of_all_cores, rows, group_keys);
        if (units_.size() == first) continue;
        any = true;
        sections_.push_back({.rows = rows});
        firsts_.push_back(first);
        step_of_.push_back(step);
      }
      if (!any && step > 0) break;
      steps_ = step + 1;
    }
    firsts_.push_back(units_.size());
  }

  int steps() const { return steps_; }
  int step_of(std::size_t section) const { return step_of_[section]; }
  std::vector<KeySection>& sections() { return sections_; }

  /// begin_step(step) before the first unit of a step is scored; load(section) once per section, the next one half way
  /// through the one before it.
  template <class BeginStep, class Load>
  void write(Builder& builder, ForwardUnits& stages, BeginStep&& begin_step, Load&& load) {
    std::vector<Body> steps;
    std::size_t section = 0, loaded = 0;
    for (int step = 0; step < steps_; ++step)
      steps.push_back(builder.collect([&] {
        builder.section("step", step);
        begin_step(step);
        if (step == 0 && !sections_.empty()) {
          load(loaded++);
          if (!units_.empty()) stages.slot(&units_[0], nullptr, nullptr, nullptr, nullptr, sections_);
        }
        for (; section < sections_.size() && step_of_[section] == step; ++section) {
          std::size_t const first = firsts_[section], end = firsts_[section + 1], middle = first + (end - first) / 2;
          write_slots(builder, stages, first, middle);
          if (loaded < sections_.size()) load(loaded++);
          write_slots(builder, stages, middle, end);
        }
        if (step + 1 == steps_) write_slots(builder, stages, units_.size(), units_.empty() ? 0 : units_.size() + depth - 1);
      }));
    append_rolled(builder, "steps", std::move(steps), 2);
  }

 private:
  static constexpr std::size_t depth = 4;

  void write_slots(Builder& builder, ForwardUnits& stages, std::size_t begin, std::size_t end) {
    std::vector<Body> slots;
    auto const unit = [&](std::size_t slot, std::size_t stage) -> ForwardUnit const* {
      return slot >= stage && slot - stage < units_.size() ? &units_[slot - stage] : nullptr;
    };
    for (std::size_t slot = begin; slot < end; ++slot)
      slots.push_back(builder.collect([&] {
        ForwardUnit const* const coming = slot + 1 < units_.size() ? &units_[slot + 1] : nullptr;
        stages.slot(coming, unit(slot, 0), unit(slot, 1), unit(slot, 2), unit(slot, 3), sections_);
      }));
    append_rolled(builder, "slot", std::move(slots), 4);
  }

  void add_units(RingMask const& mask, bool own_step, Index head, std::size_t tile, RowRange queries, RowRange section, Index group_keys) {
    std::size_t const before = units_.size();
    for (std::size_t piece = 0; piece < mask.pieces().size(); ++piece) {
      Cover const cover = mask.cover(own_step, queries, piece);
      RowRange seen = cover.seen();
      seen = {std::max(seen.begin, section.begin), std::min(seen.end, section.end)};
      if (seen.empty()) continue;
      // Whole blocks of 128 keys, counted from the section's first: values lie in SBUF by such blocks.
      Index const begin = section.begin + (seen.begin - section.begin) / tile_rows * tile_rows;
      Index const end = std::min(section.end, section.begin + ceil_divide(seen.end - section.begin, tile_rows) * tile_rows);
      Index const groups = ceil_divide(end - begin, group_keys), blocks = ceil_divide(end - begin, tile_rows);
      for (Index group = 0; group < groups; ++group) {
        RowRange const keys{begin + blocks * group / groups * tile_rows, std::min(end, begin + blocks * (group + 1) / groups * tile_rows)};
        units_.push_back({.head = head, .tile = tile, .keys = keys, .piece = piece, .select = !cover.full(keys), .section = sections_.size()});
      }
    }
    if (units_.size() == before) return;
    units_[before].first = true;
    units_.back().last = true;
  }

  std::vector<ForwardUnit> units_;
  std::vector<KeySection> sections_;
  std::vector<std::size_t> firsts_;
  std::vector<int> step_of_;
  int steps_ = 0;
};

}  // namespace annulus::nki
