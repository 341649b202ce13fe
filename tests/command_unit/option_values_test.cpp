// OptionValues, the options that the ranks of a job compare.

#include "command/attend.hpp"
#include "command/launch.hpp"
#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

using Catch::Matchers::ContainsSubstring;
using namespace annulus_command;

namespace {

/// The record of a parsed command line.
std::string record(std::string const& line) {
  CLI::App app;
  double scale = 1;
  std::uint64_t seed = 0;
  std::string file;
  app.add_option("--scale", scale)->capture_default_str();
  app.add_option("--seed", seed);
  app.add_option("--file", file);
  app.add_flag("--causal");
  app.parse(line);
  OptionValues values;
  values.add_all(app);
  return values.text();
}

std::string difference(std::vector<std::string> const& lines) {
  std::vector<std::string> records;
  for (std::string const& line : lines) records.push_back(record(line));
  try {
    OptionValues::require_equal(records);
  } catch (InputError const& error) {
    return error.what();
  }
  return "";
}

/// Option `number` of attend.
CLI::Option& option_of(CLI::App& attend, std::size_t number) { return *attend.get_options().at(number); }

/// The record of attend with option `number` alone.
std::string record_of_attend(std::size_t number) {
  CLI::App app;
  AttendOptions options;
  CLI::App& attend = add_attend(app, options);
  option_of(attend, number).add_result("other");
  OptionValues values;
  values.add_all(attend);
  return values.text();
}

}  // namespace

TEST_CASE("spellings and defaults are equal", "[command]") {
  CHECK(difference({"--scale 100000", "--scale 1e5", "--scale=1.0e+5"}) == "");
  CHECK(difference({"", "--scale 1", "--scale 1.0"}) == "");
  CHECK(difference({"--causal --seed 7", "--seed 007 --causal"}) == "");
  CHECK(difference({"--file a.npy", "--file a.npy"}) == "");
}

TEST_CASE("the first difference is named with both values and both ranks", "[command]") {
  CHECK(difference({"--scale 2", "--scale 2.0", "--scale 3"}) ==
        "--scale is '2' on rank 0 and '3' on rank 2; accepted: the same command line on all ranks");
  CHECK(difference({"", "--causal"}) ==
        "--causal is not given on rank 0 and 'true' on rank 1; accepted: the same command line on all ranks");
  CHECK(difference({"--file a,b", "--file a,c"}) != "");
  // A double cannot distinguish these.
  CHECK(difference({"--seed 18446744073709551614", "--seed 18446744073709551615"}) != "");
}

TEST_CASE("every option of attend is compared", "[command]") {
  CLI::App app;
  AttendOptions options;
  CLI::App& attend = add_attend(app, options);
  OptionValues none;
  none.add_all(attend);
  std::size_t const count = attend.get_options().size();
  REQUIRE(count > 40);
  for (std::size_t number = 0; number < count; ++number) {
    std::string const name = option_of(attend, number).get_name();
    CAPTURE(name);
    CHECK_THROWS_WITH(OptionValues::require_equal({none.text(), record_of_attend(number)}),
                      ContainsSubstring(name + " is ") && ContainsSubstring("'other' on rank 1"));
  }
}

TEST_CASE("commands of two versions differ", "[command]") {
  OptionValues one, two;
  one.add("--scale", "1");
  two.add("--factor", "1");
  CHECK_THROWS_AS(OptionValues::require_equal({one.text(), two.text()}), InputError);
  two = one;
  two.add("--more", "");
  CHECK_THROWS_AS(OptionValues::require_equal({one.text(), two.text()}), InputError);
  CHECK_NOTHROW(OptionValues::require_equal({two.text(), two.text()}));
}
