#pragma once
// Thread pool of the process, shared by all backends, calls and ranks.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/core/default_threads.hpp"
#include "annulus/core/index.hpp"
#include "annulus/core/process.hpp"

namespace annulus::cpu::detail {

/// The threads that work on one call. Slot 0 is the calling thread. Others may join late or never, so work is claimed
/// from a shared counter, never assigned to slots. Concurrency: any thread of the team calls wait_until and fail.
class Team {
 public:
  /// Polls until ready() returns true. Throws std::runtime_error if another slot has failed: it may never become true.
  template <class Ready>
  void wait_until(Ready&& ready) const {
    for (int polls = 0; !ready(); ++polls) {
      if (failed_.load(std::memory_order_relaxed)) throw std::runtime_error("another thread of the team failed");
      if (polls > 200) std::this_thread::yield();
    }
  }

 private:
  friend class ThreadPool;

  /// Records a failure; true for the first one, which is the one to report.
  bool fail() { return !failed_.exchange(true); }

  std::atomic<bool> failed_{false};
};

/// Worker threads, created on demand, that serve the calls in progress.
///
/// Concurrency. "The lock" is mutex_.
///  * shared, cores: called by any thread.
///  * publish, withdraw: called by the thread that makes a call; both take the lock. After withdraw no worker uses the
///    job.
///  * execute: called by the calling thread and by workers at the same time, without the lock.
///  * serve: the function of a worker, which holds the lock except while it waits or executes a job.
///  * open_job, end_thread: called with the lock held.
///  * ~ThreadPool: called when no call is in progress.
class [[gnu::visibility("default")]] ThreadPool {
 public:
  /// The pool of this process. A forked child, which has none of its parent's threads, gets a new pool.
  static ThreadPool& shared() { return PerProcess<ThreadPool>::get(); }

  /// Number of threads that automatic calls use together: default_threads() when the pool was created.
  int cores() const { return cores_; }

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
    // Set before the job is published.
    void (*call)(void*, Team&, int) = nullptr;
    void* context = nullptr;
    bool automatic = false;
    int wanted = 0;
    // Guarded by the lock.
    int joined = 0, running = 0;
    Job* next = nullptr;
    // Used by all slots. Of those that fail the first one sets the failure, which the caller reads after withdraw.
    Team team;
    std::exception_ptr failure;
  };

  static void execute(Job & job, int slot) {
    bool const before = std::exchange(works_, true);
    try {
      job.call(job.context, job.team, slot);
    } catch (...) {
      if (job.team.fail()) job.failure = std::current_exception();
    }
    works_ = before;
  }

  /// Counts the calling thread as active and offers the job to workers, creating missing ones.
  void publish(Job & job) {
    {
      std::lock_guard const lock(mutex_);
      ++active_;
      if (job.wanted == 0) return;
      try {
        while (static_cast<int>(workers_.size()) < job.wanted) workers_.emplace_back([this] { serve(); });
      } catch (std::exception const&) {  // the system refuses further threads: existing ones do the work
      }
      job.next = jobs_;
      jobs_ = &job;
    }
    wake_workers_.notify_all();
  }

  /// Ends the calling thread's part in the job. Returns when all workers have ended theirs.
  void withdraw(Job & job) {
    std::unique_lock lock(mutex_);
    for (Job** place = &jobs_; *place; place = &(*place)->next)
      if (*place == &job) {
        *place = job.next;
        break;
      }
    end_thread();
    job_is_done_.wait(lock, [&] { return job.running == 0; });
  }

  /// The job with the fewest workers among those that want more; null if there is none. An automatic job gets a worker
  /// only while a core is idle and no call waits to begin.
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

  /// Counts one thread less as active and wakes a worker, which may join another job.
  void end_thread() {
    --active_;
    if (jobs_) wake_workers_.notify_one();
  }

  /// The second call keeps a core busy while the thread of the first wakes up, waits or runs on another core.
  static constexpr int calls_per_core = 2;

  /// True while this thread works on a call. Calls made meanwhile must not wait for others to end.
  static inline thread_local bool works_ = false;

  int const cores_ = default_threads();
  std::mutex mutex_;                        ///< guards all that follows
  std::condition_variable wake_workers_;    ///< workers wait for it
  std::condition_variable call_may_begin_;  ///< constructors of automatic calls wait for it
  std::condition_variable job_is_done_;     ///< calling threads wait for it in withdraw
  Job* jobs_ = nullptr;                     ///< published and not withdrawn, the newest first
  int active_ = 0;                          ///< threads that work on calls, calling threads included
  int automatic_calls_ = 0;                 ///< automatic calls in progress
  int waiting_calls_ = 0;                   ///< blocked in the constructor of Call
  bool ending_ = false;
  std::vector<std::thread> workers_;
};

/// A call that runs on the calling thread and on workers. threads 0, automatic: uses the cores that no other call uses.
/// At most calls_per_core automatic calls per core are in progress: the constructor waits until it may begin.
/// Concurrency: one thread constructs, uses and destroys a call; different threads may do so at once.
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
    expected_ = annulus::detail::ceil_divide(pool_.cores(), pool_.automatic_calls_ + pool_.waiting_calls_);
  }
  Call(Call const&) = delete;
  Call& operator=(Call const&) = delete;
  ~Call() {
    if (!is_automatic()) return;
    std::lock_guard const lock(pool_.mutex_);
    --pool_.automatic_calls_;
    pool_.call_may_begin_.notify_one();
  }

  /// Largest number of threads, and the number to expect with the other calls in progress.
  Index most() const { return is_automatic() ? pool_.cores() : threads_; }
  Index expected() const { return is_automatic() ? expected_ : threads_; }

  /// Calls work(team, slot) concurrently on the calling thread (slot 0) and on up to most - 1 workers, at most most()
  /// threads in all. Returns when all are done; rethrows the first exception of a slot.
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

}  // namespace annulus::cpu::detail
