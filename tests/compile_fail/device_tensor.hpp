#pragma once
// A memory space of a device, and a tensor in it, for calls that do not compile.

#include <annulus/tensor/tensor_like.hpp>

struct DeviceMemory {
  struct Queue {
    void wait() const {}
    int number = 0;
  };
};
struct DeviceTensor {};

template <>
struct annulus::TensorTraits<DeviceTensor> {
  using scalar = float;
  using memory_space = DeviceMemory;
  static constexpr std::size_t rank = 4;
  static annulus::TensorView<float, 4, DeviceMemory> view(DeviceTensor const&) { return {}; }
};
