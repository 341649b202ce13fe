// Golden files of printed programs and listings.
#include "annulus/nki/print/to_python.hpp"
#include "annulus/nki/program/listing.hpp"
#include "nki/print/golden_text.hpp"
#include "nki/program/golden_programs.hpp"

namespace annulus::nki {

TEST_CASE("printed programs equal the files in golden/") {
  for (Program const& program : golden::all()) golden::check_as_kept(program.name + ".py", to_python(program));
}

TEST_CASE("listings equal the files in golden/") {
  for (Program const& program : golden::all()) golden::check_as_kept(program.name + ".txt", listing(program));
}

}  // namespace annulus::nki
