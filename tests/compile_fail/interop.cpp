// Calls of the adapters with tensors, rings and backends of different memory spaces, one macro each; without a macro,
// calls that compile.
//
// expect EJKERNEL_RING: communicator and backend have different memory spaces
// expect EJKERNEL_OPERAND: another memory space than the communicator and the backend
// expect EJKERNEL_DOUT: another memory space than the communicator and the backend
// expect NKILIB_RING: communicator and backend have different memory spaces
// expect NKILIB_OPERAND: another memory space than the communicator and the backend
// expect NKILIB_LSE: another memory space than the communicator and the backend
// expect UNPERMUTE: another memory space than the communicator and the backend

#include <annulus/backend/reference/reference.hpp>
#include <annulus/comm/device_ring.hpp>
#include <annulus/comm/self.hpp>
#include <annulus/interop/ejkernel.hpp>
#include <annulus/interop/nkilib.hpp>

#include "compile_fail/device_tensor.hpp"

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using namespace annulus;

void calls(Tensor const& x, Eigen::Tensor<float, 3> const& rows, DeviceTensor const& there) {
  SelfRing ring;
  DeviceRing<DeviceMemory, SelfRing> device_ring(ring);
  ReferenceBackend backend;

  static_cast<void>(there);
#if defined(EJKERNEL_RING)
  ejkernel::ring_attention(device_ring, backend, x, x, x);
#elif defined(EJKERNEL_OPERAND)
  ejkernel::ring_attention(ring, backend, x, there, x);
#elif defined(EJKERNEL_DOUT)
  ejkernel::ring_attention_bwd(ring, backend, ejkernel::ring_attention_fwd(ring, backend, x, x, x), there);
#elif defined(NKILIB_RING)
  nkilib::ring_attention_spmd_fwd(device_ring, backend, x, x, x);
#elif defined(NKILIB_OPERAND)
  nkilib::ring_attention_spmd_fwd(ring, backend, there, x, x);
#elif defined(NKILIB_LSE)
  nkilib::ring_attention_spmd_bwd(ring, backend, x, x, x, x, x, there);
#elif defined(UNPERMUTE)
  nkilib::ring_attention_unpermute(ring, there);
#else
  ejkernel::ring_attention_bwd(ring, backend, ejkernel::ring_attention_fwd(ring, backend, x, x, x), x);
  nkilib::ring_attention_spmd_fwd(ring, backend, x, x, x);
  nkilib::ring_attention_spmd_bwd(ring, backend, x, x, x, x, x, x);
  nkilib::ring_attention_unpermute(ring, rows);
  nkilib::ring_attention_unpermute(ring, backend, rows);
#endif
}
