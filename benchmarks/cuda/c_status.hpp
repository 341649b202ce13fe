#pragma once
// Exceptions as statuses of C functions.

#include <cstdio>
#include <exception>

/// 0, or 1 after a message on stderr if work() throws.
template <class Work>
int status_of(Work const& work) {
  try {
    work();
    return 0;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
