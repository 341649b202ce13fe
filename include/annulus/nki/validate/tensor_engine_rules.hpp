#pragma once
// Rules of TensorE instructions: matmuls and transposes. Whether a result stays in one PSUM bank depends on the values
// of loop variables and is checked by the shadow pass.

#include "annulus/nki/validate/shape_rules.hpp"

namespace annulus::nki::validate_detail {

inline void require_tensor_engine_memory(std::string_view rule, std::string_view keyword, Access const& access,
                                         Memory memory, Site const& site) {
  site.require(site.memory(access) == memory, rule, keyword, site.buffer(access).name, " is in ",
               name_of(site.memory(access)), "; TensorE ", memory == Memory::psum ? "writes psum" : "reads sbuf",
               " only");
}

inline void check(MatMul const& i, Site const& site) {
  require_tensor_engine_memory("R3", "dst", i.dst, Memory::psum, site);
  require_tensor_engine_memory("R3", "stationary", i.stationary, Memory::sbuf, site);
  require_tensor_engine_memory("R3", "moving", i.moving, Memory::sbuf, site);
  site.require(i.stationary.partitions() == i.moving.partitions(), "R3", "moving", "contracts ", i.moving.partitions(),
               " partitions; stationary has ", i.stationary.partitions(), ", and both must be equal");
  site.require(i.stationary.elements() <= site.limits.stationary_columns, "R3", "stationary", i.stationary.elements(),
               " columns; at most ", site.limits.stationary_columns);
  ElementType const type = site.type(i.dst);
  bool const narrow = type == ElementType::bfloat16 && site.limits.has_bfloat16_psum;
  Index const columns = site.limits.moving_columns * (narrow ? 2 : 1);
  site.require(i.moving.elements() <= columns, "R3", "moving", i.moving.elements(), " columns; at most ", columns);
  site.require(i.dst.partitions() == i.stationary.elements() && i.dst.elements() == i.moving.elements(), "R3", "dst",
               "is ", i.dst.partitions(), " x ", i.dst.elements(), "; the product is ", i.stationary.elements(), " x ",
               i.moving.elements());
  site.require(type == ElementType::float32 || narrow, "R3", "dst", "is ", name_of(type), "; accepted: float32",
               site.limits.has_bfloat16_psum ? ", bfloat16" : "");
  ElementType const left = site.type(i.stationary), right = site.type(i.moving);
  bool const floating =
      site.require(is_floating(left), "R4", "stationary", "is ", name_of(left), "; accepted: floating types") &&
      site.require(is_floating(right), "R4", "moving", "is ", name_of(right), "; accepted: floating types");
  if (floating)
    site.require((left == ElementType::float32) == (right == ElementType::float32), "R4", "moving", "is ",
                 name_of(right), " and stationary ", name_of(left), "; float32 goes with float32 only");
}

inline void check(Transpose const& i, Site const& site) {
  if (!require_engine(i.engine, {Engine::tensor, Engine::vector}, site)) return;
  bool const on_tensor = i.engine == Engine::tensor;
  if (on_tensor) {
    require_tensor_engine_memory("R13", "dst", i.dst, Memory::psum, site);
    require_tensor_engine_memory("R13", "data", i.data, Memory::sbuf, site);
  } else {
    require_reach(i.engine, "dst", i.dst, site);
    require_reach(i.engine, "data", i.data, site);
  }
  Index const most = on_tensor ? site.limits.transpose_extent : site.limits.vector_transpose_extent;
  site.require(i.data.partitions() <= most && i.data.elements() <= most, "R13", "data", "is ", i.data.partitions(),
               " x ", i.data.elements(), "; ", name_of(i.engine), " transposes at most ", most, " x ", most);
  site.require(i.dst.partitions() == i.data.elements() && i.dst.elements() == i.data.partitions(), "R13", "dst", "is ",
               i.dst.partitions(), " x ", i.dst.elements(), "; the transpose is ", i.data.elements(), " x ",
               i.data.partitions());
  ElementType const from = site.type(i.data), to = site.type(i.dst);
  site.require(from == to, "R13", "dst", "is ", name_of(to), "; data is ", name_of(from), ", and both must be equal");
  site.require(!on_tensor || is_floating(from), "R13", "data", "is ", name_of(from),
               "; TensorE transposes floating types only");
}

}  // namespace annulus::nki::validate_detail
