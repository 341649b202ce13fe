#pragma once
// MpiRing on GPU memory: its bytes go to MPI as they are where MPI says that it is CUDA-aware, else through pinned host
// memory. Needs MPI and the CUDA toolkit; not part of the umbrella.

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "annulus/comm/cuda_staging.hpp"
#include "annulus/comm/device_ring.hpp"
#include "annulus/comm/mpi.hpp"

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace annulus {

/// True if MPI says that it reads and writes GPU memory; false if it has no way to say so. Open MPI and MPICH from
/// version 4 on can be asked.
inline bool mpi_is_cuda_aware() {
#if (defined(OMPI_HAVE_MPI_EXT_CUDA) && OMPI_HAVE_MPI_EXT_CUDA) || \
    (defined(MPICH_NUMVERSION) && MPICH_NUMVERSION >= 40000000)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

/// How MpiCudaRing passes GPU memory to MPI.
enum class GpuMessages {
  automatic,  ///< direct if mpi_is_cuda_aware(), else staged
  direct,     ///< addresses of GPU memory
  staged,     ///< copies in pinned host memory
};

/// A ring of GPUs over MPI, one rank a process. The host waits in start_shift for the work on the queue, and in wait
/// for the messages. Ranks need not agree in the choice of GpuMessages.
class MpiCudaRing : public detail::RingOver<CudaMemory, MpiRing> {
  using Direct = DeviceRing<CudaMemory, MpiRing>;
  using Staged = StagedRing<CudaMemory, MpiRing, CudaStaging>;

 public:
  /// The rank's GPU is current; `inner` must outlive it.
  explicit MpiCudaRing(MpiRing& inner, GpuMessages messages = GpuMessages::automatic)
      : RingOver(inner), direct_(inner) {
    if (messages == GpuMessages::staged || (messages == GpuMessages::automatic && !mpi_is_cuda_aware()))
      staged_.emplace(inner);
  }

  bool is_staged() const { return staged_.has_value(); }  ///< the choice that was made

  /// A pending shift.
  class Transfer {
   public:
    /// Waits on the host; bytes that were staged have then been copied to the GPU.
    void wait(CudaMemory::Queue const& queue) {
      std::visit([&](auto& transfer) { transfer.wait(queue); }, transfer_);
    }
    /// Advances the messages.
    void progress() noexcept {
      std::visit([](auto& transfer) { transfer.progress(); }, transfer_);
    }

   private:
    friend class MpiCudaRing;
    template <class Inner>
    explicit Transfer(Inner transfer) : transfer_(std::move(transfer)) {}
    std::variant<Direct::Transfer, Staged::Transfer> transfer_;
  };

  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in, CudaMemory::Queue const& queue) {
    if (staged_) return Transfer(staged_->ring.start_shift(channel, hop, out, in, queue));
    return Transfer(direct_.start_shift(channel, hop, out, in, queue));
  }

 private:
  struct StagedMessages {
    CudaStaging staging;
    Staged ring;

    explicit StagedMessages(MpiRing& inner) : ring(inner, staging) {}
  };

  Direct direct_;
  std::optional<StagedMessages> staged_;
};

static_assert(Communicator<MpiCudaRing> && CallRecordingCommunicator<MpiCudaRing> &&
              TopologyAwareCommunicator<MpiCudaRing>);

}  // namespace annulus
