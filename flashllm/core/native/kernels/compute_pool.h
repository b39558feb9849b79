// Threads that compute parts of one job together with the caller.
//
// Threads take part after part until there are none, so that one whose processor is taken away
// holds up nobody by more than the part it is in; one that never came is not waited for.
// They spin for at most 200 microseconds after a job, since the next one of the same layer follows
// soon, and then sleep: a processor that is idle takes as long to wake in a virtual machine. Not a
// goal: queues, priorities, jobs that throw. Threads: one caller at a time. In a child of fork()
// the caller does every part by itself.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace flash_core {

class ComputePool {
 public:
  explicit ComputePool(int threads);  // the caller is one of them
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  // Calls job(0) to job(parts - 1), once each, whichever thread comes first, and returns when all
  // have returned.
  void run(int parts, const std::function<void(int)>& job);
  int threads() const { return threads_wanted_; }

 private:
  struct Signals {
    std::mutex mutex;
    std::condition_variable started;
    std::condition_variable finished;
  };

  void work();
  bool help();  // true when the last part was finished here
  void stop();
  bool wait_for_generation(uint64_t* seen);

  int threads_wanted_;
  pid_t process_;
  std::unique_ptr<Signals> signals_ = std::make_unique<Signals>();  // given up after fork()
  std::atomic<uint64_t> generation_{0};  // counts jobs; changed with the lock held
  std::atomic<int> unclaimed_{0};
  std::atomic<int> unfinished_{0};
  std::atomic<bool> stopping_{false};
  const std::function<void(int)>* job_ = nullptr;
  int parts_ = 0;
  std::vector<std::thread> workers_;
};

}  // namespace flash_core
