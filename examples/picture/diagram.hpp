#pragma once
// Curves over a linear or logarithmic x and y axis.

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "picture/svg.hpp"

namespace annulus_picture {

/// Range of values along one axis. Values of a logarithmic axis are positive.
struct Axis {
  double first = 0, last = 1;
  bool logarithmic = false;

  /// Place of a value, from 0 to 1; values outside are moved to the nearer end.
  double place(double value) const {
    double const low = scaled(first), high = scaled(last);
    return high > low ? std::clamp((scaled(value) - low) / (high - low), 0.0, 1.0) : 0;
  }

 private:
  double scaled(double value) const { return logarithmic ? std::log2(value) : value; }
};

/// Distance between round numbers, 1, 2 or 5 times a power of ten, of which about `count` fit in `span`.
inline double round_interval(double span, int count) {
  double const power = std::pow(10.0, std::floor(std::log10(span / count)));
  for (double const factor : {1.0, 2.0, 5.0})
    if (power * factor * count >= span) return power * factor;
  return power * 10;
}

/// Rectangle of a picture in which curves are drawn.
struct Diagram {
  Point corner{};  ///< upper left
  double width = 0, height = 0;
  Axis x{}, y{};

  Point point(double at, double value) const {
    return {corner.x + width * x.place(at), corner.y + height * (1 - y.place(value))};
  }

  void draw_frame(Svg& svg, std::string_view title) const {
    svg.frame(corner, width, height, "#888888");
    svg.text({corner.x, corner.y - 8}, title);
  }

  /// A labelled value of the x axis.
  void draw_column(Svg& svg, double at, std::string_view label) const {
    svg.text({point(at, y.first).x, corner.y + height + 16}, label, {.anchor = Anchor::middle});
  }

  /// A labelled horizontal line.
  void draw_level(Svg& svg, double value, std::string_view label) const {
    double const height_of = point(x.first, value).y;
    svg.line({corner.x, height_of}, {corner.x + width, height_of}, "#dddddd");
    svg.text({corner.x - 6, height_of + 4}, label, {.anchor = Anchor::end});
  }

  /// points: pairs of x and y.
  void draw_curve(Svg& svg, std::vector<std::pair<double, double>> const& points, std::string_view colour,
                  double line_width) const {
    std::vector<Point> drawn;
    drawn.reserve(points.size());
    for (auto const& [at, value] : points) drawn.push_back(point(at, value));
    svg.polyline(drawn, colour, line_width);
  }
};

/// One entry of a legend, with a short line of the curve's colour.
inline void draw_legend_entry(Svg& svg, Point at, std::string_view colour, double line_width, std::string_view name) {
  svg.line(at, {at.x + 24, at.y}, colour, line_width);
  svg.text({at.x + 32, at.y + 4}, name);
}

}  // namespace annulus_picture
