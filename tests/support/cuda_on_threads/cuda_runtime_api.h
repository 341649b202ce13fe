#pragma once
// The part of CUDA's runtime that rings of GPUs use, on the host: a GPU is a number, its memory is host memory, and a
// stream is a thread that does the work put on it, with pauses of random length. Found on the include path in place of
// CUDA's header of this name.
//
// It means what CUDA means: a wait is for the record of an event that was the last when the wait was submitted. It is
// stricter where a ring relies on it: a wait for an event that was never recorded, and a record on a stream of another
// GPU, are errors. Processes forked under SharedWithForks open each other's memory and events.

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorLaunchFailure = 719
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0 };
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDefault = 4 };
constexpr unsigned cudaEventDisableTiming = 2, cudaEventInterprocess = 4, cudaStreamNonBlocking = 1,
                   cudaMemAttachGlobal = 1, cudaIpcMemLazyEnablePeerAccess = 1, cudaEnableDefault = 0;
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };

namespace cuda_on_threads {

/// What tests set, and what they read.
struct Machine {
  static constexpr int gpus = 4;
  std::atomic<int> streams{0}, events{0}, allocations{0};  ///< alive
  std::atomic<int> opened{0};                              ///< allocations of other processes that are open
  std::atomic<int> failing_copies{0};                      ///< so many calls of cudaMemcpyAsync fail
  std::atomic<pid_t> dead{0};                              ///< process for which streams wait no longer
  std::array<std::atomic<bool>, gpus> failed{};            ///< work of a GPU has failed: every query says so
  std::atomic<unsigned> longest_pause{200};                ///< in microseconds; one piece of work in four has a pause

  /// The line in the source of each cudaStreamWaitEvent that was called, and the one that does nothing.
  std::mutex mutex;
  std::set<unsigned> waits;
  std::optional<unsigned> omitted_wait;
  std::map<std::byte const*, std::pair<std::size_t, cudaPointerAttributes>> memory;  ///< by address, with its size

  static Machine& instance() {
    static Machine machine;
    return machine;
  }
};

inline thread_local int current_gpu = 0;
inline thread_local cudaError_t last_error = cudaSuccess;

/// Notes an error for cudaGetLastError, and returns it.
inline cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

/// Memory that a process shares with those it forks.
struct SharedMemory {
  static constexpr std::size_t bytes = std::size_t{1} << 27, most_allocations = 4096;

  /// Never freed, so that each has an address of its own in all processes.
  struct Allocation {
    std::atomic<std::byte*> first;
    std::size_t bytes;
    pid_t owner;
  };
  std::atomic<std::size_t> used, count;
  Allocation allocations[most_allocations];

  /// Null if there is no more.
  std::byte* allocate(std::size_t size) {
    std::size_t const offset = used.fetch_add((size + 256) / 256 * 256), index = count.fetch_add(1);
    if (offset + size >= bytes || index >= most_allocations) return nullptr;
    std::byte* const first = reinterpret_cast<std::byte*>(this) + offset;
    allocations[index].bytes = size;
    allocations[index].owner = getpid();
    return allocations[index].first = first;
  }
  /// The allocation that holds the place; null if none does.
  Allocation* find(void const* place) {
    auto const* const byte = static_cast<std::byte const*>(place);
    for (std::size_t i = 0; i < count && i < most_allocations; ++i)
      if (std::byte* const first = allocations[i].first; first && byte >= first && byte < first + allocations[i].bytes)
        return &allocations[i];
    return nullptr;
  }
};
inline SharedMemory* shared_memory = nullptr;

/// While it lives, cudaMalloc and events of several processes use memory that the forked processes share.
class SharedWithForks {
 public:
  SharedWithForks() {
    void* const data =
        mmap(nullptr, SharedMemory::bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) std::abort();
    shared_memory = static_cast<SharedMemory*>(data);
    shared_memory->used = (sizeof(SharedMemory) + 255) / 256 * 256;
  }
  ~SharedWithForks() { munmap(std::exchange(shared_memory, nullptr), SharedMemory::bytes); }
};

/// Records of an event that several processes use: how many there are, and how many have been reached.
struct SharedRecords {
  std::atomic<std::uint64_t> made, reached;
  pid_t owner;

  /// Waits by polling, for a record that another process may reach.
  void wait(std::uint64_t record) const {
    while (reached < record && Machine::instance().dead != owner)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
};

/// One record of an event.
class Record {
 public:
  void reach() {
    std::lock_guard const lock(mutex_);
    reached_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
  }
  bool reached() {
    std::lock_guard const lock(mutex_);
    return reached_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
};

class Event {
 public:
  int const gpu = current_gpu;
  SharedRecords* const shared;  ///< null in an event of this process alone

  explicit Event(SharedRecords* records = nullptr) : shared(records) { ++Machine::instance().events; }
  ~Event() { --Machine::instance().events; }
  void set(std::shared_ptr<Record> record) {
    std::lock_guard const lock(mutex_);
    last_ = std::move(record);
  }
  std::shared_ptr<Record> last() {
    std::lock_guard const lock(mutex_);
    return last_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<Record> last_;
};

class Stream {
 public:
  int const gpu = current_gpu;

  Stream() { ++Machine::instance().streams; }
  /// Does the work that is on it.
  ~Stream() {
    put({});
    thread_.join();
    --Machine::instance().streams;
  }
  void put(std::function<void()> work) {
    std::lock_guard const lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  bool idle() {
    std::lock_guard const lock(mutex_);
    return work_.empty();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty(); });
  }

 private:
  void run() {
    static std::atomic<unsigned> made{0};
    std::minstd_rand random(++made);
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !work_.empty(); });
      auto const work = work_.front();
      lock.unlock();
      if (!work) return;
      if (unsigned const longest = Machine::instance().longest_pause; longest != 0 && random() % 4 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % longest));
      work();
      lock.lock();
      work_.pop_front();  // after the work: a stream that works is not idle
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::thread thread_{[this] { run(); }};
};

inline cudaError_t allocate(void** bytes, std::size_t size, cudaMemoryType type) {
  // Unlike CUDA's, managed memory has an address in other processes, so that their hosts can look into what they copy.
  bool const is_shared = shared_memory && type != cudaMemoryTypeHost;
  *bytes = is_shared ? shared_memory->allocate(size) : std::malloc(size + 1);
  if (!*bytes) return note(cudaErrorMemoryAllocation);
  std::memset(*bytes, 0xFF, size);  // NaN
  auto& machine = Machine::instance();
  ++machine.allocations;
  std::lock_guard const lock(machine.mutex);
  machine.memory[static_cast<std::byte*>(*bytes)] = {size, {type, current_gpu}};
  return cudaSuccess;
}
inline cudaError_t release(void* bytes) {
  auto& machine = Machine::instance();
  std::lock_guard const lock(machine.mutex);
  if (bytes) --machine.allocations;
  machine.memory.erase(static_cast<std::byte*>(bytes));
  if (!shared_memory || !shared_memory->find(bytes)) std::free(bytes);
  return cudaSuccess;
}

}  // namespace cuda_on_threads

using cudaStream_t = cuda_on_threads::Stream*;
using cudaEvent_t = cuda_on_threads::Event*;
using cudaHostFn_t = void (*)(void*);

inline char const* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorNotReady ? "cudaErrorNotReady" : error == cudaSuccess ? "cudaSuccess" : "cudaError";
}
inline char const* cudaGetErrorString(cudaError_t) { return "an error of CUDA on threads"; }
inline cudaError_t cudaGetLastError() { return std::exchange(cuda_on_threads::last_error, cudaSuccess); }

inline cudaError_t cudaGetDeviceCount(int* count) { return *count = cuda_on_threads::Machine::gpus, cudaSuccess; }
inline cudaError_t cudaGetDevice(int* gpu) { return *gpu = cuda_on_threads::current_gpu, cudaSuccess; }
inline cudaError_t cudaSetDevice(int gpu) {
  if (gpu < 0 || gpu >= cuda_on_threads::Machine::gpus) return cuda_on_threads::note(cudaErrorInvalidDevice);
  return cuda_on_threads::current_gpu = gpu, cudaSuccess;
}
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int gpu, int other) { return *can = gpu != other, cudaSuccess; }
inline cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cuda_on_threads::note(cudaErrorPeerAccessAlreadyEnabled);
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = new cuda_on_threads::Stream, cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return stream->wait(), cudaSuccess; }
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cuda_on_threads::note(stream->idle() ? cudaSuccess : cudaErrorNotReady);
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  using namespace cuda_on_threads;
  if ((flags & cudaEventInterprocess) == 0) return *event = new Event, cudaSuccess;
  auto* const bytes = shared_memory ? shared_memory->allocate(sizeof(SharedRecords)) : nullptr;
  if (!bytes) return note(cudaErrorMemoryAllocation);
  auto* const records = reinterpret_cast<SharedRecords*>(bytes);  // zeros are no records
  records->owner = getpid();
  return *event = new Event(records), cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->gpu != stream->gpu) return cuda_on_threads::note(cudaErrorInvalidResourceHandle);
  if (auto* const shared = event->shared) {
    std::uint64_t const number = ++shared->made;
    return stream->put([=] { shared->reached = number; }), cudaSuccess;
  }
  auto const record = std::make_shared<cuda_on_threads::Record>();
  event->set(record);
  stream->put([record] { record->reach(); });
  return cudaSuccess;
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (cuda_on_threads::Machine::instance().failed[static_cast<std::size_t>(event->gpu)])
    return cuda_on_threads::note(cudaErrorLaunchFailure);
  if (auto* const shared = event->shared)
    return cuda_on_threads::note(shared->reached >= shared->made ? cudaSuccess : cudaErrorNotReady);
  auto const record = event->last();
  return cuda_on_threads::note(!record || record->reached() ? cudaSuccess : cudaErrorNotReady);
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned,
                                       unsigned line = __builtin_LINE()) {
  auto& machine = cuda_on_threads::Machine::instance();
  {
    std::lock_guard const lock(machine.mutex);
    machine.waits.insert(line);
    if (machine.omitted_wait == line) return cudaSuccess;
  }
  if (auto* const shared = event->shared) {
    std::uint64_t const number = shared->made;
    if (number == 0) return cuda_on_threads::note(cudaErrorInvalidValue);
    return stream->put([=] { shared->wait(number); }), cudaSuccess;
  }
  auto const record = event->last();
  if (!record) return cuda_on_threads::note(cudaErrorInvalidValue);
  stream->put([record] { record->wait(); });
  return cudaSuccess;
}

inline cudaError_t cudaMalloc(void** bytes, std::size_t size) {
  return cuda_on_threads::allocate(bytes, size, cudaMemoryTypeDevice);
}
inline cudaError_t cudaMallocHost(void** bytes, std::size_t size) {
  return cuda_on_threads::allocate(bytes, size, cudaMemoryTypeHost);
}
inline cudaError_t cudaMallocManaged(void** bytes, std::size_t size, unsigned) {
  return cuda_on_threads::allocate(bytes, size, cudaMemoryTypeManaged);
}
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, void const* pointer) {
  auto& machine = cuda_on_threads::Machine::instance();
  std::lock_guard const lock(machine.mutex);
  auto const* const byte = static_cast<std::byte const*>(pointer);
  *attributes = {cudaMemoryTypeUnregistered, -2};
  auto const after = machine.memory.upper_bound(byte);
  if (after == machine.memory.begin()) return cudaSuccess;
  auto const& [begin, block] = *std::prev(after);
  if (byte < begin + block.first) *attributes = block.second;
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* bytes) { return cuda_on_threads::release(bytes); }
inline cudaError_t cudaFreeHost(void* bytes) { return cuda_on_threads::release(bytes); }
inline cudaError_t cudaMemcpy(void* to, void const* from, std::size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  auto& failing = cuda_on_threads::Machine::instance().failing_copies;
  for (int left = failing; left > 0;)
    if (failing.compare_exchange_weak(left, left - 1)) return cuda_on_threads::note(cudaErrorLaunchFailure);
  return stream->put([=] { std::memcpy(to, from, bytes); }), cudaSuccess;
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return stream->put([=] { function(argument); }), cudaSuccess;
}

/// Of memory and events of another process: its place in the memory that they share.
struct cudaIpcMemHandle_t {
  void* place;
};
struct cudaIpcEventHandle_t {
  void* place;
};

inline cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  using namespace cuda_on_threads;
  auto const* const allocation = shared_memory ? shared_memory->find(data) : nullptr;
  if (!allocation || allocation->first != data) return note(cudaErrorInvalidValue);
  return *handle = {data}, cudaSuccess;
}
/// As in CUDA, the process that has made what the handle means cannot open it.
inline cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned) {
  using namespace cuda_on_threads;
  auto const* const allocation = shared_memory ? shared_memory->find(handle.place) : nullptr;
  if (!allocation || allocation->owner == getpid()) return note(cudaErrorInvalidResourceHandle);
  return ++Machine::instance().opened, *data = handle.place, cudaSuccess;
}
inline cudaError_t cudaIpcCloseMemHandle(void*) { return --cuda_on_threads::Machine::instance().opened, cudaSuccess; }
inline cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  if (!event->shared) return cuda_on_threads::note(cudaErrorInvalidResourceHandle);
  return *handle = {event->shared}, cudaSuccess;
}
inline cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  using namespace cuda_on_threads;
  auto const* const allocation = shared_memory ? shared_memory->find(handle.place) : nullptr;
  if (!allocation || allocation->owner == getpid()) return note(cudaErrorInvalidResourceHandle);
  return *event = new Event(static_cast<SharedRecords*>(handle.place)), cudaSuccess;
}

/// The one function of the driver that is here: cuMemGetAddressRange.
inline cudaError_t cudaGetDriverEntryPoint(char const*, void** function, unsigned long long,
                                           cudaDriverEntryPointQueryResult*) {
  auto* const find = +[](unsigned long long* first, std::size_t* bytes, unsigned long long place) -> int {
    auto* const memory = cuda_on_threads::shared_memory;
    auto const* const allocation = memory ? memory->find(reinterpret_cast<void const*>(place)) : nullptr;
    if (!allocation) return cudaErrorInvalidValue;
    *first = reinterpret_cast<std::uintptr_t>(allocation->first.load());
    return *bytes = allocation->bytes, 0;
  };
  return *function = reinterpret_cast<void*>(find), cudaSuccess;
}
