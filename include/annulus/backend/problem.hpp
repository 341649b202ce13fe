#pragma once
// Problem: one pass of one rank as plain data, which a backend accepts or rejects.

#include <optional>
#include <string>

#include "annulus/core/scalar.hpp"
#include "annulus/core/shape.hpp"
#include "annulus/mask/mask.hpp"
#include "annulus/numerics/dropout.hpp"

namespace annulus {

/// One pass of one rank, as Backend::supports sees it. The flags say which optional operands are given.
struct Problem {
  Pass pass = Pass::forward;
  DataType data_type = DataType::float32;
  AttentionShape shape{};
  int ranks = 1;
  Index local_queries = 0;
  Index local_keys = 0;
  Mask mask{};
  double softmax_scale = 1;
  double logit_softcap = 0;
  Dropout dropout{};
  bool bias = false;
  bool bias_gradient = false;
  bool boolean_mask = false;
  bool predicate = false;
  bool segments = false;  ///< document ids
  Index sinks = 0;        ///< sink logits per query head
};

/// Answer of a backend: supported, or the reason why not.
class Support {
 public:
  static Support yes() { return {}; }
  static Support no(std::string reason) {
    Support support;
    support.reason_ = std::move(reason);
    return support;
  }

  explicit operator bool() const { return !reason_; }
  /// Empty if supported.
  std::string reason() const { return reason_.value_or(""); }

 private:
  std::optional<std::string> reason_;
};

}  // namespace annulus
