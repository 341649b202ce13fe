#pragma once
// Small programs for tests of the simulator: tiles loaded from and stored to the test's arrays, and an independent
// computation of the elements that an access names.

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/program/builder.hpp"
#include "annulus/nki/simulate/core.hpp"
#include "annulus/nki/simulate/simulate.hpp"

namespace annulus_test {

namespace nki = annulus::nki;
using annulus::Index;

inline constexpr auto f32 = nki::ElementType::float32;
inline constexpr auto bf16 = nki::ElementType::bfloat16;
inline constexpr auto f16 = nki::ElementType::float16;

inline std::vector<float> random_values(Index count, unsigned seed, float lowest = -2, float highest = 2) {
  std::mt19937 bits(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  // Not std::uniform_real_distribution, which differs between standard libraries.
  for (float& value : values) value = lowest + (highest - lowest) * static_cast<float>(bits() >> 8) * 0x1p-24f;
  return values;
}

/// Index, in a tile or tensor stored row by row, of element i of row p of an access without variables.
inline std::size_t place_of(nki::Program const& program, nki::Access const& access, Index p, Index i) {
  nki::Buffer const& buffer = program.buffer(access);
  bool const chip = nki::on_chip(buffer.memory);
  Index place = access.offset.constant();
  place += chip ? (access.start_partition + p) * buffer.shape[1] : p * access.axis(0).stride;
  for (std::size_t axis = access.axes().size(); axis-- > 1; i /= access.axis(axis).count)
    place += i % access.axis(axis).count * access.axis(axis).stride;
  return static_cast<std::size_t>(place);
}

/// A program of one core under construction, with its inputs.
class SingleCoreProgram {
 public:
  explicit SingleCoreProgram(nki::Target target = nki::Target::trn2) : builder("one", target, 1, 1), target_(target) {}

  /// A tile filled with these values, rounded to its type. DMA reaches PSUM through a tile in SBUF only.
  nki::TileHandle load(std::string const& name, Index partitions, Index elements, std::vector<float> values,
                       nki::ElementType type = f32, nki::Memory memory = nki::Memory::sbuf) {
    auto const source = builder.tensor(name + "_in", {partitions, elements}, type, nki::Role::input);
    auto const tile = builder.tile(name, nki::Memory::sbuf, partitions, elements, type);
    builder.emit(nki::DmaCopy{tile.whole(), source.pattern(0, {{elements, partitions}, {1, elements}})});
    inputs[name + "_in"] = std::move(values);
    return memory == nki::Memory::sbuf ? tile : copied(name + "_copy", tile, memory);
  }
  /// Stores the tile; after the run its values are result(name).
  void store(std::string const& name, nki::TileHandle const& tile) {
    nki::Buffer const buffer = builder.program().buffer(tile.buffer);
    auto const from = buffer.memory == nki::Memory::sbuf ? tile : copied(name + "_stored", tile, nki::Memory::sbuf);
    auto const to = builder.tensor(name + "_out", {tile.partitions, tile.elements}, buffer.type, nki::Role::output);
    builder.emit(nki::DmaCopy{to.pattern(0, {{tile.elements, tile.partitions}, {1, tile.elements}}), from.whole()});
  }
  nki::ValidatedProgram validated() const { return nki::validated(builder.program(), nki::hardware_of(target_)); }
  void run() { outputs = nki::simulate(validated(), inputs); }
  std::vector<float> const& result(std::string const& name) const { return outputs.at(name + "_out"); }

  nki::Builder builder;
  nki::Tensors inputs, outputs;

 private:
  nki::TileHandle copied(std::string const& name, nki::TileHandle const& tile, nki::Memory memory) {
    auto const type = builder.program().buffer(tile.buffer).type;
    auto const copy = builder.tile(name, memory, tile.partitions, tile.elements, type);
    builder.emit(nki::TensorCopy{copy.whole(), tile.whole()});
    return copy;
  }

  nki::Target target_;
};

/// True if the type can represent these values.
inline bool all_held(nki::ElementType type, std::vector<float> values) {
  std::vector<float> const before = values;
  nki::simulator::round_to(type, values.data(), static_cast<Index>(values.size()));
  return values == before;
}

/// Largest rounding error at this magnitude: half of the distance between adjacent values of the type.
inline double rounding_of(nki::ElementType type, double size) {
  double const units = type == f32 ? 0x1p-24 : type == bf16 ? 0x1p-9 : 0x1p-12;
  return units * 2 * std::abs(size);
}

}  // namespace annulus_test
