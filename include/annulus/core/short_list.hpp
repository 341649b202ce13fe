#pragma once
// Fixed-capacity list without heap allocation, for the few parts of a payload.

#include <array>
#include <cstddef>
#include <initializer_list>

#include "annulus/core/error.hpp"

namespace annulus::detail {

/// At most `capacity` values, stored inline. push_back throws Error when the list is full.
template <class T, std::size_t capacity>
class ShortList {
 public:
  ShortList() = default;
  ShortList(std::initializer_list<T> values) {
    for (T const& value : values) push_back(value);
  }

  void push_back(T const& value) {
    check<Error>(size_ < capacity, "a list of at most ", capacity, " values is full");
    values_[size_++] = value;
  }
  void clear() { size_ = 0; }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return values_.data(); }
  T const* data() const { return values_.data(); }
  T* begin() { return data(); }
  T const* begin() const { return data(); }
  T* end() { return data() + size_; }
  T const* end() const { return data() + size_; }
  T& operator[](std::size_t i) { return values_[i]; }
  T const& operator[](std::size_t i) const { return values_[i]; }

 private:
  std::array<T, capacity> values_{};
  std::size_t size_ = 0;
};

}  // namespace annulus::detail
