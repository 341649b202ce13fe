#pragma once
// A buffer whose tiles are named by when they were made, so that stages of a pipeline can hand them on.

#include <utility>

#include "annulus/backend/nki/program/builder.hpp"

namespace annulus::nki {

class RotatingTile {
 public:
  RotatingTile() = default;
  RotatingTile(Builder& builder, std::string name, Memory memory, Index partitions, Index elements, ElementType type,
               int rotation)
      : builder_(&builder), newest_(builder.declare(std::move(name), memory, partitions, elements, type, rotation)) {}

  /// Allocates a tile and returns its number.
  Index make() {
    builder_->allocate(newest_);
    return made_++;
  }
  /// The buffer keeps as many tiles as are still named.
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
