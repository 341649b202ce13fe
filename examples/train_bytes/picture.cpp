#include "picture.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <string_view>

namespace train_bytes {

namespace {

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (char const c : text)
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (static_cast<unsigned char>(c) < 0x20)
      result += '?';
    else
      result += c;
  return result;
}

void write_text(std::ostream& stream, double x, double y, char const* anchor, std::string_view text) {
  stream << "<text x=\"" << fixed(x, 1) << "\" y=\"" << fixed(y, 1) << "\" text-anchor=\"" << anchor << "\">"
         << escaped(text) << "</text>\n";
}

void write_line(std::ostream& stream, double x1, double y1, double x2, double y2, std::string_view colour) {
  stream << "<line x1=\"" << fixed(x1, 1) << "\" y1=\"" << fixed(y1, 1) << "\" x2=\"" << fixed(x2, 1) << "\" y2=\""
         << fixed(y2, 1) << "\" stroke=\"" << colour << "\"/>\n";
}

/// Distance between round numbers, 1, 2 or 5 times a power of ten, of which about `count` fit in `span`.
double round_interval(double span, int count) {
  double const power = std::pow(10.0, std::floor(std::log10(span / count)));
  for (double const factor : {1.0, 2.0, 5.0})
    if (power * factor * count >= span) return power * factor;
  return power * 10;
}

/// Rectangle of the picture in which values are drawn.
struct Diagram {
  double left, top, width, height;
  double first_step, last_step, low, high;

  double x(double step) const { return left + width * (step - first_step) / std::max(1.0, last_step - first_step); }
  double y(double value) const { return top + height * (high - std::clamp(value, low, high)) / (high - low); }

  void write_frame(std::ostream& stream, std::string_view title) const {
    stream << "<rect x=\"" << fixed(left, 1) << "\" y=\"" << fixed(top, 1) << "\" width=\"" << fixed(width, 1)
           << "\" height=\"" << fixed(height, 1) << "\" fill=\"none\" stroke=\"#888\"/>\n";
    write_text(stream, left, top - 8, "start", title);
    double const interval = std::max(1.0, round_interval(std::max(1.0, last_step - first_step), 8));
    for (double step = std::ceil(first_step / interval) * interval; step <= last_step; step += interval)
      write_text(stream, x(step), top + height + 16, "middle", fixed(step, 0));
  }

  /// A labelled horizontal line.
  void write_level(std::ostream& stream, double value, std::string_view label) const {
    write_line(stream, left, y(value), left + width, y(value), "#ddd");
    write_text(stream, left - 6, y(value) + 4, "end", label);
  }

  /// value(point, index): what is drawn of each point of the curve.
  template <class Value>
  void write_curve(std::ostream& stream, Curve const& curve, std::string_view style, Value&& value) const {
    stream << "<polyline fill=\"none\" stroke-linejoin=\"round\" " << style << " points=\"";
    for (std::size_t i = 0; i < curve.size(); ++i)
      stream << (i == 0 ? "" : " ") << fixed(x(static_cast<double>(curve[i].step)), 1) << ','
             << fixed(y(value(curve[i], i)), 1);
    stream << "\"/>\n";
  }
};

std::string colour_of(std::size_t index, std::size_t count) {
  double const hue = 220 + 360 * static_cast<double>(index) / static_cast<double>(count);
  return "stroke=\"hsl(" + fixed(std::fmod(hue, 360), 0) + ",70%,45%)\"";
}

/// Colour and width of a loss curve: later ones are narrower, and lie on top.
std::string style_of(std::size_t index, std::size_t count) {
  double const place = count == 1 ? 1 : static_cast<double>(index) / static_cast<double>(count - 1);
  return colour_of(index, count) + " stroke-width=\"" + fixed(7 - 6 * place, 1) + "\"";
}

/// log10 of the difference of each point from the first curve; -infinity where they are equal.
double log_difference(Curve const& first, CurvePoint const& point, std::size_t index) {
  if (index >= first.size()) return -std::numeric_limits<double>::infinity();
  return std::log10(std::abs(point.bits_per_byte - first[index].bits_per_byte));
}

void write_losses(std::ostream& stream, std::vector<NamedCurve> const& curves, Diagram diagram) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (NamedCurve const& named : curves)
    for (CurvePoint const& point : named.curve) {
      low = std::min(low, point.bits_per_byte);
      high = std::max(high, point.bits_per_byte);
    }
  double const interval = round_interval(std::max(high - low, 1e-3), 6);
  diagram.low = std::floor(low / interval) * interval;
  diagram.high = std::max(std::ceil(high / interval), std::floor(low / interval) + 1) * interval;
  int const digits = std::max(0, static_cast<int>(std::ceil(-std::log10(interval) - 1e-9)));
  for (int i = 0; diagram.low + i * interval <= diagram.high + interval / 2; ++i)
    diagram.write_level(stream, diagram.low + i * interval, fixed(diagram.low + i * interval, digits));
  diagram.write_frame(stream, "training loss, bits per byte, at each step");
  for (std::size_t i = 0; i < curves.size(); ++i)
    diagram.write_curve(stream, curves[i].curve, style_of(i, curves.size()),
                        [](CurvePoint const& point, std::size_t) { return point.bits_per_byte; });
}

void write_differences(std::ostream& stream, std::vector<NamedCurve> const& curves, Diagram diagram) {
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
  diagram.low = std::floor(low);
  diagram.high = std::max(std::ceil(high), diagram.low + 1);
  double const decades = std::max(1.0, std::ceil((diagram.high - diagram.low) / 8));
  for (double level = diagram.low; level <= diagram.high; level += decades)
    diagram.write_level(stream, level, "1e" + fixed(level, 0));
  diagram.write_frame(stream, "difference from " + curves[0].name + ", bits per byte; equal at the lower edge");
  for (std::size_t i = 1; i < curves.size(); ++i)
    diagram.write_curve(stream, curves[i].curve, colour_of(i, curves.size()),
                        [&](CurvePoint const& point, std::size_t j) { return log_difference(first, point, j); });
}

}  // namespace

void write_svg(std::ostream& stream, std::vector<NamedCurve> const& curves) {
  bool const several = curves.size() > 1;
  constexpr double width = 900, legend_left = 700, row = 18;
  double const legend_end = 60 + row * static_cast<double>(curves.size());
  double const height = std::max(several ? 620.0 : 380.0, legend_end);
  Diagram diagram{
      .left = 60, .top = 40, .width = 620, .height = 290, .first_step = 0, .last_step = 0, .low = 0, .high = 1};
  diagram.first_step = static_cast<double>(curves[0].curve.front().step);
  for (NamedCurve const& named : curves) {
    diagram.first_step = std::min(diagram.first_step, static_cast<double>(named.curve.front().step));
    diagram.last_step = std::max(diagram.last_step, static_cast<double>(named.curve.back().step));
  }
  stream << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << fixed(width, 0) << ' ' << fixed(height, 0)
         << "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  write_losses(stream, curves, diagram);
  if (several) {
    diagram.top = 400;
    diagram.height = 180;
    write_differences(stream, curves, diagram);
  }
  for (std::size_t i = 0; i < curves.size(); ++i) {
    double const y = 50 + row * static_cast<double>(i);
    stream << "<line x1=\"" << fixed(legend_left, 0) << "\" y1=\"" << fixed(y, 0) << "\" x2=\""
           << fixed(legend_left + 24, 0) << "\" y2=\"" << fixed(y, 0) << "\" " << style_of(i, curves.size()) << "/>\n";
    write_text(stream, legend_left + 32, y + 4, "start", curves[i].name);
  }
  stream << "</svg>\n";
}

}  // namespace train_bytes
