// Calls of one RingAttention or CachedAttention that overlap, on two threads or by a predicate: refused instead of
// sharing buffers.

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <string>

#include "annulus/attention/cache/cached_attention.hpp"
#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "support/refusal.hpp"

using namespace annulus;

namespace {

using Rows = Eigen::Tensor<float, 4, Eigen::RowMajor>;

Rows halves() {
  Rows tensor(1, 5, 2, 4);
  tensor.setConstant(0.5f);
  return tensor;
}

template <class Attention>
annulus_test::Thrown attempt_call(Attention& attention) {
  Rows const x = halves();
  return annulus_test::attempt([&] { attention.forward(x, x, x); });
}

}  // namespace

TEST_CASE("a call from another thread while one runs throws, and the running call is right", "[attention]") {
  SelfRing ring;
  ReferenceBackend backend;
  std::latch started(1), refused(1);
  std::atomic<bool> first = true;
  auto const predicate = [&](Index, Index, Index, Index) {
    if (first.exchange(false)) {
      started.count_down();
      refused.wait();
    }
    return true;
  };
  RingAttention attention(ring, backend, {}, predicate);
  auto running = std::async(std::launch::async, [&] {
    Rows const x = halves();
    return attention.forward(x, x, x);
  });
  started.wait();
  auto const thrown = attempt_call(attention);
  refused.count_down();
  check_thrown(thrown, "Error", "forward was called on a RingAttention while another call of it runs");
  Rows const output = running.get().output;
  CHECK(std::all_of(output.data(), output.data() + output.size(), [](float x) { return x == 0.5f; }));
  CHECK(attempt_call(attention).type == "nothing");  // the next call is accepted
}

TEST_CASE("a call from within a predicate throws", "[attention]") {
  SelfRing ring;
  ReferenceBackend backend;
  struct Recursive {
    std::function<void()>* call;
    bool operator()(Index, Index, Index, Index) const {
      (*call)();
      return true;
    }
  };
  std::function<void()> call;
  RingAttention attention(ring, backend, {}, Recursive{&call});
  Rows const x = halves();
  call = [&] { attention.forward(x, x, x); };
  check_thrown(attempt_call(attention), "Error", "in a predicate");

  KvCache<float, ReferenceBackend> cache(ring, backend, {.kv_heads = 2, .head_dim = 4, .value_dim = 4});
  CachedAttention cached(ring, backend, {}, Recursive{&call});
  std::array const sequence{cache.create()};
  cached.append(cache, sequence, x, x);
  call = [&] { cached.decode(cache, sequence, x); };
  check_thrown(annulus_test::attempt(call), "Error",
               "decode was called on a CachedAttention while another call of it runs");
}
