#pragma once
// Calls on a cache of one rank, with or without the option that gives them the bits of training.

#include <annulus/attention/cache/cached_attention.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/comm/self.hpp>

#include <array>
#include <cstdint>

#include "attention/values.hpp"

namespace annulus_bench {

/// Extents of a sequence. chunk: rows that are read at a time; decode then adds one row.
struct ServingCase {
  Index tokens, heads, dim, chunk;
  bool decodes;
};

/// A sequence that is read in chunks, or one whose last row is decoded.
class ServingCaller {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

 public:
  ServingCaller(ServingCase const& one, bool reproducible)
      : case_(one),
        q_(1, one.chunk, one.heads, one.dim),
        k_(q_),
        v_(q_),
        row_(1, 1, one.heads, one.dim),
        cache_(self_, backend_, {.kv_heads = one.heads, .head_dim = one.dim, .value_dim = one.dim, .pages = pages()}),
        attention_(self_, backend_, {.mask = annulus::causal(), .reproducible = reproducible, .checked = false}) {
    for (std::uint64_t stream = 0; Tensor * x : {&q_, &k_, &v_, &row_}) {
      for (Index i = 0; i < x->size(); ++i)
        x->data()[i] = static_cast<float>(value_at(stream, static_cast<std::uint64_t>(i)));
      ++stream;
    }
    if (!one.decodes) return;
    sequence_ = {cache_.create()};
    for (Index row = 0; row < one.tokens; row += one.chunk) attention_.append(cache_, sequence_, k_, v_);
  }

  void run() {
    if (case_.decodes) {
      attention_.decode(cache_, sequence_, row_);
      return;
    }
    sequence_ = {cache_.create()};
    for (Index row = 0; row < case_.tokens; row += case_.chunk) {
      attention_.append(cache_, sequence_, k_, v_);
      attention_.prefill(cache_, sequence_, q_);
    }
    cache_.release(sequence_[0]);
  }

 private:
  Index pages() const { return annulus::detail::ceil_divide(case_.tokens, annulus::CacheShape{}.page_rows); }

  ServingCase case_;
  annulus::SelfRing self_;
  annulus::CpuBackend backend_;
  Tensor q_, k_, v_, row_;
  annulus::KvCache<float> cache_;
  annulus::CachedAttention<annulus::SelfRing, annulus::CpuBackend> attention_;
  std::array<Index, 1> sequence_{};
};

}  // namespace annulus_bench
