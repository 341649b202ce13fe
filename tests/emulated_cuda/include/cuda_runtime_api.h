#pragma once
// The part of the CUDA runtime that the library calls, on one emulated GPU: its memory is host memory, and the work of
// a stream is done when something waits for it, so that a missing wait leaves results unwritten. While a stream is
// captured in a graph, waits for it and allocations are errors.

#include <vector_types.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorStreamCaptureUnsupported = 900
};

/// A graph: the work of one stream, in its order.
struct CUgraph_st {
  std::vector<std::function<void()>> work;
};
using cudaGraph_t = CUgraph_st*;
struct CUgraphExec_st : CUgraph_st {};
using cudaGraphExec_t = CUgraphExec_st*;

/// A stream: work that has been put on it and not been done, and the graph in which it is captured, if it is.
struct CUstream_st {
  std::vector<std::function<void()>> work;
  cudaGraph_t graph = nullptr;
};
using cudaStream_t = CUstream_st*;
struct CUevent_st {};
using cudaEvent_t = CUevent_st*;

namespace emulated_cuda {

/// The GPU: it does one piece of work at a time, whatever thread waits for it.
struct Gpu {
  std::recursive_mutex mutex;
  CUstream_st default_stream;
  std::vector<cudaStream_t> streams;

  static Gpu& instance() {
    static Gpu gpu;
    return gpu;
  }

  cudaStream_t stream(cudaStream_t given) { return given ? given : &default_stream; }
  void put(cudaStream_t given, std::function<void()> work) {
    std::lock_guard const lock(mutex);
    cudaGraph_t const graph = stream(given)->graph;
    (graph ? graph->work : stream(given)->work).push_back(std::move(work));
  }
  void finish(cudaStream_t given) {
    std::lock_guard const lock(mutex);
    for (auto& work : std::exchange(stream(given)->work, {})) work();
  }
  bool captures() {
    std::lock_guard const lock(mutex);
    return std::any_of(streams.begin(), streams.end(), [](cudaStream_t each) { return each->graph; });
  }
  void finish_all() {
    std::lock_guard const lock(mutex);
    finish(nullptr);
    for (cudaStream_t const each : streams) finish(each);
  }
};

}  // namespace emulated_cuda

constexpr unsigned cudaEventDisableTiming = 2, cudaStreamNonBlocking = 1;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDefault = 4 };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0 };
struct cudaFuncAttributes {
  int maxThreadsPerBlock;
};

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline char const* cudaGetErrorString(cudaError_t) { return "an error of the emulated GPU"; }
inline char const* cudaGetErrorName(cudaError_t) { return "emulated"; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor         ? 9
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 232448
           : attribute == cudaDevAttrMultiProcessorCount          ? 4
                                                                  : 0;
  return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, void const*) { return cudaSuccess; }
inline cudaError_t cudaFuncSetAttribute(void const*, cudaFuncAttribute, int) { return cudaSuccess; }

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  std::lock_guard const lock(emulated_cuda::Gpu::instance().mutex);
  emulated_cuda::Gpu::instance().streams.push_back(*stream = new CUstream_st);
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  auto& gpu = emulated_cuda::Gpu::instance();
  std::lock_guard const lock(gpu.mutex);
  gpu.finish(stream);
  std::erase(gpu.streams, stream);
  delete stream;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream && stream->graph) return cudaErrorStreamCaptureUnsupported;
  return emulated_cuda::Gpu::instance().finish(stream), cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream && stream->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return stream->graph = new CUgraph_st, cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return *graph = std::exchange(stream->graph, nullptr), cudaSuccess;
}
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void*, std::size_t* count) {
  return *count = graph->work.size(), cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long = 0) {
  return *executable = new CUgraphExec_st{*graph}, cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (auto const& work : executable->work) emulated_cuda::Gpu::instance().put(stream, work);
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st, cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }

/// Memory of the GPU and pinned memory are 256-byte aligned and begin as bytes 0xFF, as numbers NaN.
inline cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  if (emulated_cuda::Gpu::instance().captures()) return cudaErrorStreamCaptureUnsupported;
  *data = bytes == 0 ? nullptr : std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*data) std::memset(*data, 0xFF, bytes);
  return bytes == 0 || *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaMallocHost(void** data, std::size_t bytes) { return cudaMalloc(data, bytes); }
inline cudaError_t cudaFree(void* data) {
  emulated_cuda::Gpu::instance().finish_all();  // as the runtime does
  std::free(data);
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
inline cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  emulated_cuda::Gpu::instance().put(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* data, int byte, std::size_t bytes, cudaStream_t stream) {
  emulated_cuda::Gpu::instance().put(stream, [=] { std::memset(data, byte, bytes); });
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, void const* from, std::size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}
