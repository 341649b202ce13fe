#pragma once
// Example of a complete communicator. Ranks are threads; POSIX sockets connect every pair of ranks, so that processes
// forked with these sockets can be ranks as well. Bytes move only inside calls of the ring: to overlap large exchanges
// with compute, Transfer would also need progress() (annulus/comm/communicator.hpp).
#include <algorithm>
#include <annulus/annulus.hpp>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace example {

using annulus::Rank;

class SocketRing {
 public:
  using memory_space = annulus::HostMemory;

  /// Channel of a message, and its number among those of its sender and channel.
  using Key = std::array<std::size_t, 2>;

  /// A pending shift. Its outgoing bytes are copied; destroyed without wait(), it closes the ring.
  class Transfer {
   public:
    void wait() {
      if (ring_) ring_->finish(*this);
      ring_.release();
    }

   private:
    friend class SocketRing;
    struct Drop {
      void operator()(SocketRing* ring) const { ring->abandon("it dropped a pending transfer"); }
    };
    std::unique_ptr<SocketRing, Drop> ring_;  // set while the shift is pending
    Rank to_ = 0, from_ = 0;
    Key key_{};  // of the incoming message
    std::vector<std::span<std::byte>> in_;
  };

  /// timeout: the longest wait. Every rank must be connected to every rank, itself included.
  SocketRing(Rank rank, int size, std::chrono::milliseconds timeout)
      : rank_(rank), timeout_(timeout), peers_(static_cast<std::size_t>(size)) {}
  SocketRing(SocketRing const&) = delete;
  SocketRing& operator=(SocketRing const&) = delete;
  ~SocketRing() {
    for (Peer const& one : peers_)
      for (int const socket : {one.out[0], one.in[0], one.out[1], one.in[1]})
        if (socket >= 0) ::close(socket);
  }
  void connect(SocketRing& to) {
    for (std::size_t const use : {messages, notices}) {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        throw annulus::Error(std::string("cannot create a socket pair: ") + std::strerror(errno));
      peer(to.rank_).out[use] = ends[0];
      to.peer(rank_).in[use] = ends[1];
    }
  }

  Rank rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in) {
    require_open();
    Transfer transfer;
    transfer.to_ = annulus::ring_neighbour(rank_, hop, size());
    transfer.from_ = annulus::ring_neighbour(rank_, -hop, size());
    transfer.in_.assign(in.begin(), in.end());
    transfer.ring_.reset(this);
    auto const c = static_cast<std::size_t>(channel);
    transfer.key_ = {c, peer(transfer.from_).expected[c]++};
    Peer& to = peer(transfer.to_);
    to.outbox += header_of(c, out);
    for (auto const& run : out) to.outbox.append(reinterpret_cast<char const*>(run.data()), run.size());
    send_to(to);
    return transfer;
  }

  /// The second exchange, which is empty, confirms that all ranks have the records: otherwise a rank that returns first
  /// and fails because of a record would close the ring before the others have received it.
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    exchange(mine, all);
    try {
      exchange({}, {});
    } catch (annulus::CommunicationError const&) {  // this rank has the records; its next call throws
    }
  }

  /// The notice has a socket of its own, so that it neither waits for messages nor ends up in the middle of one.
  void abandon(std::string_view reason, Rank culprit) noexcept {
    if (closed_) return;
    closed_ = true;
    notice_.culprit = culprit;
    reason.copy(notice_.reason.data(), notice_.reason.size() - 1);
    for (Peer& one : peers_) {
      ::send(one.out[notices], &notice_, sizeof notice_, MSG_DONTWAIT | MSG_NOSIGNAL);
      ::shutdown(one.out[messages], SHUT_WR);
      one.outbox.clear();
    }
  }
  void abandon(std::string_view reason) noexcept { abandon(reason, rank_); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t channels = 4;
  static constexpr auto records = static_cast<annulus::Channel>(3);  // that of all_gather, after those of shifts

  static constexpr std::size_t messages = 0, notices = 1;  // uses of the sockets

  struct Notice {
    Rank culprit = 0;
    std::array<char, 252> reason{};
  };
  struct Peer {
    std::array<int, 2> out{-1, -1}, in{-1, -1};
    std::string outbox, partial_message;
    std::map<Key, std::string> inbox;
    std::array<std::size_t, channels> arrived{}, expected{};  // numbers of messages by channel
    bool has_left = false;
  };

  Peer& peer(Rank rank) { return peers_[static_cast<std::size_t>(rank)]; }

  /// Channel, bytes of the message, number of runs, and the length of each: the first words of a message.
  template <class Runs>
  static std::string header_of(std::size_t channel, Runs const& runs) {
    std::vector<std::uint64_t> words{channel, (3 + runs.size()) * sizeof(std::uint64_t), runs.size()};
    for (auto const& run : runs) {
      words.push_back(run.size());
      words[1] += run.size();
    }
    return {reinterpret_cast<char const*>(words.data()), words.size() * sizeof words[0]};
  }

  /// Moves bytes until the incoming message is here and the outgoing one has left; delivers the former.
  void finish(Transfer const& transfer) {
    auto& inbox = peer(transfer.from_).inbox;
    for (auto const deadline = Clock::now() + timeout_;;) {
      bool const arrived = inbox.contains(transfer.key_);
      if (arrived && peer(transfer.to_).outbox.empty()) break;
      require_open();
      Rank const awaited = arrived ? transfer.to_ : transfer.from_;
      if (peer(awaited).has_left) fail(awaited, "it has left the ring");
      if (!move_bytes(deadline)) fail(awaited, "no answer within " + std::to_string(timeout_.count()) + " ms");
    }
    std::string const message = std::move(inbox.extract(transfer.key_).mapped());
    std::string const words = header_of(transfer.key_[0], transfer.in_);
    if (!message.starts_with(words)) fail(transfer.from_, "the runs that it sent do not have the expected lengths");
    char const* bytes = message.data() + words.size();
    for (auto const& run : transfer.in_) {
      std::copy_n(bytes, run.size(), reinterpret_cast<char*>(run.data()));
      bytes += run.size();
    }
  }

  void exchange(std::span<std::byte const> mine, std::span<std::byte> all) {
    std::vector<Transfer> transfers;
    for (int hop = 0; hop < size(); ++hop) {
      auto const from = static_cast<std::size_t>(annulus::ring_neighbour(rank_, -hop, size()));
      std::array const out{mine};
      std::array const in{all.subspan(from * mine.size(), mine.size())};
      transfers.push_back(start_shift(records, hop, out, in));
    }
    for (Transfer& transfer : transfers) transfer.wait();
  }

  /// Waits for a socket, then sends and receives what is possible. False if the deadline has passed.
  bool move_bytes(Clock::time_point deadline) {
    auto const remaining = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (remaining.count() <= 0) return false;
    std::vector<pollfd> sockets;
    for (Peer const& one : peers_) {
      sockets.push_back({one.has_left ? -1 : one.in[notices], POLLIN, 0});
      sockets.push_back({one.has_left ? -1 : one.in[messages], POLLIN, 0});
      sockets.push_back({one.has_left || one.outbox.empty() ? -1 : one.out[messages], POLLOUT, 0});
    }
    ::poll(sockets.data(), sockets.size(), static_cast<int>(std::min<long long>(remaining.count(), 1000)));
    for (std::size_t p = 0; p < peers_.size(); ++p) {
      if (sockets[3 * p].revents != 0) receive_notice(peers_[p]);
      if (sockets[3 * p + 1].revents != 0) receive_from(peers_[p]);
      if (sockets[3 * p + 2].revents != 0) send_to(peers_[p]);
    }
    return true;
  }

  void send_to(Peer& to) {
    while (!to.outbox.empty()) {
      ssize_t const sent = ::send(to.out[messages], to.outbox.data(), to.outbox.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno != EINTR) return;  // full, or the peer has left, which receive_from() notices
      if (sent > 0) to.outbox.erase(0, static_cast<std::size_t>(sent));
    }
  }

  void receive_from(Peer& from) {
    std::array<char, 1 << 16> bytes;
    for (;;) {
      ssize_t const received = ::recv(from.in[messages], bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (received < 0 && errno == EINTR) continue;
      from.has_left = received == 0;
      if (from.has_left) receive_notice(from);  // the reason was sent first
      if (received <= 0) return;
      from.partial_message.append(bytes.data(), static_cast<std::size_t>(received));
      std::array<std::uint64_t, 2> words;  // channel and bytes
      while (from.partial_message.size() >= sizeof words) {
        std::memcpy(words.data(), from.partial_message.data(), sizeof words);
        if (from.partial_message.size() < words[1]) break;
        from.inbox[{words[0], from.arrived[words[0]]++}] = from.partial_message.substr(0, words[1]);
        from.partial_message.erase(0, words[1]);
      }
    }
  }

  void receive_notice(Peer& from) {
    Notice notice;
    if (::recv(from.in[notices], &notice, sizeof notice, MSG_DONTWAIT) == sizeof notice)
      abandon(notice.reason.data(), notice.culprit);
  }

  void require_open() const {
    if (closed_)
      throw annulus::CommunicationError("rank " + std::to_string(rank_) + ": the ring is closed because of rank " +
                                            std::to_string(notice_.culprit) + ": " + notice_.reason.data(),
                                        rank_, annulus::CommunicationError::unknown, notice_.culprit);
  }
  void fail(Rank culprit, std::string const& reason) {
    abandon(reason, culprit);
    require_open();
  }

  Rank rank_;
  std::chrono::milliseconds timeout_;
  std::vector<Peer> peers_;
  bool closed_ = false;
  Notice notice_;
};

static_assert(annulus::Communicator<SocketRing>);

/// Runs function(ring) on `ranks` threads that form a ring. If one throws, the others' waits fail, and its exception is
/// rethrown.
template <class Function>
void run_socket_ring(int ranks, Function&& function, std::chrono::milliseconds timeout = std::chrono::minutes(10)) {
  std::vector<std::unique_ptr<SocketRing>> rings;
  for (Rank rank = 0; rank < ranks; ++rank) rings.push_back(std::make_unique<SocketRing>(rank, ranks, timeout));
  for (auto const& from : rings)
    for (auto const& to : rings) from->connect(*to);
  std::mutex mutex;
  std::exception_ptr first;
  auto const run = [&](std::unique_ptr<SocketRing> ring) {
    try {
      function(*ring);
    } catch (std::exception const& error) {
      {
        std::lock_guard const lock(mutex);  // before the others see the notice and throw as well
        if (!first) first = std::current_exception();
      }
      ring->abandon(error.what());
    }
  };
  {
    std::vector<std::jthread> threads;
    for (auto& ring : rings) threads.emplace_back(run, std::move(ring));
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace example
