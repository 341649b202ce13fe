#pragma once
// A buffer whose tiles are named by sequence number, so that pipeline stages can pass them on.

#include <utility>

#include "annulus/nki/program/builder.hpp"

namespace annulus::nki {

/// Numbers the tiles of a buffer and raises its rotation as older tiles are used.
class RotatingTile {
 public:
  RotatingTile() = default;
  RotatingTile(Builder& builder, std::string name, Memory memory, Index partitions, Index elements, ElementType type,
               int rotation)
      : builder_(&builder), newest_(builder.declare(std::move(name), memory, partitions, elements, type, rotation)) {}

  /// Allocates a tile and returns its sequence number.
  Index make() {
    builder_->allocate(newest_);
    return made_++;
  }
  /// The tile of that number; raises the rotation of the buffer so that it is still held.
  TileHandle operator[](Index number) const {
    int const age = static_cast<int>(made_ - 1 - number);
    builder_->keep(newest_, age + 1);
    return newest_.before(age);
  }
  TileHandle newest() const { return newest_; }
  Index newest_number() const { return made_ - 1; }

 private:
  Builder* builder_ = nullptr;
  TileHandle newest_;
  Index made_ = 0;
};

}  // namespace annulus::nki
