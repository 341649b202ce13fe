// Communicators and backends that do not fit, or lack one member. Without a macro, those that fit compile.
//
// expect SPACES_DIFFER: memory_space
// expect COMMUNICATOR_WITHOUT_ABANDON: abandon
// expect COMMUNICATOR_WITHOUT_RANK: observed.rank
// expect TRANSFER_WITHOUT_WAIT: Transfer
// expect BACKEND_WITHOUT_MERGE: backend.merge
// expect BACKEND_WITHOUT_SUPPORTS: observed.supports
// expect BACKEND_AS_COMMUNICATOR: Communicator

#include <annulus/annulus.hpp>

struct DeviceMemory {};

/// A ring of one rank whose bytes live elsewhere.
struct DeviceRing : annulus::SelfRing {
  using memory_space = DeviceMemory;
};

class WithoutAbandon : annulus::SelfRing {
 public:
  using memory_space = annulus::HostMemory;
  using SelfRing::all_gather, SelfRing::rank, SelfRing::size, SelfRing::start_shift;
};

class WithoutRank : annulus::SelfRing {
 public:
  using memory_space = annulus::HostMemory;
  using SelfRing::abandon, SelfRing::all_gather, SelfRing::size, SelfRing::start_shift;
};

struct TransferWithoutWait : annulus::SelfRing {
  int start_shift(annulus::Channel, int, annulus::OutgoingBytes, annulus::IncomingBytes) { return 0; }
};

class WithoutMerge : annulus::ReferenceBackend {
 public:
  using memory_space = annulus::HostMemory;
  using Buffer = annulus::HostBuffer;
  template <class T>
  using accumulator = annulus::Accumulator<T>;
  using ReferenceBackend::add, ReferenceBackend::add_gradients, ReferenceBackend::allocate, ReferenceBackend::clear,
      ReferenceBackend::convert, ReferenceBackend::copy, ReferenceBackend::fold, ReferenceBackend::normalise,
      ReferenceBackend::reset, ReferenceBackend::row_delta, ReferenceBackend::sink_gradients,
      ReferenceBackend::supports, ReferenceBackend::synchronize;
};

class WithoutSupports : annulus::ReferenceBackend {
 public:
  using memory_space = annulus::HostMemory;
  using Buffer = annulus::HostBuffer;
  template <class T>
  using accumulator = annulus::Accumulator<T>;
  using ReferenceBackend::add, ReferenceBackend::add_gradients, ReferenceBackend::allocate, ReferenceBackend::clear,
      ReferenceBackend::convert, ReferenceBackend::copy, ReferenceBackend::fold, ReferenceBackend::merge,
      ReferenceBackend::normalise, ReferenceBackend::reset, ReferenceBackend::row_delta,
      ReferenceBackend::sink_gradients, ReferenceBackend::synchronize;
};

void pairs() {
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  annulus::RingAttention attention(ring, backend);
  static_assert(annulus::Communicator<DeviceRing>);

#ifdef SPACES_DIFFER
  DeviceRing device_ring;
  annulus::RingAttention refused(device_ring, backend);
#endif
#ifdef COMMUNICATOR_WITHOUT_ABANDON
  WithoutAbandon lacking;
  annulus::RingAttention refused(lacking, backend);
#endif
#ifdef COMMUNICATOR_WITHOUT_RANK
  WithoutRank lacking;
  annulus::RingAttention refused(lacking, backend);
#endif
#ifdef TRANSFER_WITHOUT_WAIT
  TransferWithoutWait lacking;
  annulus::RingAttention refused(lacking, backend);
#endif
#ifdef BACKEND_WITHOUT_MERGE
  WithoutMerge lacking;
  annulus::RingAttention refused(ring, lacking);
#endif
#ifdef BACKEND_WITHOUT_SUPPORTS
  WithoutSupports lacking;
  annulus::RingAttention refused(ring, lacking);
#endif
#ifdef BACKEND_AS_COMMUNICATOR
  annulus::RingAttention refused(backend, backend);
#endif
}
