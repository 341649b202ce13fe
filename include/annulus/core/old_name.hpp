#pragma once
// Old names of renamed members, which users may set until the next version.

#include <concepts>

namespace annulus::detail {

/// A member under its old name, next to the member under its new one. Setting it is deprecated; it cannot be read.
template <class T>
class OldName {
 public:
  OldName() = default;  ///< not used

  /// The value that a user gives under the old name.
  template <class X>
  requires std::convertible_to<X const&, T>
  [[deprecated(
      "renamed: group is ranks_per_group, query_segments is query_documents, key_segments is key_documents, segments "
      "is document_ids")]] OldName(X const& value)
      : value_(value) {}

  /// The value of both members: that of the new name, unless only the old one is used.
  T merged(T const& renamed) const { return static_cast<bool>(renamed) ? renamed : value_; }

  bool operator==(OldName const&) const = default;

 private:
  T value_{};
};

}  // namespace annulus::detail
