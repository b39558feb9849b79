#include "compute_pool.h"

#include <unistd.h>

#include <chrono>

#include "threads.h"

namespace flash_core {

namespace {

constexpr std::chrono::microseconds kSpin(50);

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
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
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
  {
    const std::lock_guard<std::mutex> lock(signals_->mutex);
    job_ = &job;
    parts_ = parts;
    unfinished_.store(static_cast<int>(workers_.size()));
    generation_.fetch_add(1, std::memory_order_release);
  }
  signals_->started.notify_all();
  job(0);
  const auto all_finished = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
  if (spin_until(all_finished)) return;
  std::unique_lock<std::mutex> lock(signals_->mutex);
  signals_->finished.wait(lock, all_finished);
}

// Until there is a job after the one numbered `seen`; false when there will be none.
bool ComputePool::wait_for_generation(uint64_t seen) {
  const auto changed = [this, seen] { return generation_.load(std::memory_order_acquire) != seen; };
  if (!spin_until(changed)) {
    std::unique_lock<std::mutex> lock(signals_->mutex);
    signals_->started.wait(lock, changed);
  }
  return !stopping_.load();
}

void ComputePool::work(int index) {
  for (uint64_t seen = 0; wait_for_generation(seen); ++seen) {
    if (index < parts_) (*job_)(index);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      {
        const std::lock_guard<std::mutex> lock(signals_->mutex);
      }  // the caller is asleep, or not yet
      signals_->finished.notify_one();
    }
  }
}

}  // namespace flash_core
