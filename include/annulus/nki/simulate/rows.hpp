#pragma once
// Loop over the rows (partitions) of an instruction: rows are read and written as contiguous floats, for any access
// pattern.

#include <array>
#include <string_view>
#include <utility>

#include "annulus/nki/simulate/core_state.hpp"
#include "annulus/nki/simulate/rounding.hpp"

namespace annulus::nki::simulator {

/// Reads rows: directly if their elements are consecutive, else gathered in scratch memory.
class RowSource {
 public:
  RowSource(Operand const& operand, Scratch& scratch)
      : operand_(operand), gathered_(operand.contiguous ? nullptr : scratch.of(operand.elements)) {}
  float const* row(Index p) const {
    if (operand_.contiguous) return operand_.row(p);
    gather(operand_, p, gathered_);
    return gathered_;
  }

 private:
  Operand const& operand_;
  float* gathered_;
};

/// Writes rows of float32, rounded to the operand's type.
class RowSink {
 public:
  enum class Keep {
    nothing,  ///< every row may be written immediately
    sources,  ///< rows are written at the end, because later rows still read elements of dst
  };

  /// `exact`: the values need no rounding.
  RowSink(Operand const& operand, Scratch& scratch, Keep keep, bool exact)
      : operand_(operand), keep_(keep), exact_(exact) {
    if (keep == Keep::sources)
      kept_ = scratch.of(operand.size());
    else if (!operand.contiguous)
      kept_ = scratch.of(operand.elements);
  }

  /// Storage for row p; valid until the next row.
  float* row(Index p) const {
    if (keep_ == Keep::sources) return kept_ + p * operand_.elements;
    return operand_.contiguous ? operand_.row(p) : kept_;
  }
  /// Call when row p is complete.
  void finish_row(Index p) const {
    float* const values = row(p);
    if (!exact_) round_to(operand_.type, values, operand_.elements);
    if (keep_ == Keep::nothing && !operand_.contiguous) scatter(operand_, p, values);
  }
  /// Call after the last row.
  void finish() const {
    if (keep_ == Keep::sources)
      for (Index p = 0; p < operand_.rows; ++p) scatter(operand_, p, row(p));
  }

 private:
  Operand const& operand_;
  float* kept_ = nullptr;
  Keep keep_;
  bool exact_;
};

inline void check_same_extents(Operand const& dst, Operand const& source, std::string_view keyword) {
  check<Error>(source.rows == dst.rows && source.elements == dst.elements, "operand ", keyword, " has ", source.rows,
               " x ", source.elements, " elements, dst ", dst.rows, " x ", dst.elements);
}

/// A source operand and its NKI keyword.
struct Source {
  Operand operand;
  std::string_view keyword;
};

/// Calls compute(p, out, {in...}) for every row p: out and in are dst.elements floats; out may be one of the in.
/// `exact`: the results need no rounding. Throws Error if a source's extents differ from those of dst.
template <std::size_t N, class Compute>
void transform_rows(CoreState& core, Operand const& dst, std::array<Source, N> const& sources, Compute&& compute,
                    bool exact = false) {
  static_assert(N < std::tuple_size_v<decltype(core.scratch)>);
  auto keep = RowSink::Keep::nothing;
  for (auto const& [operand, keyword] : sources) {
    check_same_extents(dst, operand, keyword);
    if (dst.may_overlap(operand) && !dst.same_as(operand)) keep = RowSink::Keep::sources;
  }
  RowSink const sink(dst, core.scratch[N], keep, exact);
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    [[maybe_unused]] std::array<RowSource, N> const inputs{RowSource(sources[i].operand, core.scratch[i])...};
    for (Index p = 0; p < dst.rows; ++p) {
      compute(p, sink.row(p), std::array<float const*, N>{inputs[i].row(p)...});
      sink.finish_row(p);
    }
  }
  (std::make_index_sequence<N>{});
  sink.finish();
}

/// A scalar operand as one value per partition: the same number for all, or the elements of a [rows, 1] operand.
inline Column column_of(CoreState& core, Scalar const& scalar, Index rows, std::string_view keyword) {
  check<Error>(rows <= static_cast<Index>(most_partitions), rows, " rows; a core has ", most_partitions, " partitions");
  Column column;
  if (auto const* number = std::get_if<float>(&scalar)) {
    column.fill(*number);
    return column;
  }
  Operand const operand = core.read(std::get<Access>(scalar), keyword);
  check<Error>(operand.rows == rows && operand.elements == 1, "operand ", keyword, " has ", operand.rows, " x ",
               operand.elements, " elements, expected ", rows, " x 1");
  for (Index p = 0; p < rows; ++p) column[static_cast<std::size_t>(p)] = *operand.row(p);
  return column;
}

/// Writes one value per partition to a [rows, 1] operand.
inline void write_column(CoreState& core, Access const& access, Column const& column, Index rows,
                         std::string_view keyword) {
  Operand const operand = core.write(access, keyword);
  check<Error>(operand.rows == rows && operand.elements == 1, "operand ", keyword, " has ", operand.rows, " x ",
               operand.elements, " elements, expected ", rows, " x 1");
  for (Index p = 0; p < rows; ++p) {
    float value = column[static_cast<std::size_t>(p)];
    check<Error>(!is_poison(value), "operand ", keyword, " receives an accumulator register that no reset initialised");
    round_to(operand.type, &value, 1);
    *operand.row(p) = value;
  }
}

}  // namespace annulus::nki::simulator
