#include "compute_pool.h"

#include <unistd.h>

#include <chrono>

#include "threads.h"

namespace flash_core {

namespace {

constexpr std::chrono::microseconds kSpin(200);

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

template <class Condition>
bool spin_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (condition()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

ComputePool::ComputePool(int threads) : threads_wanted_(threads), process_(getpid()) {
  const SignalsBlocked blocked;
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (...) {
    stop();
    throw;
  }
}

ComputePool::~ComputePool() { stop(); }

void ComputePool::stop() {
  if (getpid() != process_) {
    for (std::thread& worker : workers_) worker.detach();  // they stayed in the parent
    static_cast<void>(signals_.release());
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(signals_->mutex);
    stopping_.store(true);
    generation_.fetch_add(1);
  }
  signals_->started.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ComputePool::run(int parts, const std::function<void(int)>& job) {
  if (parts == 1 || workers_.empty() || getpid() != process_) {
    for (int part = 0; part < parts; ++part) job(part);
    return;
  }
  job_ = &job;
  parts_ = parts;
  unfinished_.store(parts, std::memory_order_relaxed);
  unclaimed_.store(parts, std::memory_order_release);
  {
    const std::lock_guard<std::mutex> lock(signals_->mutex);
    generation_.fetch_add(1, std::memory_order_release);
  }
  signals_->started.notify_all();
  help();
  const auto all_finished = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
  if (spin_until(all_finished)) return;
  std::unique_lock<std::mutex> lock(signals_->mutex);
  signals_->finished.wait(lock, all_finished);
}

// Claims parts until there are none. A job stays what it is while a claimed part is unfinished, so
// it is looked at only then: a thread that comes late finds nothing to claim, or the next job.
bool ComputePool::help() {
  bool last = false;
  int unclaimed = unclaimed_.load(std::memory_order_acquire);
  while (unclaimed > 0) {
    if (!unclaimed_.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acq_rel)) {
      continue;
    }
    (*job_)(parts_ - unclaimed);
    last = unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1;
    unclaimed = unclaimed_.load(std::memory_order_acquire);
  }
  return last;
}

// Until there is a job after the one numbered `seen`, which becomes its number; false when there
// will be none.
bool ComputePool::wait_for_generation(uint64_t* seen) {
  const auto changed = [this, seen] {
    return generation_.load(std::memory_order_acquire) != *seen;
  };
  if (!spin_until(changed)) {
    std::unique_lock<std::mutex> lock(signals_->mutex);
    signals_->started.wait(lock, changed);
  }
  *seen = generation_.load(std::memory_order_acquire);
  return !stopping_.load();
}

void ComputePool::work() {
  uint64_t seen = 0;
  while (wait_for_generation(&seen)) {
    if (!help()) continue;
    {
      const std::lock_guard<std::mutex> lock(signals_->mutex);
    }  // the caller is asleep, or not yet
    signals_->finished.notify_one();
  }
}

}  // namespace flash_core
