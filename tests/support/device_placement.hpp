#pragma once
// Placement of shards in DeviceTensors, for the CUDA runtime of support/cuda_on_threads, whose memory is host memory.

#include <cstddef>

#include "annulus/tensor/cuda/device_tensor.hpp"

namespace annulus_test {

/// A Placement for run_rank and for runs of the adapters.
struct DevicePlacement {
  template <class T, std::size_t N>
  static annulus::DeviceTensor<T, N> place(annulus::TensorView<T const, N> shard) {
    return annulus::to_device(shard);
  }
  template <class T, std::size_t N>
  static annulus::TensorView<T const, N> host(annulus::TensorView<T const, N, annulus::CudaMemory> view) {
    return view.template in_space<annulus::HostMemory>();
  }
};

}  // namespace annulus_test
