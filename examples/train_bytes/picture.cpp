#include "picture.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>

#include "picture/diagram.hpp"
#include "picture/svg.hpp"

namespace train_bytes {

namespace {

using annulus_picture::Diagram;
using annulus_picture::fixed;
using annulus_picture::round_interval;
using annulus_picture::Svg;

std::string colour_of(std::size_t index, std::size_t count) {
  double const hue = 220 + 360 * static_cast<double>(index) / static_cast<double>(count);
  return "hsl(" + fixed(std::fmod(hue, 360), 0) + ",70%,45%)";
}

/// Width of a loss curve: later ones are narrower, and lie on top.
double width_of(std::size_t index, std::size_t count) {
  double const place = count == 1 ? 1 : static_cast<double>(index) / static_cast<double>(count - 1);
  return 7 - 6 * place;
}

/// Draws curve i; value(point, index) is what is drawn of each of its points.
template <class Value>
void draw_curve(Svg& svg, Diagram const& diagram, std::vector<NamedCurve> const& curves, std::size_t i,
                double line_width, Value&& value) {
  std::vector<std::pair<double, double>> points;
  for (std::size_t j = 0; j < curves[i].curve.size(); ++j)
    points.emplace_back(static_cast<double>(curves[i].curve[j].step), value(curves[i].curve[j], j));
  diagram.draw_curve(svg, points, colour_of(i, curves.size()), line_width);
}

/// Draws the frame, its title, and round numbers of steps.
void draw_steps(Svg& svg, Diagram const& diagram, std::string_view title) {
  diagram.draw_frame(svg, title);
  double const span = std::max(1.0, diagram.x.last - diagram.x.first),
               interval = std::max(1.0, round_interval(span, 8));
  for (double step = std::ceil(diagram.x.first / interval) * interval; step <= diagram.x.last; step += interval)
    diagram.draw_column(svg, step, fixed(step, 0));
}

/// log10 of the difference of each point from the first curve; -infinity where they are equal.
double log_difference(Curve const& first, CurvePoint const& point, std::size_t index) {
  if (index >= first.size()) return -std::numeric_limits<double>::infinity();
  return std::log10(std::abs(point.bits_per_byte - first[index].bits_per_byte));
}

void draw_losses(Svg& svg, std::vector<NamedCurve> const& curves, Diagram diagram) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (NamedCurve const& named : curves)
    for (CurvePoint const& point : named.curve) {
      low = std::min(low, point.bits_per_byte);
      high = std::max(high, point.bits_per_byte);
    }
  double const interval = round_interval(std::max(high - low, 1e-3), 6);
  diagram.y = {.first = std::floor(low / interval) * interval,
               .last = std::max(std::ceil(high / interval), std::floor(low / interval) + 1) * interval};
  int const digits = std::max(0, static_cast<int>(std::ceil(-std::log10(interval) - 1e-9)));
  for (int i = 0; diagram.y.first + i * interval <= diagram.y.last + interval / 2; ++i)
    diagram.draw_level(svg, diagram.y.first + i * interval, fixed(diagram.y.first + i * interval, digits));
  draw_steps(svg, diagram, "training loss, bits per byte, at each step");
  for (std::size_t i = 0; i < curves.size(); ++i)
    draw_curve(svg, diagram, curves, i, width_of(i, curves.size()),
               [](CurvePoint const& point, std::size_t) { return point.bits_per_byte; });
}

void draw_differences(Svg& svg, std::vector<NamedCurve> const& curves, Diagram diagram) {
  Curve const& first = curves[0].curve;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (std::size_t i = 1; i < curves.size(); ++i)
    for (std::size_t j = 0; j < curves[i].curve.size(); ++j) {
      double const value = log_difference(first, curves[i].curve[j], j);
      if (std::isinf(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  if (low > high) low = high = -16;  // all curves are equal
  diagram.y = {.first = std::floor(low), .last = std::max(std::ceil(high), std::floor(low) + 1)};
  double const decades = std::max(1.0, std::ceil((diagram.y.last - diagram.y.first) / 8));
  for (double level = diagram.y.first; level <= diagram.y.last; level += decades)
    diagram.draw_level(svg, level, "1e" + fixed(level, 0));
  draw_steps(svg, diagram, "difference from " + curves[0].name + ", bits per byte; equal at the lower edge");
  for (std::size_t i = 1; i < curves.size(); ++i)
    draw_curve(svg, diagram, curves, i, 1,
               [&](CurvePoint const& point, std::size_t j) { return log_difference(first, point, j); });
}

}  // namespace

void write_svg(std::ostream& stream, std::vector<NamedCurve> const& curves) {
  bool const several = curves.size() > 1;
  constexpr double width = 900, legend_left = 700, row = 18;
  double const legend_end = 60 + row * static_cast<double>(curves.size());
  double const height = std::max(several ? 620.0 : 380.0, legend_end);
  double first_step = static_cast<double>(curves[0].curve.front().step), last_step = first_step;
  for (NamedCurve const& named : curves) {
    first_step = std::min(first_step, static_cast<double>(named.curve.front().step));
    last_step = std::max(last_step, static_cast<double>(named.curve.back().step));
  }
  Diagram diagram{.corner = {60, 40}, .width = 620, .height = 290, .x = {.first = first_step, .last = last_step}};
  Svg svg(stream, width, height, "Loss curves");
  draw_losses(svg, curves, diagram);
  if (several) {
    diagram.corner.y = 400;
    diagram.height = 180;
    draw_differences(svg, curves, diagram);
  }
  for (std::size_t i = 0; i < curves.size(); ++i)
    annulus_picture::draw_legend_entry(svg, {legend_left, 50 + row * static_cast<double>(i)},
                                       colour_of(i, curves.size()), width_of(i, curves.size()), curves[i].name);
}

}  // namespace train_bytes
