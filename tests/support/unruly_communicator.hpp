#pragma once
// Communicator that uses all the freedom of the contract: it delays, reorders channels and poisons buffers, and it
// detects users that access bytes of pending shifts.

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/error.hpp"

namespace annulus_test {

/// Error: a user of the communicator violated its contract. Not an annulus::Error, so that code under test ignores it.
class MisusedTransfer : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Throws MisusedTransfer if bytes that arrive overlap others of the same shift.
inline void require_no_overlap(annulus::OutgoingBytes out, annulus::IncomingBytes in) {
  std::less<std::byte const*> const before;
  auto const overlap = [&](std::span<std::byte const> a, std::span<std::byte const> b) {
    return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
  };
  for (std::size_t p = 0; p < in.size(); ++p) {
    for (auto const& run : out)
      if (overlap(in[p], run)) throw MisusedTransfer("bytes that arrive overlap bytes that leave");
    for (std::size_t other = 0; other < p; ++other)
      if (overlap(in[p], in[other])) throw MisusedTransfer("bytes of two runs that arrive overlap");
  }
}

struct UnrulyOptions {
  std::uint64_t seed = 0;
  /// Longest delay before a shift starts, and again before it completes.
  std::chrono::microseconds longest_delay{200};
};

/// Wraps the communicator of one rank, which must outlive it; models Communicator. Private copies are sent:
///  * bytes of `out` that change between start_shift and wait() are reported by wait() as MisusedTransfer;
///  * the bytes of `in` are 0xFF (as a floating-point number: NaN) until wait() returns, whenever the data arrived, so
///    that reading them early gives NaN; writing them early is reported by wait();
///  * wait() of one shift may first complete other pending shifts.
template <annulus::Communicator C>
class UnrulyCommunicator {
  static_assert(std::same_as<typename C::memory_space, annulus::HostMemory>, "the copies are made by the CPU");

  struct Shift;
  /// Pending shifts of this rank, and its random numbers.
  struct Rules {
    explicit Rules(std::uint64_t seed, std::chrono::microseconds longest) : dice(seed), longest_delay(longest) {}

    void delay() {
      auto const longest = static_cast<std::uint64_t>(longest_delay.count());
      if (longest != 0) std::this_thread::sleep_for(std::chrono::microseconds(dice() % (longest + 1)));
    }

    std::mt19937_64 dice;
    std::chrono::microseconds longest_delay;
    std::vector<Shift*> pending;
  };

 public:
  using memory_space = annulus::HostMemory;

  class Transfer {
   public:
    void wait() {
      if (auto const shift = std::exchange(shift_, nullptr)) shift->complete();
    }

   private:
    friend class UnrulyCommunicator;
    explicit Transfer(std::unique_ptr<Shift> shift) : shift_(std::move(shift)) {}
    std::unique_ptr<Shift> shift_;
  };

  explicit UnrulyCommunicator(C& inner, UnrulyOptions const& options = {})
      : inner_(&inner),
        rules_(std::make_shared<Rules>(options.seed * 1'000'003u + static_cast<std::uint64_t>(inner.rank()),
                                       options.longest_delay)) {}

  annulus::Rank rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }

  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in) {
    require_no_overlap(out, in);
    rules_->delay();
    auto shift = std::make_unique<Shift>(rules_, out, in);
    shift->start(*inner_, channel, hop);
    return Transfer(std::move(shift));
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    rules_->delay();
    std::vector<std::byte> const copy(mine.begin(), mine.end());
    std::fill(all.begin(), all.end(), poison);
    inner_->all_gather(copy, all);
  }

  void abandon(std::string const& reason) noexcept { inner_->abandon(reason); }

 private:
  static constexpr std::byte poison{0xFF};

  struct Shift {
    Shift(std::shared_ptr<Rules> the_rules, annulus::OutgoingBytes out, annulus::IncomingBytes in)
        : rules(std::move(the_rules)), callers_out(out.begin(), out.end()), callers_in(in.begin(), in.end()) {
      for (auto const& run : out) sent.emplace_back(run.begin(), run.end());
      for (auto const& run : in) {
        received.emplace_back(run.size());
        std::fill(run.begin(), run.end(), poison);
      }
    }
    ~Shift() { std::erase(rules->pending, this); }

    void start(C& communicator, annulus::Channel channel, int hop) {
      std::vector<std::span<std::byte const>> const out(sent.begin(), sent.end());
      std::vector<std::span<std::byte>> const in(received.begin(), received.end());
      rules->pending.push_back(this);
      inner.emplace(communicator.start_shift(channel, hop, out, in));
    }

    /// Receives the data, but not yet into the caller's buffer. A failure is stored for the wait() of this shift.
    void arrive() {
      if (std::exchange(arrived, true)) return;
      rules->delay();
      try {
        inner->wait();
      } catch (...) {
        failure = std::current_exception();
      }
    }

    void complete() {
      auto others = rules->pending;
      std::shuffle(others.begin(), others.end(), rules->dice);
      for (Shift* other : others) {
        other->arrive();
        if (other == this) break;
      }
      if (failure) std::rethrow_exception(failure);
      for (std::size_t p = 0; p < sent.size(); ++p)
        if (!std::equal(sent[p].begin(), sent[p].end(), callers_out[p].begin()))
          throw MisusedTransfer(
              annulus::detail::message_of("run ", p, " was overwritten between start_shift and wait"));
      for (std::size_t p = 0; p < received.size(); ++p) {
        auto const run = callers_in[p];
        if (!std::all_of(run.begin(), run.end(), [](std::byte b) { return b == poison; }))
          throw MisusedTransfer(annulus::detail::message_of("run ", p, " was written by the receiver before wait"));
        std::copy(received[p].begin(), received[p].end(), run.begin());
      }
    }

    std::shared_ptr<Rules> rules;
    std::vector<std::span<std::byte const>> callers_out;
    std::vector<std::span<std::byte>> callers_in;
    std::vector<std::vector<std::byte>> sent, received;
    bool arrived = false;
    std::exception_ptr failure;
    std::optional<annulus::TransferOf<C>> inner;  // destroyed first: it refers to the copies
  };

  C* inner_;
  std::shared_ptr<Rules> rules_;
};

}  // namespace annulus_test
