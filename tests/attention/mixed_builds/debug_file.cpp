// A file of a program that is compiled without NDEBUG.

#undef NDEBUG
#include <annulus/annulus.hpp>

bool debug_file_checks() { return annulus::detail::is_checked<annulus::HostMemory>(std::nullopt); }
