// Files with and without NDEBUG in one program that links annulus::cpu: the library decides what unset options mean.

#if !defined(NDEBUG)
#define NDEBUG
#endif
#include <annulus/annulus.hpp>

#include <cstdio>

bool debug_file_checks();

int main() {
  bool const here = annulus::detail::is_checked<annulus::HostMemory>(std::nullopt);
  std::printf("file with NDEBUG: %d, file without: %d, library: %d\n", here, debug_file_checks(),
              annulus::detail::is_checked_by_default());
  return here != debug_file_checks() || here != annulus::detail::is_checked_by_default();
}
