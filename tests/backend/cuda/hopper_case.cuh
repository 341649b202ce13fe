#pragma once
// A case of hopper_check: extents, coverage, and operands on the GPU with dense copies for the reference.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "annulus/backend/cuda/step_arguments.hpp"
#include "annulus/core/cuda/memory.hpp"

namespace hopper_check {

namespace cuda = annulus::cuda::detail;

inline constexpr int far = 1 << 30;

enum class Rows { band, documents, causal_documents, scattered, backwards };  ///< all but band are ranges

struct Case {
  int queries, keys, query_heads, kv_heads, batch;
  Rows rows = Rows::band;
  int low = -far, high = far;
  float amplitude = 1;     ///< of q: large ones make references move
  float scale_factor = 1;  ///< the softmax scale is this / sqrt(head_dim)
  int sinks = 0;
  bool same_keys = false;    ///< all keys are equal: every probability is 1 / (keys seen)
  bool heads_outer = false;  ///< [batch, heads, rows, dim] instead of [batch, rows, heads, dim]

  std::string text() const {
    static char const* const names[] = {"band", "documents", "causal documents", "scattered", "backwards"};
    std::string s = std::to_string(queries) + " x " + std::to_string(keys) + ", heads " + std::to_string(query_heads) +
                    "/" + std::to_string(kv_heads) + ", batch " + std::to_string(batch) + ", " +
                    names[static_cast<int>(rows)];
    if (rows == Rows::band && (low > -far || high < far)) s += " " + std::to_string(low) + ".." + std::to_string(high);
    if (amplitude != 1) s += ", amplitude " + std::to_string(static_cast<int>(amplitude));
    if (scale_factor != 1) s += ", scale times " + std::to_string(static_cast<int>(scale_factor));
    if (sinks > 0) s += ", " + std::to_string(sinks) + " sinks";
    if (same_keys) s += ", equal keys";
    return s;
  }

  /// Keys that row i of an item sees.
  int2 seen(int item, int i) const {
    switch (rows) {
      case Rows::band:
        return {std::max(i + low, 0), std::min(i + high + 1, keys)};
      case Rows::documents:
      case Rows::causal_documents: {
        int const length = 200 + 37 * item, first = i / length * length;
        int const last = rows == Rows::documents ? first + length : i + 1;
        return {std::min(first, keys), std::min(last, keys)};
      }
      case Rows::scattered: {
        unsigned const x = static_cast<unsigned>(i * 2654435761u + static_cast<unsigned>(item) * 40503u) >> 8;
        int const begin = static_cast<int>(x % static_cast<unsigned>(keys + 40)) - 20;
        return {begin, begin + static_cast<int>(x / 7 % 300) - 30};
      }
      case Rows::backwards: {
        int const begin = std::max(keys - 200 - i, 0);
        return {begin, std::min(begin + 150, keys)};
      }
    }
    return {0, 0};
  }
};

inline std::uint64_t& random_state() {
  static std::uint64_t state = 1;
  return state;
}
inline float uniform() {
  std::uint64_t& state = random_state();
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<float>(state >> 40) * (1.f / 16777216.f);
}
inline float normal() {  // near enough: a sum of four uniforms, unit variance
  return (uniform() + uniform() + uniform() + uniform() - 2.f) * 1.7320508f;
}

inline void check(cudaError_t error, char const* call) { cuda::check(error, call); }

/// Waits for the GPU. A kernel that does not end within 20 s ends the program, because nothing else can end the kernel.
inline void finish(char const* what) {
  auto const start = std::chrono::steady_clock::now();
  for (cudaError_t state; (state = cudaStreamQuery(nullptr)) != cudaSuccess;) {
    if (state != cudaErrorNotReady) check(state, what);
    if (std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) continue;
    std::printf("FAILED %s does not end\n", what);
    std::fflush(stdout);
    std::_Exit(1);
  }
}

/// An array on the GPU.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(long long count)
      : count_(static_cast<std::size_t>(count)),
        bytes_(cuda::allocate_device(std::max<long long>(16, count * sizeof(T)))) {}
  explicit DeviceArray(std::vector<T> const& values) : DeviceArray(static_cast<long long>(values.size())) {
    put(values);
  }

  T* data() const { return reinterpret_cast<T*>(bytes_.data()); }
  std::size_t count() const { return count_; }
  void put(std::vector<T> const& values) {
    check(cudaMemcpy(data(), values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<T> get() const {
    std::vector<T> values(count_);
    check(cudaMemcpy(values.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }
  void fill(int byte) { check(cudaMemset(data(), byte, count_ * sizeof(T)), "cudaMemset"); }

 private:
  std::size_t count_;
  cuda::DeviceBytes bytes_;
};

/// A tensor [batch, rows, heads, dim] with space between heads, rows and items that nobody may touch.
template <class T>
struct Padded {
  int batch, rows, heads, dim;
  long long batch_stride, row_stride, head_stride;
  DeviceArray<T> device;

  Padded(int batch, int rows, int heads, int dim, bool heads_outer)
      : batch(batch),
        rows(rows),
        heads(heads),
        dim(dim),
        batch_stride(static_cast<long long>(rows + 1) * (heads + 1) * (dim + 32)),
        row_stride(heads_outer ? dim + 32 : (heads + 1) * (dim + 32)),
        head_stride(heads_outer ? static_cast<long long>(rows + 1) * (dim + 32) : dim + 32),
        device(batch * batch_stride + 16) {
    device.fill(0xFF);
  }

  template <class U = T>
  cuda::StridedRows<U> view(int first_row = 0) const {
    return {device.data() + first_row * row_stride, batch_stride, row_stride, head_stride};
  }
  std::size_t at(int b, int i, int h, int d) const {
    return static_cast<std::size_t>(b * batch_stride + i * row_stride + h * head_stride + d);
  }
  std::size_t dense_at(int b, int i, int h, int d) const {
    return ((static_cast<std::size_t>(b) * heads + h) * rows + i) * dim + d;
  }
  template <class Function>
  void for_each(Function&& function) const {
    for (int b = 0; b < batch; ++b)
      for (int h = 0; h < heads; ++h)
        for (int i = 0; i < rows; ++i)
          for (int d = 0; d < dim; ++d) function(at(b, i, h, d), dense_at(b, i, h, d));
  }
  std::size_t dense_count() const { return static_cast<std::size_t>(batch) * heads * rows * dim; }

  /// Random elements; returns them dense, as rounded to T. `same_rows`: all rows of a head are its first.
  std::vector<float> randomize(float amplitude, bool same_rows = false) {
    std::vector<T> values = device.get();
    std::vector<float> dense(dense_count());
    for_each([&](std::size_t padded, std::size_t place) {
      std::size_t const first = place / (static_cast<std::size_t>(rows) * dim) * rows * dim + place % dim;
      float const x = same_rows && place != first ? dense[first] : amplitude * normal();
      values[padded] = static_cast<T>(x);
      dense[place] = static_cast<float>(values[padded]);
    });
    device.put(values);
    return dense;
  }
  /// True if all that lies between the elements is still 0xFF.
  bool padding_is_untouched(std::vector<T> const& values) const {
    std::vector<bool> element(values.size(), false);
    for_each([&](std::size_t padded, std::size_t) { element[padded] = true; });
    auto const* const bytes = reinterpret_cast<unsigned char const*>(values.data());
    for (std::size_t i = 0; i < values.size() * sizeof(T); ++i)
      if (!element[i / sizeof(T)] && bytes[i] != 0xFF) return false;
    return true;
  }
};

}  // namespace hopper_check
