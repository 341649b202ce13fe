#pragma once
// The threads of the process: made once, shared by all backends, calls and ranks.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/core/cores.hpp"
#include "annulus/core/index.hpp"
#include "annulus/core/per_process.hpp"

namespace annulus::cpu {

/// The threads that work on one call. Who is slot 0 is the caller; slots may join late or not at all, so work is taken
/// from counters, never dealt out to slots.
class Team {
 public:
  /// Waits until ready() says so. Throws where another slot has failed: what is waited for will then never come.
  template <class Ready>
  void wait_until(Ready&& ready) const {
    for (int turn = 0; !ready(); ++turn) {
      if (failed_.load(std::memory_order_relaxed)) throw std::runtime_error("another thread of the team failed");
      if (turn > 200) std::this_thread::yield();
    }
  }

 private:
  friend class ThreadPool;

  /// True if this is the first failure, the one to report.
  bool fail() { return !failed_.exchange(true); }

  std::atomic<bool> failed_{false};
};

class [[gnu::visibility("default")]] ThreadPool {
 public:
  /// The pool of this process. A forked child, which has none of its parent's threads, has a pool of its own.
  static ThreadPool& shared() { return PerProcess<ThreadPool>::get(); }

  /// Threads that this process's share of the machine runs at the same time.
  int cores() const { return ProcessCores::shared().count(); }

  ThreadPool() = default;
  ThreadPool(ThreadPool const&) = delete;
  ThreadPool& operator=(ThreadPool const&) = delete;
  ~ThreadPool() {
    {
      std::lock_guard const lock(mutex_);
      ending_ = true;
    }
    wake_workers_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  class Call;

 private:
  struct Job {
    void (*call)(void*, Team&, int) = nullptr;
    void* context = nullptr;
    bool automatic = false;
    int wanted = 0, joined = 0, running = 0;
    Team team;
    std::exception_ptr failure;
    Job* next = nullptr;
  };

  static void execute(Job& job, int slot) {
    bool const before = std::exchange(works_, true);
    try {
      job.call(job.context, job.team, slot);
    } catch (...) {
      if (job.team.fail()) job.failure = std::current_exception();
    }
    works_ = before;
  }

  /// The calling thread begins to work on the job, and others may.
  void publish(Job& job) {
    {
      std::lock_guard const lock(mutex_);
      ++active_;
      if (job.wanted == 0) return;
      try {
        while (static_cast<int>(workers_.size()) < job.wanted) workers_.emplace_back([this] { serve(); });
      } catch (std::exception const&) {  // no more threads to be had: those that are there do the work
      }
      job.next = jobs_;
      jobs_ = &job;
    }
    wake_workers_.notify_all();
  }

  /// The calling thread has nothing left to do for the job. Returns when the workers have ended, too.
  void withdraw(Job& job) {
    std::unique_lock lock(mutex_);
    for (Job** place = &jobs_; *place; place = &(*place)->next)
      if (*place == &job) {
        *place = job.next;
        break;
      }
    end_thread();
    job_is_done_.wait(lock, [&] { return job.running == 0; });
  }

  /// The job that has the fewest workers of those that still want one. Calls that wait come first.
  Job* open_job() {
    Job* open = nullptr;
    for (Job* job = jobs_; job; job = job->next)
      if (job->joined < job->wanted && (!job->automatic || (active_ < cores() && waiting_calls_ == 0)) &&
          (!open || job->joined <= open->joined))
        open = job;
    return open;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = nullptr;
      wake_workers_.wait(lock, [&] { return ending_ || (job = open_job()); });
      if (ending_) return;
      int const slot = ++job->joined;
      ++job->running;
      ++active_;
      lock.unlock();
      execute(*job, slot);
      lock.lock();
      end_thread();
      if (--job->running == 0) job_is_done_.notify_all();
    }
  }

  /// A thread of a call has ended.
  void end_thread() {
    --active_;
    if (jobs_) wake_workers_.notify_one();
  }

  /// The second has something to do for a core whose first is waking up, waits, or was put on another core.
  static constexpr int calls_per_core = 2;

  /// This thread works on a call: calls that it makes meanwhile must not wait for others to end.
  static inline thread_local bool works_ = false;

  std::mutex mutex_;
  std::condition_variable wake_workers_, call_may_begin_, job_is_done_;
  Job* jobs_ = nullptr;
  int active_ = 0;           ///< threads of calls
  int automatic_calls_ = 0;  ///< under way
  int waiting_calls_ = 0;
  bool ending_ = false;
  std::vector<std::thread> workers_;
};

/// A call, on the calling thread and on others. threads 0, automatic: on as many as there are cores that no other call is
/// using. Two automatic calls for each core are under way at most: the constructor waits for its turn.
class ThreadPool::Call {
 public:
  Call(ThreadPool& pool, int threads) : pool_(pool), threads_(threads) {
    if (!is_automatic()) return;
    std::unique_lock lock(pool_.mutex_);
    int const most = calls_per_core * pool_.cores();
    ++pool_.waiting_calls_;
    if (!works_) pool_.call_may_begin_.wait(lock, [&] { return pool_.automatic_calls_ < most; });
    --pool_.waiting_calls_;
    ++pool_.automatic_calls_;
    expected_ = ceil_divide(pool_.cores(), pool_.automatic_calls_ + pool_.waiting_calls_);
  }
  Call(Call const&) = delete;
  Call& operator=(Call const&) = delete;
  ~Call() {
    if (!is_automatic()) return;
    std::lock_guard const lock(pool_.mutex_);
    --pool_.automatic_calls_;
    pool_.call_may_begin_.notify_one();
  }

  /// Threads that may take part, and those that are likely to while other calls are under way.
  Index most() const { return is_automatic() ? pool_.cores() : threads_; }
  Index expected() const { return is_automatic() ? expected_ : threads_; }

  /// Calls work(team, slot) on the calling thread (slot 0) and on up to most - 1 others at the same time, never more than
  /// most(), and returns when all are done. What a slot throws is thrown here.
  template <class Work>
  void run(Index most, Work&& work) {
    Job job;
    job.automatic = is_automatic();
    job.wanted = static_cast<int>(std::min(this->most(), most)) - 1;
    job.context = &work;
    job.call = [](void* context, Team& team, int slot) {
      (*static_cast<std::remove_reference_t<Work>*>(context))(team, slot);
    };
    pool_.publish(job);
    execute(job, 0);
    pool_.withdraw(job);
    if (job.failure) std::rethrow_exception(job.failure);
  }

 private:
  bool is_automatic() const { return threads_ == 0; }

  ThreadPool& pool_;
  int threads_;
  Index expected_ = 1;
};

}  // namespace annulus::cpu
