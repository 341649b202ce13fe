#pragma once
// Operands on the abstract machine: where each part of them is, and which rows it has. See check_plan.hpp.

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "annulus/schedule/check/expected_sums.hpp"
#include "annulus/schedule/check/slot_machine.hpp"

namespace annulus::detail {

class OperandMachine : protected SlotMachine {
 public:
  OperandMachine(RingPlan const& plan, std::vector<ActionList> const& lists)
      : SlotMachine(plan, lists), expected_(plan), operands_(lists.size()) {
    for (OperandPlaces& of_rank : operands_)
      for (auto& of_lane : of_rank.parts)
        of_lane[static_cast<std::size_t>(GroupRows::queries)][static_cast<std::size_t>(Part::delta)].slot = nowhere;
  }

 protected:
  PlanRequest const& request() const { return plan_.request(); }
  bool backward() const { return request().pass == Pass::backward; }
  RingPlan const& lane() { return plan_.lanes()[action().lane]; }
  int share_of_lane() { return expected_.share_of_lane(action().lane); }
  void pack(Pack const& pack) {
    Index row = pack.rows.begin;
    require_same_count(pack.into.rows, pack.rows);
    for (SlotRow* into : rows_to_write(pack.into)) {
      RowName name;
      for (PartLayout const& part : state(pack.into).slot->layout.parts) {
        RowName const one = operand(pack.kind, part.part, row);
        require(name == RowName{} || one == name, "packs ", one, " with ", name);
        name = one;
      }
      if (pack.heads.of > 1) name.share = pack.heads.place + 1;
      put(*into, {.kind = HeldRow::operand, .name = name});
      ++row;
    }
  }
  void take(Take const& take) {
    for (PartLayout const& part : state(take.from).slot->layout.parts)
      if (is_stored(part)) source(take.kind, part.part) = take.from;
  }
  void find_delta(Delta const& delta) {
    std::vector<Index> const& own = expected_.own(Side::query, rank_);
    require_same_count(delta.into.rows, {0, static_cast<Index>(own.size())});
    auto position = own.begin();
    for (SlotRow* row : rows_to_write(delta.into))
      put(*row, {.kind = HeldRow::operand, .name = {RowName::query, share_of_lane(), *position++}});
    here_operands().delta[action().lane] = delta.into;
  }
  /// The slot with delta of this rank's own queries.
  SlotRows const& own_delta() {
    SlotRows const& delta = here_operands().delta[action().lane];
    require(delta.slot != nowhere, "delta has not been computed");
    return delta;
  }

  /// Names of the rows that a Work says it works on.
  std::vector<RowName> names_of(Side side, WorkRows const& rows, int share) {
    require(0 <= rows.owner && rows.owner < plan_.ranks(), "rows of rank ", rows.owner);
    std::vector<Index> const& worked = expected_.worked(side, rows.owner);
    bool const fits = rows.rows.empty() || (0 <= rows.rows.begin && rows.rows.end <= static_cast<Index>(worked.size()));
    require(fits, "rows [", rows.rows.begin, ", ", rows.rows.end, ") of the ", worked.size(), " that rank ", rows.owner,
            " works on");
    std::vector<RowName> names;
    for (Index row = rows.rows.begin; row < rows.rows.end; ++row)
      names.push_back(
          {side == Side::query ? RowName::query : RowName::key, share, worked[static_cast<std::size_t>(row)]});
    return names;
  }
  void require_operands(GroupRows kind, WorkRows const& rows, std::vector<RowName> const& names) {
    std::vector<Part> const parts = parts_of(kind);
    require_same_count(rows.from.rows, rows.rows);
    if (rows.from.slot >= 0) {
      PayloadLayout const& layout = state(rows.from).slot->layout;
      for (Part part : parts)
        require(layout.has(part) && is_stored(layout.parts[layout.find(part)]), "the rows lack ", name_of(part),
                " in the type of the operands");
      std::size_t next = 0;
      for (SlotRow* row : rows_of(rows.from)) require_same(read(*row).name, names[next++]);
      return;
    }
    bool const rounded = request().wire != Wire::as_stored;
    for (Part part : parts) {
      require(!rounded || !has_wire_type(part) || source(kind, part).slot >= 0, name_of(part), " has not been rounded");
      for (std::size_t i = 0; i < names.size(); ++i)
        require_same(operand(kind, part, rows.from.rows.begin + static_cast<Index>(i)), names[i]);
    }
  }
  /// Bias and boolean mask of the queries.
  void require_pairs(annulus::Work const& what, std::vector<RowName> const& queries) {
    require(what.queries.from.slot < 0, "a bias or boolean mask stays with its queries");
    for (auto const& [part, given] :
         {std::pair{Part::bias, request().bias.heads > 0}, {Part::boolean_mask, request().mask.heads > 0}})
      for (std::size_t i = 0; given && i < queries.size(); ++i)
        require_same(operand(GroupRows::pairs, part, what.queries.from.rows.begin + static_cast<Index>(i)),
                     {RowName::pairs, queries[i].share, queries[i].position});
  }
  void require_same(RowName const& found, RowName const& wanted) {
    require(found == wanted, "reads ", found, ", expected ", wanted);
  }

  void require_same_count(RowRange rows, RowRange others) {
    require(rows.size() == others.size(), rows.size(), " rows, expected ", others.size());
  }

  ExpectedSums expected_;

 private:
  static constexpr int nowhere = -2;  ///< slot of an operand that has to be computed

  struct OperandPlaces {
    std::array<std::array<std::array<SlotRows, 19>, 3>, 2> parts{};               ///< by lane, GroupRows and Part
    std::array<SlotRows, 2> delta{SlotRows{nowhere, {}}, SlotRows{nowhere, {}}};  ///< by lane
  };

  OperandPlaces& here_operands() { return operands_[static_cast<std::size_t>(rank_)]; }
  SlotRows& source(GroupRows kind, Part part) {
    return here_operands().parts[action().lane][static_cast<std::size_t>(kind)][static_cast<std::size_t>(part)];
  }
  static RowName::Kind kind_of(GroupRows kind) {
    return kind == GroupRows::queries ? RowName::query : kind == GroupRows::keys ? RowName::key : RowName::pairs;
  }
  /// The part has the type of the operands.
  bool is_stored(PartLayout const& part) const {
    return !has_wire_type(part.part) || part.element_bytes == request().element_bytes;
  }
  std::vector<Part> parts_of(GroupRows kind) const {
    std::vector<Part> parts{Part::k, Part::v};
    if (kind == GroupRows::queries) parts = {Part::q};
    if (kind == GroupRows::queries && backward())
      parts.insert(parts.end(), {Part::dout, Part::lse, Part::lse_remainder, Part::delta});
    if (request().document_ids) parts.push_back(Part::document_ids);
    return parts;
  }

  /// The row of an operand that this rank works on, where it is.
  RowName operand(GroupRows kind, Part part, Index row) {
    SlotRows const& from = source(kind, part);
    require(from.slot != nowhere, name_of(part), " has not been computed");
    std::vector<Index> const& own = expected_.own(side_of(kind), rank_);
    Index const rows = from.slot < 0 ? static_cast<Index>(own.size()) : from.rows.size();
    require(0 <= row && row < rows, "reads row ", row, " of ", name_of(part), ", which has ", rows);
    if (from.slot < 0) return {kind_of(kind), share_of_lane(), own[static_cast<std::size_t>(row)]};
    Index const begin = from.rows.begin + row;
    HeldRow const& held = read(*rows_of({from.slot, {begin, begin + 1}})[0]);
    require(held.kind == HeldRow::operand, "reads sums as ", name_of(part));
    return held.name;
  }

  std::vector<OperandPlaces> operands_;
};

}  // namespace annulus::detail
