// Fuzz target: the reader of .npy files. The input is the file.

#include <cstring>
#include <string>
#include <vector>

#include "command_unit/npy_file.hpp"
#include "fuzz/property.hpp"

namespace {

using namespace annulus_command;
using annulus_fuzz::require;

/// Runs act(). It may throw InputError alone, with a clear message; returns true if it throws none.
template <class Act>
bool is_accepted(Act&& act) {
  try {
    act();
    return true;
  } catch (InputError const& error) {
    require(annulus_test::is_clear(error.what(), "input.npy"), "the message is not clear: ", error.what());
    return false;
  }
}

template <class T>
void check_conversion(NpyArray const& array) {
  is_accepted([&] { require(array.to<T>().size() == array.count(), "a conversion has lost elements"); });
}

void check_array(NpyArray const& array) {
  std::size_t count = 1;
  for (std::size_t const extent : array.shape) count *= extent;
  require(array.count() == count && array.bytes.size() == count * element_size(array.type), "shape ",
          shape_text(array.shape), " with ", array.bytes.size(), " bytes");
  check_conversion<float>(array);
  check_conversion<double>(array);
  check_conversion<Eigen::half>(array);
  check_conversion<Eigen::bfloat16>(array);
  check_conversion<std::int64_t>(array);
  is_accepted([&] { require(array.to_mask().size() == count, "a mask has lost elements"); });

  // What this program writes for the shape is read back as the same shape.
  std::string const written = detail::npy_preamble(name_of(NpyType::int8), array.shape);
  NpyHeader const again = parse_npy_header("input.npy", std::string_view(written).substr(10));
  require(again.shape == array.shape && !again.fortran_order && again.element.type == NpyType::int8,
          "a written header is read differently: ", written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  static annulus_test::TemporaryFolder const folder;
  auto const file = folder.file("input.npy", std::string(reinterpret_cast<char const*>(data), size));
  for (bool const uint16_is_bfloat16 : {false, true}) {
    NpyArray array;
    if (is_accepted([&] { array = read_npy(file, {.uint16_is_bfloat16 = uint16_is_bfloat16}); })) check_array(array);
  }
  return 0;
}
