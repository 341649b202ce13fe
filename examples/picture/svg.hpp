#pragma once
// SVG pictures: shapes and text, written to a stream as they are drawn.

#include <cstdio>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace annulus_picture {

/// A number with `digits` decimals.
inline std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

struct Point {
  double x, y;
};

enum class Anchor { start, middle, end };

struct TextStyle {
  Anchor anchor = Anchor::start;
  double size = 12;
  bool bold = false;
  std::string_view colour = "#24292f";
};

/// A picture on a white background. Lengths are in pixels, y grows downwards. The destructor ends the document.
class Svg {
 public:
  /// `title`: what a screen reader says.
  Svg(std::ostream& stream, double width, double height, std::string_view title) : stream_(stream) {
    stream_ << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << fixed(width, 0) << ' ' << fixed(height, 0)
            << "\" width=\"" << fixed(width, 0) << "\" height=\"" << fixed(height, 0)
            << "\" font-family=\"sans-serif\" role=\"img\">\n<title>" << escaped(title)
            << "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  }
  Svg(Svg const&) = delete;
  Svg& operator=(Svg const&) = delete;
  ~Svg() { stream_ << "</svg>\n"; }

  void text(Point at, std::string_view words, TextStyle const& style = {}) {
    static constexpr char const* anchors[] = {"start", "middle", "end"};
    stream_ << "<text x=\"" << fixed(at.x, 1) << "\" y=\"" << fixed(at.y, 1) << "\" font-size=\""
            << fixed(style.size, 0) << "\" text-anchor=\"" << anchors[static_cast<int>(style.anchor)] << "\" fill=\""
            << style.colour << '"' << (style.bold ? " font-weight=\"bold\"" : "") << '>' << escaped(words)
            << "</text>\n";
  }

  /// `hint` is shown by browsers while the pointer rests on the rectangle; empty: none.
  void rectangle(Point at, double width, double height, std::string_view fill, std::string_view hint = {}) {
    stream_ << "<rect x=\"" << fixed(at.x, 2) << "\" y=\"" << fixed(at.y, 2) << "\" width=\"" << fixed(width, 2)
            << "\" height=\"" << fixed(height, 2) << "\" fill=\"" << fill << '"';
    if (hint.empty())
      stream_ << "/>\n";
    else
      stream_ << "><title>" << escaped(hint) << "</title></rect>\n";
  }

  void frame(Point at, double width, double height, std::string_view colour) {
    stream_ << "<rect x=\"" << fixed(at.x, 1) << "\" y=\"" << fixed(at.y, 1) << "\" width=\"" << fixed(width, 1)
            << "\" height=\"" << fixed(height, 1) << "\" fill=\"none\" stroke=\"" << colour << "\"/>\n";
  }

  void line(Point from, Point to, std::string_view colour, double width = 1) {
    stream_ << "<line x1=\"" << fixed(from.x, 1) << "\" y1=\"" << fixed(from.y, 1) << "\" x2=\"" << fixed(to.x, 1)
            << "\" y2=\"" << fixed(to.y, 1) << "\" stroke=\"" << colour << "\" stroke-width=\"" << fixed(width, 1)
            << "\"/>\n";
  }

  void polyline(std::vector<Point> const& points, std::string_view colour, double width) {
    stream_ << "<polyline fill=\"none\" stroke-linejoin=\"round\" stroke=\"" << colour << "\" stroke-width=\""
            << fixed(width, 1) << "\" points=\"";
    for (std::size_t i = 0; i < points.size(); ++i)
      stream_ << (i == 0 ? "" : " ") << fixed(points[i].x, 1) << ',' << fixed(points[i].y, 1);
    stream_ << "\"/>\n";
  }

 private:
  static std::string escaped(std::string_view text) {
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

  std::ostream& stream_;
};

}  // namespace annulus_picture
