#pragma once
// The part of NCCL that NcclRing uses, on the streams of cuda_runtime_api.h. Found on the include path in place of
// NCCL's header of this name. An exchange whose two ends differ in length never ends, as on GPUs, until it is aborted.

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

enum ncclResult_t {
  ncclSuccess = 0,
  ncclSystemError = 2,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclDataType_t { ncclUint8 = 1 };
struct ncclUniqueId {
  char internal[128];
};
struct ncclConfig_t {
  int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
  { 1 }

namespace nccl_on_threads {

/// What the ranks of a communicator share.
struct World {
  struct Message {
    void const* bytes;
    std::size_t size;
    bool taken = false;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::tuple<int, int, std::uint64_t>, Message> messages;  ///< by sender, receiver and number
};

inline std::shared_ptr<World> world_of(std::uint64_t id) {
  static std::mutex mutex;
  static std::map<std::uint64_t, std::weak_ptr<World>> worlds;
  std::lock_guard const lock(mutex);
  auto world = worlds[id].lock();
  if (!world) worlds[id] = world = std::make_shared<World>();
  return world;
}

inline std::atomic<std::uint64_t> last_id{0};
inline std::atomic<int> communicators{0};  ///< alive

struct Communicator {
  std::uint64_t id;
  int rank, size;
  std::shared_ptr<World> world = world_of(id);
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::vector<std::uint64_t> sent = std::vector<std::uint64_t>(static_cast<std::size_t>(size)), received = sent;
  std::uint64_t splits = 0;

  Communicator(std::uint64_t the_id, int the_rank, int the_size) : id(the_id), rank(the_rank), size(the_size) {
    ++communicators;
  }
  ~Communicator() { --communicators; }
};

/// One call of ncclSend or ncclRecv.
struct Call {
  std::tuple<int, int, std::uint64_t> key;
  void* bytes;
  std::size_t size;
  bool sends;
};

struct Group {
  Communicator* communicator = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Call> calls;
};
inline thread_local Group group;

inline void carry_out(World& world, std::atomic<bool> const& aborted, std::vector<Call> const& calls) {
  std::unique_lock lock(world.mutex);
  for (Call const& call : calls)
    if (call.sends) world.messages[call.key] = {call.bytes, call.size};
  world.changed.notify_all();
  for (Call const& call : calls) {
    auto const found = [&] { return world.messages.find(call.key); };
    world.changed.wait(lock, [&] {
      if (aborted) return true;
      auto const message = found();
      if (call.sends) return message->second.taken;
      return message != world.messages.end() && message->second.size == call.size;
    });
    if (aborted) return;
    if (call.sends) {
      world.messages.erase(call.key);
      continue;
    }
    std::memcpy(call.bytes, found()->second.bytes, call.size);
    found()->second.taken = true;
    world.changed.notify_all();
  }
}

inline ncclResult_t call(void* bytes, std::size_t size, bool sends, int peer, Communicator* communicator,
                         cudaStream_t stream) {
  if (!communicator) return ncclInvalidArgument;
  auto& numbers = sends ? communicator->sent : communicator->received;
  std::uint64_t const number = numbers[static_cast<std::size_t>(peer)]++;
  int const from = sends ? communicator->rank : peer, to = sends ? peer : communicator->rank;
  group.communicator = communicator;
  group.stream = stream;
  // Receives come first: in a rank that sends to itself the send ends when it has been received.
  Call const one{{from, to, number}, bytes, size, sends};
  group.calls.insert(sends ? group.calls.end() : group.calls.begin(), one);
  return ncclSuccess;
}

}  // namespace nccl_on_threads

using ncclComm_t = nccl_on_threads::Communicator*;

inline char const* ncclGetErrorString(ncclResult_t) { return "an error of NCCL on threads"; }
inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::uint64_t const value = ++nccl_on_threads::last_id << 16;
  return std::memcpy(id->internal, &value, sizeof value), ncclSuccess;
}
inline ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id, int rank,
                                           ncclConfig_t*) {
  std::uint64_t value = 0;
  std::memcpy(&value, id.internal, sizeof value);
  return *communicator = new nccl_on_threads::Communicator(value, rank, size), ncclSuccess;
}
inline ncclResult_t ncclCommSplit(ncclComm_t whole, int, int rank, ncclComm_t* part, ncclConfig_t*) {
  std::uint64_t const id = whole->id + ++whole->splits;
  return *part = new nccl_on_threads::Communicator(id, rank, whole->size), ncclSuccess;
}
inline ncclResult_t ncclCommUserRank(ncclComm_t communicator, int* rank) {
  return *rank = communicator->rank, ncclSuccess;
}
inline ncclResult_t ncclCommCount(ncclComm_t communicator, int* size) {
  return *size = communicator->size, ncclSuccess;
}
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) { return *state = ncclSuccess, ncclSuccess; }
inline ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
inline ncclResult_t ncclCommDestroy(ncclComm_t communicator) { return delete communicator, ncclSuccess; }
inline ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  {
    std::lock_guard const lock(communicator->world->mutex);
    *communicator->aborted = true;
    communicator->world->changed.notify_all();
  }
  return delete communicator, ncclSuccess;
}

inline ncclResult_t ncclGroupStart() { return nccl_on_threads::group = {}, ncclSuccess; }
inline ncclResult_t ncclSend(void const* bytes, std::size_t size, ncclDataType_t, int peer, ncclComm_t communicator,
                             cudaStream_t stream) {
  return nccl_on_threads::call(const_cast<void*>(bytes), size, true, peer, communicator, stream);
}
inline ncclResult_t ncclRecv(void* bytes, std::size_t size, ncclDataType_t, int peer, ncclComm_t communicator,
                             cudaStream_t stream) {
  return nccl_on_threads::call(bytes, size, false, peer, communicator, stream);
}
inline ncclResult_t ncclGroupEnd() {
  auto group = std::exchange(nccl_on_threads::group, {});
  if (!group.communicator) return ncclSuccess;
  group.stream->put([world = group.communicator->world, aborted = group.communicator->aborted, calls = group.calls] {
    nccl_on_threads::carry_out(*world, *aborted, calls);
  });
  return ncclSuccess;
}
