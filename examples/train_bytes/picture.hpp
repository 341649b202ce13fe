#pragma once
// Loss curves as an SVG picture.

#include <ostream>
#include <string>
#include <vector>

#include "curve.hpp"

namespace train_bytes {

struct NamedCurve {
  std::string name;
  Curve curve;  ///< with at least one step
};

/// Draws the curves on top of each other, the first one widest, so that equal curves are seen as stripes within each
/// other. With several curves a second diagram shows how far each is from the first, on a logarithmic scale.
void write_svg(std::ostream& stream, std::vector<NamedCurve> const& curves);

}  // namespace train_bytes
