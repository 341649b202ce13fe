#pragma once
// Rules on the operands of one instruction relative to each other: shapes, scalars, engines, operators.

#include <initializer_list>
#include <string>

#include "annulus/nki/validate/operand_rules.hpp"

namespace annulus::nki::validate_detail {

/// Requires equal partitions and equal elements per partition; free axes may be split differently.
inline void require_same_shape(std::string_view keyword, Access const& access, std::string_view than_keyword,
                               Access const& than, Site const& site) {
  site.require(access.partitions() == than.partitions() && access.elements() == than.elements(), "shape", keyword,
               "is ", access.partitions(), " x ", access.elements(), "; ", than_keyword, " is ", than.partitions(),
               " x ", than.elements(), ", and both must be equal");
}

/// Requires one element in each of `partitions` partitions.
inline bool require_column(std::string_view keyword, Access const& access, Index partitions, Site const& site) {
  return site.require(access.partitions() == partitions && access.elements() == 1, "R8", keyword, "is ",
                      access.partitions(), " x ", access.elements(), "; accepted: ", partitions, " x 1");
}
inline void require_column(std::string_view keyword, std::optional<Access> const& access, Index partitions,
                           Site const& site) {
  if (access) require_column(keyword, *access, partitions, site);
}

/// Accepted element types of a scalar operand that is given as a column.
enum class ColumnType { float32, any };

/// Requires a number, or a column of `partitions` x 1 of an accepted type.
inline void require_scalar(std::string_view keyword, Scalar const& scalar, Index partitions, ColumnType type,
                           Site const& site) {
  auto const* access = std::get_if<Access>(&scalar);
  if (access && require_column(keyword, *access, partitions, site) && type == ColumnType::float32)
    site.require(site.type(*access) == ElementType::float32, "R8", keyword, "is ", name_of(site.type(*access)),
                 "; accepted: a number or a column of float32");
}

inline void require_not_both_psum(std::string_view first_keyword, Access const& first, std::string_view second_keyword,
                                  Access const& second, Site const& site) {
  site.require(site.memory(first) != Memory::psum || site.memory(second) != Memory::psum, "R7", second_keyword,
               "is in psum (", site.buffer(second).name, "), and so is ", first_keyword, " (", site.buffer(first).name,
               "); at most one of the two may be");
}

inline bool require_engine(Engine engine, std::initializer_list<Engine> accepted, Site const& site) {
  std::string names;
  for (Engine one : accepted) names += (names.empty() ? "" : ", ") + std::string(name_of(one));
  return site.require(std::ranges::find(accepted, engine) != accepted.end(), "engine", "engine", name_of(engine),
                      "; accepted: ", names);
}

inline bool require_operator(std::string_view keyword, Operator op, std::initializer_list<Operator> accepted,
                             Site const& site, std::string_view rule = "operator") {
  std::string names;
  for (Operator one : accepted) names += (names.empty() ? "" : ", ") + std::string(name_of(one));
  return site.require(std::ranges::find(accepted, op) != accepted.end(), rule, keyword, name_of(op),
                      "; accepted: ", names);
}

/// For instructions of VectorE, ScalarE and GpSimdE: memories of all operands, and types of results in PSUM.
template <class I>
void check_reach(I const& instruction, Engine engine, Site const& site) {
  for_each_access(instruction, [&](std::string_view keyword, Use use, Access const& access) {
    if (require_reach(engine, keyword, access, site) && use != Use::read) require_psum_type(keyword, access, site);
  });
}

}  // namespace annulus::nki::validate_detail
