#pragma once
// Shared buffers of a ring over MPI, and the reader's handle of a window.

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "annulus/comm/zero_copy.hpp"
#include "annulus/comm/mpi/endpoint.hpp"

namespace annulus::detail {

/// Memory that the other ranks of the ring can map.
class MpiBuffer {
 public:
  MpiBuffer(std::shared_ptr<MpiSharedMemory> memory, Index bytes)
      : memory_(std::move(memory)), data_(memory_->allocate(bytes)), size_(bytes) {}
  MpiBuffer(MpiBuffer&& other) noexcept { *this = std::move(other); }
  MpiBuffer& operator=(MpiBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MpiBuffer() {
    if (data_) memory_->free(data_);
  }

  std::byte* data() const { return data_; }
  Index size() const { return size_; }

 private:
  std::shared_ptr<MpiSharedMemory> memory_;
  std::byte* data_ = nullptr;
  Index size_ = 0;
};

/// A window that this rank reads; models SharedWindow.
class MpiWindow {
 public:
  MpiWindow(std::shared_ptr<MpiEndpoint> endpoint, WindowNumber number)
      : endpoint_(std::move(endpoint)), number_(number) {}
  MpiWindow(MpiWindow&& other) noexcept { *this = std::move(other); }
  MpiWindow& operator=(MpiWindow&& other) noexcept {
    std::swap(endpoint_, other.endpoint_);
    std::swap(number_, other.number_);
    std::swap(taken_, other.taken_);
    std::swap(state_, other.state_);
    other.end();
    return *this;
  }
  ~MpiWindow() { end(); }

  void wait() {
    if (state_ == failed) endpoint_->require_open();
    if (state_ != pending) return;
    state_ = failed;
    taken_ = endpoint_->complete(number_);
    state_ = complete;
  }

  WindowRuns runs() const { return std::span(taken_.runs).first(taken_.count); }

  void release() noexcept { MpiSharedMemory::release(taken_); }

 private:
  void end() noexcept {
    release();
    if (auto const endpoint = std::exchange(endpoint_, nullptr); endpoint && state_ == pending)
      endpoint->drop(number_);
  }

  std::shared_ptr<MpiEndpoint> endpoint_;
  WindowNumber number_;
  AttachedWindow taken_;
  enum { pending, failed, complete } state_ = pending;
};

}  // namespace annulus::detail
