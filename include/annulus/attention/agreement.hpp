#pragma once
// Agreement: comparison of the arguments of all ranks before any rows are exchanged. All ranks throw or none does.

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/digest.hpp"
#include "annulus/core/error.hpp"

namespace annulus::detail {

/// Arguments of one rank's call, as plain bytes of equal size on all ranks: a list of named fields.
class CallRecord {
 public:
  // Values of this rank, which are not compared.
  Index local_queries = 0;  ///< query rows of a pass or call on a cache
  Index local_keys = 0;     ///< key rows of the same
  Index shard_rows = 0;     ///< rows that gather is given, or that scatter distributes
  Index cache_number = 0;   ///< of a new cache; that of rank 0 is taken

  /// Identifies the call by its number on the ring, the caller's label (Operands::call), if any, and the pass.
  /// `last_calls` is shown in the error if ranks are in different calls.
  void identify(std::uint64_t number, std::optional<Index> label, Pass pass, FlightRecord::Tail const& last_calls) {
    last_calls_ = last_calls;
    add(call_name, static_cast<Index>(number));
    if (label)
      add(label_name, *label);
    else
      add_named(label_name, no_label, "none");
    add(pass_name, pass);
  }

  /// Adds a field: a bool, an enumeration with names, an integer, a double, or an integer that may be unset. Names have
  /// at most 31 characters, records at most 64 fields; else throws Error.
  template <class Value>
  void add(std::string_view name, Value const& value) {
    if constexpr (std::same_as<Value, bool>) {
      add_named(name, value, std::string_view(value ? "true" : "false"));
    } else if constexpr (std::is_enum_v<Value>) {
      add_named(name, static_cast<Index>(value), name_of(value));
    } else if constexpr (std::same_as<Value, double>) {
      add_named(name, std::bit_cast<std::int64_t>(value), value);
    } else if constexpr (std::same_as<Value, std::uint64_t>) {
      add_named(name, static_cast<std::int64_t>(value), value);
    } else if constexpr (std::signed_integral<Value>) {
      add_named(name, value);
    } else if (value) {
      add_named(name, *value);
    } else {
      add_named(name, std::numeric_limits<Index>::max(), std::string_view("unset"));
    }
  }
  /// Adds a field that errors show as the text `parts`, cut to 31 characters, instead of its value. Does not allocate:
  /// each call makes a record.
  template <class... Parts>
  void add_named(std::string_view name, Index value, Parts const&... parts) {
    check<Error>(count_ < fields_.size() && name.size() < 32, "call record: cannot add field ", name,
                 "; accepted: at most 64 fields, with names of at most 31 characters");
    Field& field = fields_[count_++];
    field.name.add(name);
    field.value = value;
    field.text.add(parts...);
  }

  /// Copies the fields that describe the arguments of another record; those that identify the call stay.
  void repeat(CallRecord const& other) {
    local_queries = other.local_queries;
    local_keys = other.local_keys;
    std::copy(other.fields_.begin() + count_, other.fields_.begin() + other.count_, fields_.begin() + count_);
    count_ = other.count_;
  }

  /// True if `other` describes the same call, ignoring call number, label and pass. Refusals are not compared.
  bool describes_same_call(CallRecord const& other) const {
    if (local_queries != other.local_queries || local_keys != other.local_keys || count_ != other.count_) return false;
    for (std::size_t f = 0; f < count_; ++f)
      if (fields_[f] != other.fields_[f] && !fields_[f].identifies()) return false;
    return true;
  }

  /// Calls fill(*this), which validates the arguments of this rank and adds them. If it throws, this rank refuses the
  /// call, and all ranks then throw that error.
  template <class Fill>
  void fill_or_refuse(Fill&& fill) {
    try {
      fill(*this);
    } catch (...) {
      refuse(std::current_exception());
    }
  }

  /// Records that this rank refuses the call for `reason`. All ranks then throw an error of the same type.
  void refuse(std::exception_ptr reason) {
    try {
      std::rethrow_exception(reason);
    } catch (ShapeError const& error) {
      refusal(Refusal::shape, error.what());
    } catch (UnsupportedError const& error) {
      refusal(Refusal::unsupported, error.what());
    } catch (std::bad_alloc const&) {
      refusal(Refusal::other, "not enough memory to check the arguments or to make the results of this call");
    } catch (std::exception const& error) {
      refusal(Refusal::other, error.what());
    } catch (...) {
      refusal(Refusal::other, "an exception of unknown type");
    }
  }

  /// Finishes the record. `checked`: adds a digest, by which receivers detect corruption.
  void seal(bool checked) {
    digest_ = unchecked;
    if (checked) digest_ = digest();
  }

  /// Throws CommunicationError if a record that has arrived is not the one that its rank sealed.
  static void require_intact(std::span<CallRecord const> records, Rank rank) {
    for (std::size_t r = 0; r < records.size(); ++r)
      if (records[r].digest_ != unchecked && records[r].digest_ != records[r].digest())
        throw CommunicationError(message_of("rank ", rank, ": the call record from rank ", r,
                                            " does not match its checksum: it was corrupted in transfer"),
                                 rank, CommunicationError::unknown, static_cast<Rank>(r));
  }

  /// Throws CommunicationError if records that have arrived are of calls with different numbers. That may concern this
  /// rank alone, because a record was delivered again in place of the next one, so the caller must abandon the ring.
  static void require_same_number(std::span<CallRecord const> records) {
    if (all_are_calls(records)) compare_field(records, 0);
  }

  /// True if every rank is in a forward or backward call, none in a scatter, gather or all_reduce.
  static bool all_are_calls(std::span<CallRecord const> records) {
    return std::all_of(records.begin(), records.end(),
                       [](CallRecord const& record) { return record.fields_[0].name.view() == call_name; });
  }

  /// Throws the error of the first rank that refuses its call, or CommunicationError for the first field in which the
  /// ranks differ.
  static void compare(std::span<CallRecord const> records) {
    for (std::size_t r = 0; r < records.size(); ++r) records[r].throw_refusal(r);
    for (std::size_t f = 0; f < records[0].fields_.size(); ++f) compare_field(records, f);
  }

 private:
  enum class Refusal : std::int32_t { none, shape, unsupported, other };

  static constexpr std::string_view call_name = "call number", label_name = "call number (Operands::call)",
                                    pass_name = "pass";
  static constexpr Index no_label = std::numeric_limits<Index>::min();

  struct Field {
    FixedText<31> name{}, text{};  // the value itself is shown if the text is empty
    std::int64_t value = 0;

    bool operator==(Field const&) const = default;
    std::string shown() const { return text.empty() ? message_of(value) : text.c_str(); }
    /// True for fields that identify the call; the others describe its arguments.
    bool identifies() const {
      return name.view() == call_name || name.view() == label_name || name.view() == pass_name;
    }
  };

  static void compare_field(std::span<CallRecord const> records, std::size_t f) {
    for (std::size_t r = 1; r < records.size(); ++r) {
      Field const &first = records[0].fields_[f], &other = records[r].fields_[f];
      if (first.name == other.name && first.value == other.value) continue;
      // Blames the rank in the minority; of two halves, the one whose call number is behind: it has skipped a call.
      auto const with_first = std::count_if(records.begin(), records.end(), [&](CallRecord const& one) {
        return one.fields_[f].name == first.name && one.fields_[f].value == first.value;
      });
      auto const with_others = static_cast<std::ptrdiff_t>(records.size()) - with_first;
      bool const first_is_behind = first.name.view() == call_name && first.value < other.value;
      bool const first_is_odd = with_first < with_others || (with_first == with_others && first_is_behind);
      Rank const odd = first_is_odd ? 0 : static_cast<Rank>(r);
      auto const fail = [&](std::string const& text) {
        throw CommunicationError(text, CommunicationError::unknown, CommunicationError::unknown, odd);
      };
      if (first.name != other.name)
        fail(message_of("the ranks make different calls: rank 0 compares '", first.name.view(), "', rank ", r, " '",
                        other.name.view(), "'"));
      std::string text =
          message_of("the ranks were called with different ", first.name.view(), ": rank 0 has ", first.shown(),
                     ", rank ", r, " has ", other.shown(), "; it must be the same on all ranks");
      if (first.identifies())
        text += message_of(". Last calls of rank 0: ", records[0].last_calls_.view(), "; of rank ", r, ": ",
                           records[r].last_calls_.view());
      fail(text);
    }
  }

  std::uint64_t digest() const {
    CallRecord unsealed = *this;
    unsealed.digest_ = unchecked;
    return digest_of(std::as_bytes(std::span(&unsealed, 1)));
  }

  void refusal(Refusal kind, char const* text) {
    refusal_ = kind;
    text_.clear();
    text_.add(text);
  }

  void throw_refusal(std::size_t rank) const {
    if (refusal_ == Refusal::none) return;
    std::string const text = message_of("rank ", rank, ": ", text_.view());
    if (refusal_ == Refusal::shape) throw ShapeError(text);
    if (refusal_ == Refusal::unsupported) throw UnsupportedError(text);
    throw Error(text);
  }

  std::array<Field, 64> fields_{};
  std::size_t count_ = 0;
  Refusal refusal_ = Refusal::none;
  FixedText<771> text_{};
  FlightRecord::Tail last_calls_{};
  static constexpr std::uint64_t unchecked = 1;  ///< sealed without a digest
  std::uint64_t digest_ = 0;  ///< 0: not sealed; rejected by require_intact, so that missing records are detected
};

/// Gathers the records of all ranks, in rank order. Does not compare them: an error here is a failure of this rank or
/// of the ring, which other ranks need not see. Collective.
template <Communicator C>
void gather_records(C& communicator, CallRecord const& mine, std::vector<CallRecord>& records) {
  // Without padding, so that equal records have equal digests.
  static_assert(std::is_trivially_copyable_v<CallRecord> && std::has_unique_object_representations_v<CallRecord>);
  records.resize(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(records)));
}

/// Gathers and compares the records of all ranks, with checksums: all ranks throw the same error or none does. Returns
/// the records in rank order. Collective.
template <Communicator C>
std::vector<CallRecord> agree(C& communicator, CallRecord mine) {
  std::vector<CallRecord> records;
  or_abandon(communicator, [&] {
    mine.seal(true);
    gather_records(communicator, mine, records);
    CallRecord::require_intact(records, communicator.rank());
  });
  auto const note = [&]([[maybe_unused]] bool fails_on_all_ranks) {
    if constexpr (CallRecordingCommunicator<C>) communicator.flight_record().set_fails_on_all_ranks(fails_on_all_ranks);
  };
  note(true);  // an error of compare() is thrown by all ranks
  CallRecord::compare(records);
  note(false);
  return records;
}

}  // namespace annulus::detail
