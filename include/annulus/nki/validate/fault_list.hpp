#pragma once
// List of the validator's findings, limited to a maximum number and without duplicates.

#include <string_view>
#include <vector>

#include "annulus/nki/validate/finding.hpp"

namespace annulus::nki::validate_detail {

/// Collects the findings of all passes.
class FaultList {
 public:
  explicit FaultList(std::size_t most) : most_(most) {}

  bool empty() const { return findings_.empty(); }
  bool full() const { return findings_.size() >= most_; }
  std::vector<Finding> take() && { return std::move(findings_); }

  /// `at` identifies the place, so an instruction in a loop is reported once. place() is called for new findings only.
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
