#pragma once
// Before anything is exchanged, all ranks compare what they were called with, and all throw or none does.

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/check.hpp"

namespace annulus {

/// What one rank was called with: plain bytes, equal in size on all ranks.
class CallRecord {
 public:
  Index local_queries = 0;
  Index local_keys = 0;

  void add(std::string_view name, Index value) { append(name, value, {}); }
  void add_real(std::string_view name, double value) {
    append(name, std::bit_cast<std::int64_t>(value), message_of(value));
  }
  /// A value that reads better as a word, of which as much as fits is kept.
  void add_named(std::string_view name, Index value, std::string_view word) { append(name, value, word); }
  void add_flag(std::string_view name, bool value) { append(name, value, value ? "true" : "false"); }

  /// Notes that this rank refuses the call. Peers throw the same type.
  void refuse(std::exception_ptr reason) {
    try {
      std::rethrow_exception(reason);
    } catch (ShapeError const& error) {
      refusal(Refusal::shape, error.what());
    } catch (UnsupportedError const& error) {
      refusal(Refusal::unsupported, error.what());
    } catch (std::exception const& error) {
      refusal(Refusal::other, error.what());
    } catch (...) {
      refusal(Refusal::other, "an exception of unknown type");
    }
  }

  /// Throws what the first refusing rank, or the first field in which the ranks differ, demands.
  static void compare(std::span<CallRecord const> records) {
    for (std::size_t r = 0; r < records.size(); ++r) records[r].throw_refusal(r);
    for (std::size_t f = 0; f < records[0].fields_.size(); ++f)
      for (std::size_t r = 1; r < records.size(); ++r) {
        Field const &first = records[0].fields_[f], &other = records[r].fields_[f];
        check<CommunicationError>(first.name == other.name, "the ranks make different calls: rank 0 compares '",
                                  first.name.data(), "', rank ", r, " '", other.name.data(), "'");
        check<CommunicationError>(first.value == other.value, "the ranks were called with different ", first.name.data(),
                                  ": rank 0 has ", first.shown(), ", rank ", r, " has ", other.shown(),
                                  "; it must be the same on all ranks");
      }
  }

 private:
  enum class Refusal : std::int32_t { none, shape, unsupported, other };

  struct Field {
    std::array<char, 32> name{}, text{};  // end with a zero; without a text the value itself is shown
    std::int64_t value = 0;

    std::string shown() const { return text[0] == 0 ? message_of(value) : text.data(); }
  };

  void append(std::string_view name, std::int64_t value, std::string_view text) {
    check<Error>(count_ < fields_.size() && name.size() < 32, "call record: no room for ", name);
    Field& field = fields_[count_++];
    name.copy(field.name.data(), name.size());
    text.copy(field.text.data(), field.text.size() - 1);
    field.value = value;
  }

  void refusal(Refusal kind, char const* text) {
    refusal_ = kind;
    std::strncpy(text_.data(), text, text_.size() - 1);
  }

  void throw_refusal(std::size_t rank) const {
    std::string const text = message_of("rank ", rank, ": ", static_cast<char const*>(text_.data()));
    switch (refusal_) {
      case Refusal::none: return;
      case Refusal::shape: throw ShapeError(text);
      case Refusal::unsupported: throw UnsupportedError(text);
      case Refusal::other: throw Error(text);
    }
  }

  std::array<Field, 48> fields_{};
  std::size_t count_ = 0;
  Refusal refusal_ = Refusal::none;
  std::array<char, 768> text_{};
};

/// Exchanges the records; returns them in rank order, or throws the same error on every rank.
template <Communicator C>
std::vector<CallRecord> agree(C& communicator, CallRecord const& mine) {
  static_assert(std::is_trivially_copyable_v<CallRecord>);
  std::vector<CallRecord> records(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(records)));
  CallRecord::compare(records);
  return records;
}

}  // namespace annulus
