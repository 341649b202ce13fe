#pragma once
// The threads of the process: made once, shared by all backends, calls and ranks.

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#include "annulus/core/cores.hpp"
#include "annulus/core/index.hpp"

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

class ThreadPool {
 public:
  /// Never destroyed: a forked child has the pool but not its threads, and must be able to end.
  static ThreadPool& shared() {
    static ThreadPool& pool = *new ThreadPool;
    return pool;
  }

  /// Threads that this process's share of the machine runs at the same time.
  int cores() const { return ProcessCores::shared().count(); }

  /// Of `threads` as in run(), those that a call that begins now may expect while other calls are under way.
  Index expected(int threads) {
    if (threads != 0) return threads;
    std::lock_guard const lock(mutex_);
    return ceil_divide(cores(), calls_ + 1);
  }

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

  /// Calls work(team, slot) on the calling thread (slot 0) and on up to threads - 1 others at the same time, and returns
  /// when all are done. threads 0: as many as there are cores that no other call is using, and the caller at least; calls
  /// beyond two for each core wait. Never more than `most`, from 1. What a slot throws is thrown here.
  template <class Work>
  void run(int threads, Index most, Work&& work) {
    Job job;
    job.automatic = threads == 0;
    job.wanted = static_cast<int>(std::min<Index>(job.automatic ? cores() : threads, most)) - 1;
    job.context = &work;
    job.call = [](void* context, Team& team, int slot) {
      (*static_cast<std::remove_reference_t<Work>*>(context))(team, slot);
    };
    enter(job);
    execute(job, 0);
    leave(job);
    if (job.failure) std::rethrow_exception(job.failure);
  }

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
    try {
      job.call(job.context, job.team, slot);
    } catch (...) {
      if (job.team.fail()) job.failure = std::current_exception();
    }
  }

  void enter(Job& job) {
    std::unique_lock lock(mutex_);
    ++calls_;
    if (job.automatic) {
      ++waiting_calls_;
      call_may_begin_.wait(lock, [&] { return active_ < calls_per_core * cores(); });
      --waiting_calls_;
    }
    ++active_;
    if (job.wanted == 0) return;
    try {
      while (static_cast<int>(workers_.size()) < job.wanted) workers_.emplace_back([this] { serve(); });
    } catch (std::system_error const&) {  // no more threads to be had: those that are there do the work
    }
    job.next = jobs_;
    jobs_ = &job;
    lock.unlock();
    wake_workers_.notify_all();
  }

  void leave(Job& job) {
    std::unique_lock lock(mutex_);
    for (Job** place = &jobs_; *place; place = &(*place)->next)
      if (*place == &job) {
        *place = job.next;
        break;
      }
    --calls_;
    release_core();
    job_is_done_.wait(lock, [&] { return job.running == 0; });
  }

  void release_core() {
    --active_;
    call_may_begin_.notify_one();
    if (jobs_) wake_workers_.notify_one();
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
      release_core();
      if (--job->running == 0) job_is_done_.notify_all();
    }
  }

  /// The second has something to do for a core whose first is waking up, waits, or was put on another core.
  static constexpr int calls_per_core = 2;

  std::mutex mutex_;
  std::condition_variable wake_workers_, call_may_begin_, job_is_done_;
  Job* jobs_ = nullptr;
  int calls_ = 0;  ///< waiting or under way
  int active_ = 0, waiting_calls_ = 0;
  bool ending_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace annulus::cpu
