// Reads batches of one file into buffers, by a pool of threads or by one thread with a ring.
//
// Goals: one call a batch; everything checked before anything is queued; cancel and close leave
// no read in flight behind them. Not goals: writing, an order in which batches are done.
// Threads: every function may be called by any thread. Buffers live at least until their batch
// is done. After fork() a reader refuses to work, since its threads are not there.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "buffer.h"
#include "bundle_checks.h"
#include "file_source.h"
#include "read_meter.h"
#include "read_plan.h"
#include "source.h"

namespace flash_core {

// Who reads: threads that each wait for one read, or one that has many in flight (io_uring), which
// needs less than half the processor time a read. Automatic is threads: they were the
// faster ones where other programs wanted the cores too.
enum class Backend { automatic, threads, uring };

// Which batches come first. Ahead: it is only likely that somebody waits for them.
enum class Priority { ahead, usual, urgent };

// Reads in flight of all batches that are read ahead: enough for most of what a device gives, and
// little to wait for where they turn out to be in vain.
constexpr size_t kReadsAhead = 4;

// invalid_argument for a name that is none of "auto", "threads", "uring".
Backend parse_backend(const std::string& name);

struct ReaderOptions {
  int threads = 32;  // how many reads are in flight at most, whoever waits for them
  int64_t gap_bytes = 0;
  int64_t max_read_bytes = 524288;
  Backend backend = Backend::automatic;
};

class Reader {
 public:
  // invalid_argument for options out of their range.
  Reader(OpenedFile file, std::string path, const ReaderOptions& options);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // From now on every batch is of whole bundles, and the thread that read a bundle holds it against
  // its checksum; one that is wrong is read again, once. invalid_argument after the first batch.
  void verify_bundles(std::unique_ptr<BundleChecks> checks);

  // Queues a batch; out_of_range and invalid_argument if any of it is wrong, with nothing queued.
  // Reads are started batch by batch, in the order of submitting; an urgent batch is before every
  // read not yet started of those that are not, and one that is read ahead is behind all others,
  // with few reads in flight, so that what turns out to be needed does not wait for it.
  uint64_t submit(const Batch& batch, std::shared_ptr<Buffer> target,
                  Priority priority = Priority::usual, bool spans_gaps = true);

  // A batch that is read ahead is needed: from now on it is like any other.
  void hasten(uint64_t ticket);

  // A batch is not needed: no more of its reads are started, and `wait`, which has to follow,
  // throws ReadCancelled unless all had been. Returns the useful bytes of those that had.
  uint64_t drop(uint64_t ticket);

  // Until a batch is done, once for each ticket; DeviceError, EndOfFile, ChecksumError or
  // ReadCancelled if it is not complete, and then no read of it is in flight any more.
  void wait(uint64_t ticket);

  void cancel();
  void clear_cancel();
  void close();

  ReadStats stats() const { return meter_.stats(); }
  LatencyHistogram latencies() const { return meter_.latencies(); }
  void keep_times(bool keep) { meter_.keep_times(keep); }
  std::vector<ReadTimes> take_times() { return meter_.take_times(); }
  CheckCounts check_counts() const { return checks_ ? checks_->counts() : CheckCounts(); }
  // Both change once, where the system refuses a direct read after it had taken others.
  bool direct() const { return fallback().empty(); }
  std::string fallback() const;
  size_t alignment() const { return source_->alignment(); }
  uint64_t file_bytes() const { return source_->size(); }
  const char* backend() const { return ring_ ? "uring" : "threads"; }
  // Why there is no ring where one was wanted; "" otherwise.
  const std::string& backend_problem() const { return backend_problem_; }
  int threads() const { return static_cast<int>(threads_wanted_); }

 private:
  struct Job {
    ReadPlan plan;
    std::unique_ptr<BatchBundles> bundles;  // none where nothing is verified
    std::shared_ptr<Buffer> target;
    Priority priority = Priority::usual;
    size_t next = 0;        // run to be started
    size_t in_flight = 0;   // runs started and not finished
    size_t unfinished = 0;  // runs queued or in flight
    std::exception_ptr error;
  };

  // Destroying a condition that has waiters hangs, and after fork() the waiters are gone for
  // ever: a child gives this up instead.
  struct Signals {
    std::mutex mutex;
    std::condition_variable work;  // there are runs to start, or closed_
    std::condition_variable done;  // some job has no unfinished run
  };

  bool forked() const;
  void check_process() const;
  void check_open_locked() const;
  struct Work {
    std::shared_ptr<Job> job;
    const Run* run;
  };

  using Queue = std::deque<std::shared_ptr<Job>>;

  void open_ring(Backend backend);
  std::shared_ptr<Job> job_locked(uint64_t ticket) const;
  Queue::iterator startable_locked();
  Work claim_locked(Queue::iterator place);
  void finish_locked(Job* job, const std::exception_ptr& error);
  void verify(const Work& work);
  void read_again(Job* job, const ReadBundle& bundle);
  void work();
  void work_ring();
  void queue_locked(std::shared_ptr<Job> job);
  void run_one(std::unique_lock<std::mutex>* lock, Buffer* scratch);
  void drop_locked(Job* job);
  void drop_all_locked();

  std::unique_ptr<Source> source_;
  std::string path_;
  std::string fallback_;
  std::string backend_problem_;
  std::unique_ptr<Ring> ring_;
  ReadLimits limits_ = {};
  size_t threads_wanted_;
  pid_t process_;
  ReadMeter meter_;
  std::unique_ptr<BundleChecks> checks_;  // does not change once there was a batch

  std::unique_ptr<Signals> signals_ = std::make_unique<Signals>();
  Queue queue_;  // by priority, then by the order of submitting
  size_t ahead_in_flight_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<Job>> jobs_;
  uint64_t next_ticket_ = 1;
  bool cancelled_ = false;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace flash_core
