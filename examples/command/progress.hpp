#pragma once
// Progress bar on a terminal; silent if the stream is a pipe or a file.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>

#include <unistd.h>

namespace annulus_command {

/// "forward  [##########----------]  50 %  12 s", with `done` of `total` steps; total 0 is a finished task.
inline std::string progress_line(std::string const& label, std::size_t done, std::size_t total, double seconds) {
  constexpr std::size_t width = 30;
  double const share = total == 0 ? 1.0 : static_cast<double>(std::min(done, total)) / static_cast<double>(total);
  auto const filled = static_cast<std::size_t>(share * width);
  return label + "  [" + std::string(filled, '#') + std::string(width - filled, '-') + "]  " +
         std::to_string(static_cast<int>(share * 100)) + " %  " + std::to_string(static_cast<long>(seconds)) + " s";
}

/// Counts the steps of a task and draws a bar. Any thread may call advance(). The destructor clears the bar, so that
/// later output starts on its line.
class Progress {
 public:
  Progress(std::string label, std::size_t total, std::FILE* stream = stderr)
      : label_(std::move(label)), total_(total), stream_(stream), on_terminal_(isatty(fileno(stream)) == 1) {
    if (on_terminal_) draw();
  }
  Progress(Progress const&) = delete;
  Progress& operator=(Progress const&) = delete;
  ~Progress() {
    if (on_terminal_) put({}, "\r");
  }

  void advance(std::size_t steps = 1) {
    if (!on_terminal_) return;
    std::lock_guard const lock(mutex_);
    done_ += steps;
    draw();
  }

 private:
  /// Redraws only if the line has changed: at most a hundred times and once a second.
  void draw() {
    std::chrono::duration<double> const elapsed = std::chrono::steady_clock::now() - begin_;
    std::string line = progress_line(label_, done_, total_, elapsed.count());
    if (line == drawn_) return;
    put(line, "");
    drawn_ = std::move(line);
  }

  /// Overwrites the drawn line with `line`, padded with blanks, then writes `end`.
  void put(std::string const& line, char const* end) {
    auto const width = static_cast<int>(std::max(line.size(), drawn_.size()));
    std::fprintf(stream_, "\r%-*s%s", width, line.c_str(), end);
    std::fflush(stream_);
  }

  std::string label_;
  std::size_t total_;
  std::FILE* stream_;
  bool on_terminal_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::size_t done_ = 0;
  std::string drawn_;
};

}  // namespace annulus_command
