// The program annulus_demo: `annulus demo` alone, compiled in a minute: for float and this machine's processor.

#include <CLI/CLI.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <cstdio>
#include <exception>
#include <string_view>
#include <vector>

#include "command/attend_on_backend.hpp"
#include "command/attend_on_ranks.hpp"
#include "command/demo.hpp"
#include "command/errors.hpp"
#include "command/output_stream.hpp"

namespace annulus_command {

template <annulus::Scalar T>
Results<T> attend_on_rank(AnyRing& ring, Call const& call, Inputs<T> const& own, Timeline& timeline) {
  annulus::CpuBackend backend{.threads = call.threads};
  return attend_on_backend(backend, ring, call, own, timeline);
}
template Results<float> attend_on_rank(AnyRing&, Call const&, Inputs<float> const&, Timeline&);

bool backend_writes_bias_gradients(std::string_view) { return annulus::ClosingBackend<annulus::CpuBackend>; }

}  // namespace annulus_command

int main(int argc, char** argv) {
  using namespace annulus_command;
  occupy_standard_descriptors();
  StandardOutput output;
  CLI::App app("Exact attention over a sequence sharded across the ranks of a ring.", "annulus");
  DemoOptions options;
  add_demo(app, options);
  std::vector<char const*> words{"annulus", "demo"};
  words.insert(words.end(), argv + 1, argv + argc);
  try {
    app.parse(static_cast<int>(words.size()), words.data());
    run_demo(options);
    output.finish();
    return success;
  } catch (CLI::Success const& help) {
    return app.exit(help);
  } catch (CLI::ParseError const& error) {
    std::fprintf(stderr, "annulus: %s; 'annulus demo --help' lists the accepted options\n", error.what());
    return bad_input;
  } catch (...) {
    Ending const ending = ending_of(std::current_exception());
    std::fprintf(stderr, "annulus: %s\n", ending.text());
    return ending.status;
  }
}
