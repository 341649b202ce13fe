#pragma once
// Cache of step kernels: steps of the same shape and the same visible ranges run the same program.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

/// Everything that the program of a step kernel depends on, for a fixed target and number of cores.
using KernelKey = std::vector<std::int64_t>;

/// Key of a step kernel: pass, shape, types, factors, pieces, and the range that each query row sees.
inline KernelKey key_of(Pass pass, KernelSpec const& spec, RingMask const& mask) {
  auto const& shape = spec.shape;
  KernelKey key{pass == Pass::backward,
                shape.batch,
                shape.query_heads,
                shape.kv_heads,
                shape.head_dim,
                shape.value_dim,
                spec.local_queries,
                spec.local_keys,
                static_cast<int>(spec.type),
                std::bit_cast<std::int64_t>(spec.softmax_scale),
                std::bit_cast<std::int64_t>(spec.logit_softcap),
                static_cast<int>(mask.form())};
  auto const add = [&](RowRange range) {
    key.push_back(range.begin);
    key.push_back(range.end);
  };
  for (auto const* pieces : {&mask.query_pieces(), &mask.pieces()}) {
    key.push_back(std::ssize(*pieces));
    for (RowRange piece : *pieces) add(piece);
  }
  // Which tiles are skipped follows from what each row sees.
  for (std::size_t piece = 0; mask.form() != BoundsForm::none && piece < mask.pieces().size(); ++piece)
    for (Index i = 0; i < spec.local_queries; ++i) add(mask.seen(0, 0, 0, piece, i));
  return key;
}

/// Least-recently-used cache of up to `most` programs (at least 1).
class KernelCache {
 public:
  explicit KernelCache(std::size_t most) : most_(std::max(most, std::size_t{1})) {}

  std::size_t size() const { return kernels_.size(); }
  /// Number of programs built so far, evicted ones included.
  Index built() const { return built_; }

  /// The program of that key, built by build() if it is not cached. The reference is valid until the next call.
  template <class Build>
  Program const& get(KernelKey const& key, Build&& build) {
    auto found = kernels_.find(key);
    if (found == kernels_.end()) {
      Program program = build();
      ++built_;
      if (kernels_.size() == most_)
        kernels_.erase(std::ranges::min_element(kernels_, {}, [](auto const& entry) { return entry.second.used; }));
      found = kernels_.emplace(key, Kernel{std::move(program), 0}).first;
    }
    found->second.used = ++clock_;
    return found->second.program;
  }

 private:
  struct Kernel {
    Program program;
    Index used = 0;
  };

  std::size_t most_;
  std::map<KernelKey, Kernel> kernels_;
  Index clock_ = 0, built_ = 0;
};

}  // namespace annulus::nki
