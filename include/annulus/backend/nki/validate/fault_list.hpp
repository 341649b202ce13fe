#pragma once
// FaultList: the findings of a validation, up to a number.

#include <string_view>
#include <vector>

#include "annulus/backend/nki/validate/finding.hpp"

namespace annulus::nki::validate_detail {

class FaultList {
 public:
  explicit FaultList(std::size_t most) : most_(most) {}

  bool empty() const { return findings_.empty(); }
  bool full() const { return findings_.size() >= most_; }
  std::vector<Finding> take() && { return std::move(findings_); }

  /// `at` tells places apart. What runs many times is reported for the first; place() is called only if it is new.
  template <class Place, class... Parts>
  void add(void const* at, std::string_view rule, std::string_view instruction, Place&& place, std::string_view operand,
           Parts const&... parts) {
    if (full()) return;
    for (std::size_t i = 0; i < findings_.size(); ++i)
      if (places_[i] == at && findings_[i].rule == rule && findings_[i].operand == operand) return;
    places_.push_back(at);
    findings_.push_back(
        {std::string(rule), std::string(instruction), place(), std::string(operand), message_of(parts...)});
  }

 private:
  std::size_t most_;
  std::vector<Finding> findings_;
  std::vector<void const*> places_;
};

}  // namespace annulus::nki::validate_detail
