#pragma once
// Definition of attend_on_rank, which calls the library with one of the backends that the command offers. Included only
// by the files that instantiate it.

#include <annulus/backend/backend.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/backend/nki.hpp>
#include <annulus/backend/reference/reference.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "attend_on_backend.hpp"
#include "attend_on_ranks.hpp"
#include "errors.hpp"

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

/// Calls function(backend) with a new backend. The name and threads must have passed require_backend.
template <class Function>
void with_backend(std::string_view name, int threads, Function&& function) {
  for_each_backend([&](auto const& entry) {
    if (entry.name == name) function(entry.make(threads));
  });
}

template <annulus::Scalar T>
Results<T> attend_on_rank(AnyRing& ring, Call const& call, Inputs<T> const& own, Timeline& timeline) {
  Results<T> results;
  with_backend(call.backend, call.threads,
               [&](auto backend) { results = attend_on_backend(backend, ring, call, own, timeline); });
  return results;
}

}  // namespace annulus_command
