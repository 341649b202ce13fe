#pragma once
// Before anything is exchanged, all ranks compare what they were called with, and all throw or none does.

#include <array>
#include <bit>
#include <charconv>
#include <concepts>
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

  void add(std::string_view name, Index value) { append(name, value); }
  void add_real(std::string_view name, double value) { append(name, std::bit_cast<std::int64_t>(value), value); }
  /// A value that reads better as a word, or words and numbers one after the other; as much as fits is kept.
  template <class... Parts>
  void add_named(std::string_view name, Index value, Parts const&... parts) {
    append(name, value, parts...);
  }
  void add_flag(std::string_view name, bool value) { append(name, value, std::string_view(value ? "true" : "false")); }

  /// Whether a rank that was called so before is called so again.
  bool operator==(CallRecord const&) const = default;

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
        if (first.name == other.name && first.value == other.value) continue;
        check<CommunicationError>(first.name == other.name, "the ranks make different calls: rank 0 compares '",
                                  first.name.data(), "', rank ", r, " '", other.name.data(), "'");
        throw CommunicationError(message_of("the ranks were called with different ", first.name.data(), ": rank 0 has ",
                                            first.shown(), ", rank ", r, " has ", other.shown(),
                                            "; it must be the same on all ranks"));
      }
  }

 private:
  enum class Refusal : std::int32_t { none, shape, unsupported, other };

  struct Field {
    std::array<char, 32> name{}, text{};  // end with a zero; without a text the value itself is shown
    std::int64_t value = 0;

    bool operator==(Field const&) const = default;
    std::string shown() const { return text[0] == 0 ? message_of(value) : text.data(); }
  };

  /// A record is made for every call, so that nothing is allocated here.
  template <class... Parts>
  void append(std::string_view name, std::int64_t value, Parts const&... parts) {
    check<Error>(count_ < fields_.size() && name.size() < 32, "call record: no room for ", name);
    Field& field = fields_[count_++];
    name.copy(field.name.data(), name.size());
    field.value = value;
    std::span<char> room = std::span(field.text).first(field.text.size() - 1);
    (write(room, parts), ...);
  }

  static void write(std::span<char>& room, std::string_view word) {
    room = room.subspan(word.copy(room.data(), room.size()));
  }
  template <class Number>
    requires std::integral<Number> || std::floating_point<Number>
  static void write(std::span<char>& room, Number number) {
    std::array<char, 32> digits;
    std::to_chars_result written{};
    if constexpr (std::floating_point<Number>)
      written = std::to_chars(digits.data(), digits.data() + digits.size(), number, std::chars_format::general, 17);
    else
      written = std::to_chars(digits.data(), digits.data() + digits.size(), number);
    write(room, std::string_view(digits.data(), static_cast<std::size_t>(written.ptr - digits.data())));
  }

  void refusal(Refusal kind, char const* text) {
    refusal_ = kind;
    std::strncpy(text_.data(), text, text_.size() - 1);
  }

  void throw_refusal(std::size_t rank) const {
    if (refusal_ == Refusal::none) return;
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

/// Exchanges the records; `records` are then those of all ranks in rank order. Throws the same error on every rank.
template <Communicator C>
void agree(C& communicator, CallRecord const& mine, std::vector<CallRecord>& records) {
  static_assert(std::is_trivially_copyable_v<CallRecord>);
  records.resize(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(records)));
  CallRecord::compare(records);
}

/// As above, for a call that is made once.
template <Communicator C>
std::vector<CallRecord> agree(C& communicator, CallRecord const& mine) {
  std::vector<CallRecord> records;
  agree(communicator, mine, records);
  return records;
}

}  // namespace annulus
