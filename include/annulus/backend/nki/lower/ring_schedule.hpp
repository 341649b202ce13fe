#pragma once
// The order of a round: steps of the ring, sections of keys, units of work, and when the next section is fetched.

#include <map>
#include <vector>

#include "annulus/backend/nki/lower/forward_units.hpp"
#include "annulus/backend/nki/program/roll.hpp"

namespace annulus::nki {

class RingSchedule {
 public:
  /// Steps that no rank needs are left out: step 0 is the rank's own, all others may meet any other rank.
  RingSchedule(KernelSpec const& spec, RingMask const& mask, std::vector<RowTile> const& tiles, Index section_keys, Index group_keys, int ranks)
      : heads_(spec.query_heads_per_item()), tile_count_(tiles.size()) {
    for (int step = 0; step < ranks; ++step) {
      bool any = false;
      // Causal tiles grow with their number. Up and down in turns, and down at the end, so that the pipeline drains on little.
      bool const falling = (ranks - 1 - step) % 2 == 0;
      for (Index begin = 0; begin < spec.local_keys; begin += section_keys) {
        RowRange const rows{begin, std::min(begin + section_keys, spec.local_keys)};
        std::size_t const first = units_.size();
        for (Index head = 0; head < spec.query_heads_per_item(); ++head)
          for (std::size_t i = 0; i < tiles.size(); ++i) {
            std::size_t const tile = falling ? tiles.size() - 1 - i : i;
            add_units(mask, step == 0, head, tile, tiles[tile].rows_of_all_cores, rows, group_keys);
          }
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

  /// copy(part, parts) for the parts of what the rank sends first, spread over the first half of the first section, as a long
  /// copy would hold up what units wait for; send(step) once those are there, or a quarter into the first section of a later
  /// step; load(section) once per section, the next one three quarters through the one before it.
  /// finish(head, tiles) as soon as the last unit of some tiles has been through the pipeline, so that results leave while
  /// others are computed.
  template <class Copy, class Send, class Load, class Finish>
  void write(Builder& builder, ForwardUnits& stages, Copy&& copy, Send&& send, Load&& load, Finish&& finish) {
    std::multimap<std::size_t, Batch> ending = batches();
    std::vector<Body> steps;
    std::size_t section = 0, loaded = 0;
    for (int step = 0; step < steps_; ++step)
      steps.push_back(builder.collect([&] {
        builder.section("step", step);
        bool sent = false;
        if (step == 0 && !sections_.empty()) {
          stages.slot(&units_[0], nullptr, nullptr, nullptr, nullptr, sections_);
          load(loaded++);
        }
        for (; section < sections_.size() && step_of_[section] == step; ++section) {
          std::size_t const first = firsts_[section], end = firsts_[section + 1], count = end - first;
          std::size_t at = first;
          auto const go_to = [&](std::size_t slot) {
            while (at < slot) {
              // A batch ends with the slot in which its last unit is summed.
              std::size_t const stop = ending.empty() ? slot : std::min(slot, std::max(at, ending.begin()->first));
              write_slots(builder, stages, at, stop);
              at = stop;
              for (; !ending.empty() && ending.begin()->first <= at; ending.erase(ending.begin()))
                finish(ending.begin()->second.head, ending.begin()->second.tiles);
            }
          };
          std::size_t const parts = std::clamp<std::size_t>(count / 4, 1, 8);
          for (std::size_t part = 0; step == 0 && !sent && part < parts; ++part) {
            go_to(first + 1 + count * part / (2 * parts));
            copy(static_cast<Index>(part), static_cast<Index>(parts));
          }
          go_to(first + count / (step == 0 ? 2 : 4));
          if (!sent) send(step);
          sent = true;
          go_to(first + count * 3 / 4);
          if (loaded < sections_.size()) load(loaded++);
          go_to(end);
        }
        if (step == 0 && !sent) copy(0, 1);
        if (!sent) send(step);
        if (step + 1 == steps_) write_slots(builder, stages, units_.size(), units_.empty() ? 0 : units_.size() + depth - 1);
        if (step + 1 == steps_)
          for (auto const& [slot, batch] : ending) finish(batch.head, batch.tiles);
      }));
    append_rolled(builder, "steps", std::move(steps), 2);
  }

 private:
  static constexpr std::size_t depth = 4;
  static constexpr std::size_t batch_tiles = 8;

  struct Batch {
    Index head = 0;
    RowRange tiles;
  };

  /// By the slot after the one in which their last unit is summed.
  std::multimap<std::size_t, Batch> batches() const {
    std::size_t const per_head = (tile_count_ + batch_tiles - 1) / batch_tiles;
    std::vector<std::size_t> ends(static_cast<std::size_t>(heads_) * per_head, 0);
    for (std::size_t i = 0; i < units_.size(); ++i)
      ends[static_cast<std::size_t>(units_[i].head) * per_head + units_[i].tile / batch_tiles] = i + depth;
    std::multimap<std::size_t, Batch> found;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      auto const first = static_cast<Index>(i % per_head * batch_tiles);
      found.insert({ends[i], {static_cast<Index>(i / per_head), {first, std::min<Index>(first + batch_tiles, static_cast<Index>(tile_count_))}}});
    }
    return found;
  }

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

  Index heads_;
  std::size_t tile_count_;
  std::vector<ForwardUnit> units_;
  std::vector<KeySection> sections_;
  std::vector<std::size_t> firsts_;
  std::vector<int> step_of_;
  int steps_ = 0;
};

}  // namespace annulus::nki
