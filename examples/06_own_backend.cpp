// Demonstrates: a custom backend, which times the reference backend and rejects dropout before any rows are sent.
#include <annulus/annulus.hpp>
#include <chrono>
#include <iostream>

class TimedBackend : public annulus::ReferenceBackend {
 public:
  annulus::Support supports(annulus::Problem const& problem) const {
    if (problem.dropout.active()) return annulus::Support::no("TimedBackend: no dropout; accepted: dropout.probability 0");
    return annulus::ReferenceBackend::supports(problem);
  }

  template <class Step, class Operands, class State>
  void fold(Step const& step, Operands const& operands, State state) {
    auto const begin = std::chrono::steady_clock::now();
    annulus::ReferenceBackend::fold(step, operands, state);
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  double seconds = 0;
};

static_assert(annulus::Backend<TimedBackend>);

int main() {
  Eigen::Tensor<float, 4> q(1, 300, 2, 32), k(1, 300, 2, 32), v(1, 300, 2, 32);
  q.setRandom();
  k.setRandom();
  v.setRandom();
  annulus::SelfRing ring;
  TimedBackend backend;
  annulus::ring_attention_forward(ring, backend, {}, q, k, v);
  std::cout << "folding took " << backend.seconds * 1e3 << " ms\n";
  try {
    annulus::ring_attention_forward(ring, backend, {.dropout = {.probability = 0.1}}, q, k, v);
  } catch (annulus::UnsupportedError const& error) {
    std::cout << "refused: " << error.what() << '\n';
    return 0;
  }
  return 1;
}
