// Communicators and backends that do not match, or lack one member; without a macro, a pair that compiles.
//
// expect SPACES_DIFFER: memory_space
// expect COMMUNICATOR_WITHOUT_ABANDON: abandon
// expect TRANSFER_WITHOUT_WAIT: Transfer
// expect BACKEND_WITHOUT_MERGE: backend.merge

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/reference/reference.hpp>
#include <annulus/comm/self.hpp>

struct DeviceMemory {
  struct Queue {
    void wait() const {}
    int number = 0;
  };
};

/// A ring of one rank in another memory space.
struct DeviceRing : annulus::SelfRing {
  using memory_space = DeviceMemory;
  struct Shift {
    void wait(DeviceMemory::Queue) {}
  };
  Shift start_shift(annulus::Channel, int, annulus::OutgoingBytes, annulus::IncomingBytes, DeviceMemory::Queue) {
    return {};
  }
  void finish(DeviceMemory::Queue) {}
};
static_assert(annulus::Communicator<DeviceRing>);

class WithoutAbandon : annulus::SelfRing {
 public:
  using memory_space = annulus::HostMemory;
  using SelfRing::all_gather, SelfRing::rank, SelfRing::size, SelfRing::start_shift;
};

struct WithoutWait : annulus::SelfRing {
  int start_shift(annulus::Channel, int, annulus::OutgoingBytes, annulus::IncomingBytes) { return 0; }
};

class WithoutMerge : annulus::ReferenceBackend {
  using Base = annulus::ReferenceBackend;

 public:
  using memory_space = annulus::HostMemory;
  using Buffer = annulus::detail::HostBuffer;
  template <class T>
  using accumulator = annulus::Accumulator<T>;
  using Base::add, Base::add_gradients, Base::allocate, Base::clear, Base::convert, Base::copy, Base::fold,
      Base::normalise, Base::reset, Base::row_delta, Base::sink_gradients, Base::supports, Base::synchronize;
};

void pairs(annulus::SelfRing& ring, annulus::ReferenceBackend& backend, DeviceRing& device_ring,
           WithoutAbandon& without_abandon, WithoutWait& without_wait, WithoutMerge& without_merge) {
#if defined(SPACES_DIFFER)
  annulus::RingAttention<DeviceRing, annulus::ReferenceBackend> attention(device_ring, backend);
#elif defined(COMMUNICATOR_WITHOUT_ABANDON)
  annulus::RingAttention<WithoutAbandon, annulus::ReferenceBackend> attention(without_abandon, backend);
#elif defined(TRANSFER_WITHOUT_WAIT)
  annulus::RingAttention<WithoutWait, annulus::ReferenceBackend> attention(without_wait, backend);
#elif defined(BACKEND_WITHOUT_MERGE)
  annulus::RingAttention<annulus::SelfRing, WithoutMerge> attention(ring, without_merge);
#else
  annulus::RingAttention<annulus::SelfRing, annulus::ReferenceBackend> attention(ring, backend);
#endif
}
