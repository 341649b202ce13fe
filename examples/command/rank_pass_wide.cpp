// Instantiations of attend_on_rank for float and double, and questions about the list of backends.

#include "rank_pass_definition.hpp"

namespace annulus_command {

template Results<double> attend_on_rank(AnyRing&, Call const&, Inputs<double> const&, Timeline&);
template Results<float> attend_on_rank(AnyRing&, Call const&, Inputs<float> const&, Timeline&);

std::string names_of_backends() {
  std::string names;
  for_each_backend([&](auto const& entry) { names.append(entry.name).append("|"); });
  return names.append(gpu_backend);
}

bool backend_writes_bias_gradients(std::string_view name) {
  bool writes = name == gpu_backend;
  for_each_backend([&]<class B>(BuiltIn<B> const& entry) {
    if (entry.name == name) writes = annulus::ClosingBackend<B>;
  });
  return writes;
}

void require_backend(std::string_view name, int threads) {
  bool known = name == gpu_backend, takes_threads = false;
  for_each_backend([&]<class Entry>(Entry const& entry) {
    if (entry.name != name) return;
    known = true;
    takes_threads = Entry::takes_threads;
  });
  if (known && threads > 1 && !takes_threads)
    throw InputError("--threads " + std::to_string(threads) + ": the " + std::string(name) +
                     " backend computes on one thread per rank; accepted: 0 or 1");
  if (!known) throw InputError("--backend '" + excerpt(name) + "' is not known; accepted: " + names_of_backends());
}

}  // namespace annulus_command
