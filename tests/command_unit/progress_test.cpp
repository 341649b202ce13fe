// The progress bar: its line, silence on a file or pipe, and its output on a terminal.

#include "command/progress.hpp"
#include "support/catch.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>

using namespace annulus_command;

namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

void run_task(std::FILE* stream) {
  Progress progress("ring", 4, stream);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int thread = 0; thread < 4; ++thread) threads.emplace_back([&progress] { progress.advance(); });
  for (auto& thread : threads) thread.join();
}

/// The terminal of a controller that posix_openpt returned; null if the system has none, as a container without
/// /dev/pts.
File terminal_of(int controller) {
  bool const usable = controller >= 0 && grantpt(controller) == 0 && unlockpt(controller) == 0;
  char const* const name = usable ? ptsname(controller) : nullptr;
  return {name ? std::fopen(name, "w") : nullptr, &std::fclose};
}

}  // namespace

TEST_CASE("the line shows the completed share", "[progress]") {
  CHECK(progress_line("ring", 0, 8, 0.0) == "ring  [------------------------------]  0 %  0 s");
  CHECK(progress_line("ring", 4, 8, 61.9) == "ring  [###############---------------]  50 %  61 s");
  CHECK(progress_line("ring", 8, 8, 2.0) == "ring  [##############################]  100 %  2 s");
  CHECK(progress_line("ring", 9, 8, 2.0) == progress_line("ring", 8, 8, 2.0));
  CHECK(progress_line("ring", 0, 0, 2.0) == progress_line("ring", 8, 8, 2.0));
}

TEST_CASE("nothing is written to a file or a pipe", "[progress]") {
  File const file(std::tmpfile(), &std::fclose);
  REQUIRE(file);
  run_task(file.get());
  CHECK(std::ftell(file.get()) == 0);

  int ends[2];
  REQUIRE(pipe(ends) == 0);
  File const in(fdopen(ends[0], "rb"), &std::fclose);
  {
    File const out(fdopen(ends[1], "wb"), &std::fclose);
    run_task(out.get());
  }
  CHECK(std::fgetc(in.get()) == EOF);
}

TEST_CASE("a terminal shows the bar grow and then an empty line", "[progress]") {
  int const controller = posix_openpt(O_RDWR | O_NOCTTY);
  File const terminal = terminal_of(controller);
  if (!terminal) {
    WARN("skipped: this system opens no pseudo-terminal (" << std::strerror(errno) << ")");
  } else {
    run_task(terminal.get());
    std::string seen;
    char buffer[4096];
    pollfd waiting{controller, POLLIN, 0};
    while (poll(&waiting, 1, 200) == 1) {
      auto const count = read(controller, buffer, sizeof buffer);
      if (count <= 0) break;
      seen.append(buffer, static_cast<std::size_t>(count));
    }
    for (char const* share : {" 0 %", " 25 %", " 50 %", " 75 %", " 100 %"}) {
      CAPTURE(share);
      CHECK(seen.find(share) != std::string::npos);
    }
    CHECK(seen.find('\n') == std::string::npos);
    REQUIRE(seen.size() > 40);
    auto const last_drawn = seen.rfind('s');
    CHECK(seen.substr(last_drawn + 1).find_first_not_of(" \r") == std::string::npos);
    CHECK(seen.back() == '\r');
  }
  if (controller >= 0) close(controller);
}
