#pragma once
// A loan over MPI, as its borrower holds it, and the buffers that ranks lend from.

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "annulus/comm/lending.hpp"
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

class MpiLoan {
 public:
  MpiLoan(std::shared_ptr<MpiEndpoint> endpoint, LoanNumber number) : endpoint_(std::move(endpoint)), number_(number) {}
  MpiLoan(MpiLoan&& other) noexcept { *this = std::move(other); }
  MpiLoan& operator=(MpiLoan&& other) noexcept {
    std::swap(endpoint_, other.endpoint_);
    std::swap(number_, other.number_);
    std::swap(taken_, other.taken_);
    std::swap(state_, other.state_);
    other.end();
    return *this;
  }
  ~MpiLoan() { end(); }

  void wait() {
    if (state_ == failed) endpoint_->require_open();
    if (state_ != under_way) return;
    state_ = failed;
    taken_ = endpoint_->complete(number_);
    state_ = complete;
  }

  BorrowedBytes runs() const { return std::span(taken_.runs).first(taken_.count); }

  void give_back() noexcept { MpiSharedMemory::give_back(taken_); }

 private:
  void end() noexcept {
    give_back();
    if (auto const endpoint = std::exchange(endpoint_, nullptr); endpoint && state_ == under_way)
      endpoint->drop(number_);
  }

  std::shared_ptr<MpiEndpoint> endpoint_;
  LoanNumber number_;
  TakenLoan taken_;
  enum { under_way, failed, complete } state_ = under_way;
};

}  // namespace annulus::detail
