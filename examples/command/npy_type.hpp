#pragma once
// Element types of a .npy file, and the `descr` strings that name them.

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "input_error.hpp"

namespace annulus_command {

enum class NpyType {
  float16,
  float32,
  float64,
  bfloat16,
  boolean,
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64
};

/// Calls f(std::type_identity<Element>{}) with the C++ type of the elements; boolean is bool.
template <class Function>
decltype(auto) with_element_type(NpyType type, Function&& f) {
  switch (type) {
    case NpyType::float16:
      return f(std::type_identity<Eigen::half>{});
    case NpyType::float32:
      return f(std::type_identity<float>{});
    case NpyType::float64:
      return f(std::type_identity<double>{});
    case NpyType::bfloat16:
      return f(std::type_identity<Eigen::bfloat16>{});
    case NpyType::boolean:
      return f(std::type_identity<bool>{});
    case NpyType::int8:
      return f(std::type_identity<std::int8_t>{});
    case NpyType::uint8:
      return f(std::type_identity<std::uint8_t>{});
    case NpyType::int16:
      return f(std::type_identity<std::int16_t>{});
    case NpyType::uint16:
      return f(std::type_identity<std::uint16_t>{});
    case NpyType::int32:
      return f(std::type_identity<std::int32_t>{});
    case NpyType::uint32:
      return f(std::type_identity<std::uint32_t>{});
    case NpyType::int64:
      return f(std::type_identity<std::int64_t>{});
    case NpyType::uint64:
      return f(std::type_identity<std::uint64_t>{});
  }
  throw std::logic_error("not a value of NpyType");
}

inline std::size_t element_size(NpyType type) {
  return with_element_type(type, []<class T>(std::type_identity<T>) { return sizeof(T); });
}

/// NumPy's short name without byte order: "f4", "b1"; "bfloat16" for bfloat16.
inline char const* name_of(NpyType type) {
  switch (type) {
    case NpyType::float16:
      return "f2";
    case NpyType::float32:
      return "f4";
    case NpyType::float64:
      return "f8";
    case NpyType::bfloat16:
      return "bfloat16";
    case NpyType::boolean:
      return "b1";
    case NpyType::int8:
      return "i1";
    case NpyType::uint8:
      return "u1";
    case NpyType::int16:
      return "i2";
    case NpyType::uint16:
      return "u2";
    case NpyType::int32:
      return "i4";
    case NpyType::uint32:
      return "u4";
    case NpyType::int64:
      return "i8";
    case NpyType::uint64:
      return "u8";
  }
  throw std::logic_error("not a value of NpyType");
}

inline bool is_floating(NpyType type) {
  return type == NpyType::float16 || type == NpyType::float32 || type == NpyType::float64 || type == NpyType::bfloat16;
}

/// Element type and byte order of a file.
struct NpyElement {
  NpyType type;
  bool big_endian;
};

inline constexpr char const* accepted_npy_types =
    "accepted are f2, f4, f8, b1, i1, i2, i4, i8, u1, u2, u4, u8 of either byte order, and V2 as bfloat16";

/// Reads a descr as NumPy writes it: an optional byte order and a short name. V2 is bfloat16, which NumPy knows only as
/// two opaque bytes; u2 is read as bfloat16 if `uint16_is_bfloat16`. Throws InputError that starts with `file`.
inline NpyElement parse_npy_descr(std::string const& file, std::string_view descr, bool uint16_is_bfloat16) {
  std::string_view name = descr;
  bool big_endian = false;
  if (!name.empty() && std::string_view("<>|=").find(name[0]) != std::string_view::npos) {
    big_endian = name[0] == '>';
    name.remove_prefix(1);
  }
  if (!name.empty() && name[0] == 'O')
    throw InputError(file + ": holds Python objects (dtype '" + excerpt(descr) + "'), a pickle that is never loaded; " +
                     accepted_npy_types);
  if (name == "V2" && !big_endian) return {NpyType::bfloat16, false};
  if (name == "u2" && uint16_is_bfloat16) return {NpyType::bfloat16, big_endian};
  for (NpyType const type :
       {NpyType::float16, NpyType::float32, NpyType::float64, NpyType::boolean, NpyType::int8, NpyType::uint8,
        NpyType::int16, NpyType::uint16, NpyType::int32, NpyType::uint32, NpyType::int64, NpyType::uint64})
    if (name == name_of(type)) return {type, big_endian};
  throw InputError(file + ": dtype '" + excerpt(descr) + "' is not supported; " + accepted_npy_types);
}

}  // namespace annulus_command
