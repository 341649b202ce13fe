#pragma once
// Standard output, captured in memory.

#include <iostream>
#include <sstream>
#include <string>

namespace annulus_fuzz {

/// What is written to std::cout in its lifetime.
class CapturedOutput {
 public:
  CapturedOutput() : before_(std::cout.rdbuf(stream_.rdbuf())) {}
  CapturedOutput(CapturedOutput const&) = delete;
  CapturedOutput& operator=(CapturedOutput const&) = delete;
  ~CapturedOutput() { std::cout.rdbuf(before_); }

  std::string text() const { return stream_.str(); }

 private:
  std::ostringstream stream_;
  std::streambuf* before_;
};

}  // namespace annulus_fuzz
