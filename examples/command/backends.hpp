#pragma once
// List of the backends that the command offers; a new backend is one entry.

#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/backend/nki.hpp>
#include <annulus/backend/reference/reference.hpp>
#include <string>
#include <string_view>
#include <tuple>

#include "input_error.hpp"

namespace annulus_command {

/// A backend and its name. A backend without a member `threads` (0: it chooses) computes on one thread per rank.
template <class B>
struct BuiltIn {
  std::string_view name;

  static constexpr bool takes_threads = requires { B{.threads = 1}; };

  B make([[maybe_unused]] int threads) const {
    if constexpr (takes_threads)
      return B{.threads = threads};
    else
      return B();
  }
};

inline constexpr std::tuple backends{
    BuiltIn<annulus::CpuBackend>{"cpu"},
    BuiltIn<annulus::ReferenceBackend>{"reference"},
    BuiltIn<annulus::NkiBackend>{"nki"},
};

/// Calls function(entry) for each backend of the list.
template <class Function>
void for_each_backend(Function&& function) {
  std::apply([&](auto const&... entry) { (function(entry), ...); }, backends);
}

/// "cpu|...".
inline std::string names_of_backends() {
  std::string names;
  for_each_backend([&](auto const& entry) {
    names += (names.empty() ? "" : "|") + std::string(entry.name);
  });
  return names;
}

/// Throws InputError if the backend is unknown or cannot use this number of threads per rank.
inline void require_backend(std::string_view name, int threads) {
  bool known = false;
  for_each_backend([&]<class Entry>(Entry const& entry) {
    if (entry.name != name) return;
    known = true;
    if constexpr (!Entry::takes_threads) {
      if (threads > 1)
        throw InputError("--threads " + std::to_string(threads) + ": the " + std::string(name) +
                         " backend computes on one thread per rank; accepted: 0 or 1");
    }
  });
  if (!known)
    throw InputError("--backend '" + excerpt(name) + "' is not known; accepted: " + names_of_backends());
}

/// Calls function(backend) with a new backend. The name and threads must have passed require_backend.
template <class Function>
void with_backend(std::string_view name, int threads, Function&& function) {
  for_each_backend([&](auto const& entry) {
    if (entry.name == name) function(entry.make(threads));
  });
}

}  // namespace annulus_command
