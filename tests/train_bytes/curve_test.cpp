// Loss curves: CSV files and pictures.

#include "train_bytes/curve.hpp"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "command/errors.hpp"
#include "support/catch.hpp"
#include "train_bytes/picture.hpp"

using namespace train_bytes;

namespace {

Curve falling_curve(double shift) {
  Curve curve;
  for (Index step = 0; step < 20; ++step)
    curve.push_back({step, 8.0 / static_cast<double>(step + 1) + shift, std::exp(-static_cast<double>(step)), 1e-3});
  return curve;
}

struct File {
  explicit File(std::string const& text)
      : path(std::filesystem::temp_directory_path() / ("train-bytes-curve-" + std::to_string(::getpid()))) {
    std::ofstream(path) << text;
  }
  ~File() { std::filesystem::remove(path); }
  std::filesystem::path path;
};

std::size_t occurrences(std::string const& text, std::string const& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

std::string picture_of(std::vector<NamedCurve> const& curves) {
  std::ostringstream stream;
  write_svg(stream, curves);
  return stream.str();
}

}  // namespace

TEST_CASE("a CSV file keeps all bits", "[train_bytes]") {
  Curve const curve = falling_curve(1.0 / 3);
  std::ostringstream stream;
  write_csv(stream, curve);
  Curve const again = read_csv(File(stream.str()).path);
  REQUIRE(again.size() == curve.size());
  for (std::size_t i = 0; i < curve.size(); ++i) {
    CHECK(again[i].step == curve[i].step);
    CHECK(again[i].bits_per_byte == curve[i].bits_per_byte);
    CHECK(again[i].gradient_norm == curve[i].gradient_norm);
    CHECK(again[i].learning_rate == curve[i].learning_rate);
  }
}

TEST_CASE("other files are refused", "[train_bytes]") {
  std::string const names = "step,bits_per_byte,gradient_norm,learning_rate\n";
  for (std::string const& text : {std::string(), std::string("a,b\n"), names, names + "0,1,2\n", names + "0,1,2,3,4\n",
                                  names + "0,1,x,3\n", names + "0,nan,2,3\n", names + "0,1,2,3\n\n"}) {
    INFO(text);
    CHECK_THROWS_AS(read_csv(File(text).path), annulus_command::InputError);
  }
  CHECK_THROWS_AS(read_csv("/nonexistent/curve.csv"), annulus_command::InputError);
}

TEST_CASE("the largest difference and its step", "[train_bytes]") {
  Curve const one = falling_curve(0);
  Curve other = one;
  CHECK(largest_difference(one, other).bits_per_byte == 0);
  other[3].bits_per_byte += 0.25;
  other[7].bits_per_byte -= 0.5;
  CHECK(largest_difference(one, other).bits_per_byte == Approx(0.5));
  CHECK(largest_difference(one, other).step == 7);
}

TEST_CASE("a picture has a line for each curve, and for each difference", "[train_bytes]") {
  std::string const one = picture_of({{"a<b&c", falling_curve(0)}});
  CHECK(occurrences(one, "<polyline") == 1);
  CHECK(occurrences(one, "a&lt;b&amp;c") == 1);
  std::string const three = picture_of({{"a", falling_curve(0)}, {"b", falling_curve(1e-5)}, {"c", falling_curve(0)}});
  CHECK(occurrences(three, "<polyline") == 5);
  CHECK(occurrences(three, "nan") == 0);
  CHECK(occurrences(three, "inf") == 0);
  // Curves of one step, and equal ones.
  std::string const flat = picture_of({{"a", {{0, 8, 1, 1}}}, {"b", {{0, 8, 1, 1}}}});
  CHECK(occurrences(flat, "<polyline") == 3);
  CHECK(occurrences(flat, "nan") == 0);
  CHECK(occurrences(flat, "inf") == 0);
}

TEST_CASE("a curve is drawn from its largest value at the top to its smallest at the bottom", "[train_bytes]") {
  std::string const picture = picture_of({{"a", {{0, 8, 1, 1}, {10, 2, 1, 1}}}});
  // The diagram spans x 60 to 680 and y 40 to 330; the axis from 2 to 8.
  CHECK(occurrences(picture, "points=\"60.0,40.0 680.0,330.0\"") == 1);
}
