#pragma once
// Collective operations of the command over a type-erased communicator: exchange of values, agreement on errors.

#include <algorithm>
#include <annulus/comm/communicator.hpp>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace annulus_command {

/// Non-owning, type-erased communicator in host memory: the passes are compiled once per element type, not once per
/// communicator type. The communicator must outlive it, and it its transfers. If an exchange throws CommunicationError,
/// calls on_failure() before the exception unwinds the call, while memory that messages of a lost rank may still reach
/// is not freed yet.
class AnyRing {
 public:
  using memory_space = annulus::HostMemory;

  class Transfer {
   public:
    void wait() { held_->wait(); }

   private:
    friend class AnyRing;
    struct Held {
      virtual ~Held() = default;
      virtual void wait() = 0;
    };
    explicit Transfer(std::unique_ptr<Held> held) : held_(std::move(held)) {}

    std::unique_ptr<Held> held_;
  };

  template <class C>
  requires(!std::same_as<C, AnyRing> && annulus::TopologyAwareCommunicator<C>) explicit AnyRing(
      C& communicator, std::function<void()> on_failure = [] {})
      : ring_(std::make_unique<Model<C>>(communicator, std::move(on_failure))) {}

  annulus::Rank rank() const { return ring_->rank(); }
  int size() const { return ring_->size(); }
  std::span<annulus::Rank const> near_ranks() const { return ring_->near_ranks(); }

  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in) {
    return ring_->start_shift(channel, hop, out, in);
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { ring_->all_gather(mine, all); }

  void abandon(std::string_view reason, annulus::Rank culprit) noexcept { ring_->abandon(reason, culprit); }
  void abandon(std::string_view reason) noexcept { abandon(reason, rank()); }

  annulus::FlightRecord& flight_record() { return ring_->flight_record(); }

 private:
  struct Ring {
    virtual ~Ring() = default;
    virtual annulus::Rank rank() const = 0;
    virtual int size() const = 0;
    virtual std::span<annulus::Rank const> near_ranks() const = 0;
    virtual Transfer start_shift(annulus::Channel, int, annulus::OutgoingBytes, annulus::IncomingBytes) = 0;
    virtual void all_gather(std::span<std::byte const>, std::span<std::byte>) = 0;
    virtual void abandon(std::string_view, annulus::Rank culprit) noexcept = 0;
    virtual annulus::FlightRecord& flight_record() = 0;
  };

  template <class C>
  struct Model : Ring {
    Model(C& referred, std::function<void()> when_failed)
        : communicator(referred), on_failure(std::move(when_failed)) {}

    struct Held : Transfer::Held {
      Held(annulus::TransferOf<C> held, Model const& owner) : transfer(std::move(held)), model(owner) {}
      void wait() override {
        model.reporting([this] { transfer.wait(); });
      }
      annulus::TransferOf<C> transfer;
      Model const& model;
    };

    annulus::Rank rank() const override { return communicator.rank(); }
    int size() const override { return communicator.size(); }
    std::span<annulus::Rank const> near_ranks() const override { return communicator.near_ranks(); }
    Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out,
                         annulus::IncomingBytes in) override {
      return reporting(
          [&] { return Transfer(std::make_unique<Held>(communicator.start_shift(channel, hop, out, in), *this)); });
    }
    void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) override {
      reporting([&] { communicator.all_gather(mine, all); });
    }
    void abandon(std::string_view reason, annulus::Rank culprit) noexcept override {
      annulus::abandon_ring(communicator, reason, culprit);
    }
    annulus::FlightRecord& flight_record() override {
      if constexpr (annulus::CallRecordingCommunicator<C>)
        return communicator.flight_record();
      else
        return own_record;
    }

    template <class Exchange>
    auto reporting(Exchange&& exchange) const {
      try {
        return exchange();
      } catch (annulus::CommunicationError const&) {
        on_failure();
        throw;
      }
    }

    C& communicator;
    std::function<void()> on_failure;
    annulus::FlightRecord own_record;  ///< used if the communicator keeps none
  };

  std::unique_ptr<Ring> ring_;
};

static_assert(annulus::CallRecordingCommunicator<AnyRing> && annulus::TopologyAwareCommunicator<AnyRing>);

/// Collective operations over a ring. All ranks must call the members other than rank(), size() and ring(), in the same
/// order. Every wait has the ring's deadline: they throw annulus::CommunicationError if a rank is lost or late.
class Collectives {
 public:
  explicit Collectives(AnyRing ring) : ring_(std::move(ring)) {}

  annulus::Rank rank() const { return ring_.rank(); }
  int size() const { return ring_.size(); }
  AnyRing& ring() { return ring_; }

  /// The values of all ranks, in rank order.
  template <class T>
  requires(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>) std::vector<T> all(T const& mine) {
    std::vector<T> all(static_cast<std::size_t>(size()));
    ring_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    return all;
  }

  /// Texts of any lengths, in rank order.
  std::vector<std::string> all_texts(std::string const& mine) {
    std::vector<std::size_t> const lengths = all(mine.size());
    std::vector<std::string> texts(lengths.size());
    std::size_t const longest = *std::max_element(lengths.begin(), lengths.end());
    if (longest == 0) return texts;
    std::string padded = mine, joined(longest * texts.size(), '\0');
    padded.resize(longest);
    ring_.all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(joined)));
    for (std::size_t rank = 0; rank < texts.size(); ++rank) texts[rank] = joined.substr(rank * longest, lengths[rank]);
    return texts;
  }

  /// Rank 0's value.
  template <class T>
  requires std::is_trivially_copyable_v<T> T from_first(T const& mine) { return all(mine)[0]; }

  /// Rank 0's list, of any length on each rank.
  template <class T>
  requires std::is_trivially_copyable_v<T> std::vector<T> list_from_first(std::vector<T> const& mine) {
    std::string const bytes(reinterpret_cast<char const*>(mine.data()), mine.size() * sizeof(T));
    std::string const first = all_texts(rank() == 0 ? bytes : std::string())[0];
    std::vector<T> list(first.size() / sizeof(T));
    std::memcpy(list.data(), first.data(), first.size());
    return list;
  }

  /// Returns when all ranks have called it.
  void barrier() { all(std::byte{}); }

  /// Sends `out` to rank() + hop and receives `in` from rank() - hop, modulo size(); 1 <= hop < size(). Matching runs
  /// must have equal lengths; both lists may be empty.
  void shift(int hop, std::vector<std::span<std::byte const>> const& out, std::vector<std::span<std::byte>> const& in) {
    ring_.start_shift(annulus::Channel::prefetched, hop, out, in).wait();
  }

  /// Returns if `mine` is null on all ranks; otherwise all ranks throw AgreedEnding with the error of the first rank.
  void agree(std::exception_ptr const& mine) {
    Ending const own = mine ? ending_of(mine) : Ending{};
    // One digit with the status, then the message; empty if there is no error.
    std::vector<std::string> endings;
    try {
      endings = all_texts(mine ? std::to_string(static_cast<int>(own.status)) + own.line : std::string());
    } catch (annulus::CommunicationError const&) {
      if (mine) std::rethrow_exception(mine);
      throw;
    }
    auto const first =
        std::find_if(endings.begin(), endings.end(), [](std::string const& ending) { return !ending.empty(); });
    if (first == endings.end()) return;
    bool const shared =
        std::all_of(endings.begin(), endings.end(), [&](auto const& ending) { return ending == *first; });
    std::string const rank = shared ? "" : "rank " + std::to_string(first - endings.begin()) + ": ";
    throw AgreedEnding({static_cast<ExitStatus>((*first)[0] - '0'), rank + first->substr(1)});
  }

  /// Runs function() on this rank, then calls agree() with its exception, if any.
  template <class Function>
  void together(Function&& function) {
    std::exception_ptr error;
    try {
      function();
    } catch (...) {
      error = std::current_exception();
    }
    agree(error);
  }

 private:
  AnyRing ring_;
};

}  // namespace annulus_command
