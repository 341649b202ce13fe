// A ring whose operands are in the memory of a device, staged over MPI: the same bits as in host memory.

#include "conformance/device_ring.hpp"

#include <vector>

#include "annulus/attention/ring_attention.hpp"
#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

template <class View>
std::vector<float> values_of(View const& view) {
  std::vector<float> values;
  annulus::detail::for_each_element(view, view, [&](float const& x, float const&) { values.push_back(x); });
  return values;
}

}  // namespace

TEST_CASE("operands in the memory of a device are staged for MPI", "[mpi][foreign]") {
  MpiRing ring(MPI_COMM_WORLD, options_of_tests());
  Tensor q(1, 5, 4, 6), k(1, 5, 2, 6), dout(1, 5, 4, 6);
  for (Tensor* x : {&q, &k, &dout})
    for (Index i = 0; i < x->size(); ++i) x->data()[i] = static_cast<float>((11 * i + 5 * ring.rank()) % 23) / 23;
  for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
    Options const options{.mask = causal(), .rotation = rotation, .checked = false};
    ReferenceBackend host_backend;
    RingAttention host_attention(ring, host_backend, options);
    auto const expected = host_attention.forward(q, k, k);
    auto const gradients = host_attention.backward(dout, expected, q, k, k);

    HostOnlyRing host(ring);
    ForeignStaging staging;
    StagedRing<ForeignMemory, HostOnlyRing<MpiRing>, ForeignStaging> staged(host, staging);
    ForeignBackend<> backend;
    RingAttention attention(staged, backend, options);
    auto const place = [](Tensor const& x) { return ForeignPlacement::place(view_of(x)); };
    auto const foreign_q = place(q), foreign_k = place(k), foreign_dout = place(dout);
    auto const forward = attention.forward(foreign_q, foreign_k, foreign_k);
    auto const foreign_gradients = attention.backward(foreign_dout, forward, foreign_q, foreign_k, foreign_k);
    CHECK(values_of(at_rest(forward.output.view())) == values_of(view_of(expected.output)));
    CHECK(values_of(at_rest(foreign_gradients.dq.view())) == values_of(view_of(gradients.dq)));
    CHECK(values_of(at_rest(foreign_gradients.dk.view())) == values_of(view_of(gradients.dk)));
    CHECK(values_of(at_rest(foreign_gradients.dv.view())) == values_of(view_of(gradients.dv)));
    CHECK((staging.copied > 0) == (ring.size() > 1));
    CHECK(backend.misuses() == 0);
  }
}
