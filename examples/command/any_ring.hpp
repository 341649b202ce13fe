#pragma once
// Type-erased communicator: the passes are compiled once per element type, not once per communicator type.

#include <annulus/comm/communicator.hpp>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace annulus_command {

/// Non-owning, type-erased communicator in host memory. The communicator must outlive it.
class AnyRing {
 public:
  using memory_space = annulus::HostMemory;

  class Transfer {
   public:
    template <class T>
    requires(!std::same_as<T, Transfer> && annulus::Transfer<T>) explicit Transfer(T transfer)
        : held_(std::make_unique<Model<T>>(std::move(transfer))) {}

    void wait() { held_->wait(); }

   private:
    struct Held {
      virtual ~Held() = default;
      virtual void wait() = 0;
    };
    template <class T>
    struct Model : Held {
      explicit Model(T held) : transfer(std::move(held)) {}
      void wait() override { transfer.wait(); }
      T transfer;
    };

    std::unique_ptr<Held> held_;
  };

  template <class C>
  requires(!std::same_as<C, AnyRing> && annulus::Communicator<C>) explicit AnyRing(C& communicator)
      : ring_(std::make_unique<Model<C>>(communicator)) {}

  annulus::Rank rank() const { return ring_->rank(); }
  int size() const { return ring_->size(); }

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
    virtual Transfer start_shift(annulus::Channel, int, annulus::OutgoingBytes, annulus::IncomingBytes) = 0;
    virtual void all_gather(std::span<std::byte const>, std::span<std::byte>) = 0;
    virtual void abandon(std::string_view, annulus::Rank culprit) noexcept = 0;
    virtual annulus::FlightRecord& flight_record() = 0;
  };
  template <class C>
  struct Model : Ring {
    explicit Model(C& referred) : communicator(referred) {}
    annulus::Rank rank() const override { return communicator.rank(); }
    int size() const override { return communicator.size(); }
    Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out,
                         annulus::IncomingBytes in) override {
      return Transfer(communicator.start_shift(channel, hop, out, in));
    }
    void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) override {
      communicator.all_gather(mine, all);
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
    C& communicator;
    annulus::FlightRecord own_record;  ///< used if the communicator keeps none
  };

  std::unique_ptr<Ring> ring_;
};

static_assert(annulus::CallRecordingCommunicator<AnyRing>);

}  // namespace annulus_command
