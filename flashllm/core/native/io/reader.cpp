#include "reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "errors.h"
#include "read_run.h"
#include "ring_reads.h"
#include "threads.h"

namespace flash_core {

namespace {

constexpr int kMaxThreads = 1024;
// Threads that are woken for a batch, and by each that starts a read while others are left. Who
// submits has something to compute meanwhile; to wake all of them itself took a millisecond.
constexpr size_t kWakes = 2;
constexpr int64_t kMaxReadBytes = int64_t{1} << 30;

ReadLimits check_options(const ReaderOptions& options, uint64_t alignment) {
  if (options.threads < 1 || options.threads > kMaxThreads) {
    throw std::invalid_argument("threads is " + std::to_string(options.threads) +
                                "; expected 1 to " + std::to_string(kMaxThreads));
  }
  if (options.gap_bytes < 0 || options.max_read_bytes < 1 ||
      options.max_read_bytes > kMaxReadBytes) {
    throw std::invalid_argument("gap_bytes is " + std::to_string(options.gap_bytes) +
                                " and max_read_bytes " + std::to_string(options.max_read_bytes));
  }
  const Checked piece = Checked(static_cast<uint64_t>(options.max_read_bytes));
  return {static_cast<uint64_t>(options.gap_bytes),
          std::max(piece.round_down(alignment).get(), alignment), alignment};
}

}  // namespace

Backend parse_backend(const std::string& name) {
  if (name == "auto") return Backend::automatic;
  if (name == "threads") return Backend::threads;
  if (name == "uring") return Backend::uring;
  throw std::invalid_argument("backend is '" + name + "'; expected auto, threads or uring");
}

Reader::Reader(OpenedFile file, std::string path, const ReaderOptions& options)
    : source_(std::move(file.source)),
      path_(std::move(path)),
      fallback_(std::move(file.fallback)),
      limits_(check_options(options, source_->alignment())),
      threads_wanted_(static_cast<size_t>(options.threads)),
      process_(getpid()) {
  open_ring(options.backend);
  const SignalsBlocked blocked;
  threads_.reserve(threads_wanted_);
  try {
    if (ring_) threads_.emplace_back([this] { work_ring(); });
    for (size_t i = 0; !ring_ && i < threads_wanted_; ++i)
      threads_.emplace_back([this] { work(); });
  } catch (...) {
    close();
    throw;
  }
}

Reader::~Reader() { close(); }

void Reader::open_ring(Backend backend) {
  if (backend != Backend::uring) return;
  ring_ = source_->open_ring(static_cast<unsigned>(threads_wanted_), &backend_problem_);
}

std::string Reader::fallback() const {
  if (!fallback_.empty() || stats().downgrades == 0) return fallback_;
  return std::string("a direct read was refused: ") + std::strerror(EINVAL);
}

bool Reader::forked() const { return getpid() != process_; }

void Reader::check_process() const {
  if (forked()) {
    throw std::invalid_argument("the reader of " + path_ + " belongs to the process before fork");
  }
}

void Reader::check_open_locked() const {
  if (closed_) throw std::invalid_argument("the reader of " + path_ + " is closed");
}

void Reader::verify_bundles(std::unique_ptr<BundleChecks> checks) {
  check_process();
  const std::lock_guard<std::mutex> lock(signals_->mutex);
  check_open_locked();
  if (checks_ || next_ticket_ != 1) {
    throw std::invalid_argument("bundles of " + path_ + " are verified from the first batch on");
  }
  checks_ = std::move(checks);
}

uint64_t Reader::submit(const Batch& batch, std::shared_ptr<Buffer> target, Priority priority,
                        bool spans_gaps) {
  check_process();
  auto job = std::make_shared<Job>();
  ReadLimits limits = limits_;
  // Within one unit of alignment both reads would round to what lies between them.
  if (!spans_gaps) limits.gap_bytes = std::min(limits.gap_bytes, limits.alignment - 1);
  job->plan = plan_reads(batch, source_->size(), target->size(), limits);
  if (checks_) {
    checks_->check_batch(batch);
    job->bundles = std::make_unique<BatchBundles>(checks_->file(), job->plan);
  }
  job->target = std::move(target);
  job->priority = priority;
  job->unfinished = job->plan.runs.size();
  const size_t wakes = std::min(job->unfinished, ring_ ? 1 : kWakes);
  uint64_t ticket = 0;
  {
    const std::lock_guard<std::mutex> lock(signals_->mutex);
    check_open_locked();
    ticket = next_ticket_++;
    jobs_.emplace(ticket, job);
    if (cancelled_) {
      drop_locked(job.get());
    } else if (job->unfinished > 0) {
      queue_locked(std::move(job));
    }
  }
  for (size_t i = 0; i < wakes; ++i) signals_->work.notify_one();
  return ticket;
}

void Reader::queue_locked(std::shared_ptr<Job> job) {
  const auto place = std::find_if(
      queue_.begin(), queue_.end(),
      [&job](const std::shared_ptr<Job>& other) { return other->priority < job->priority; });
  queue_.insert(place, std::move(job));
}

std::shared_ptr<Reader::Job> Reader::job_locked(uint64_t ticket) const {
  check_open_locked();
  const auto found = jobs_.find(ticket);
  if (found == jobs_.end()) {
    throw std::invalid_argument("no ticket " + std::to_string(ticket) +
                                "; each is waited for once");
  }
  return found->second;
}

void Reader::hasten(uint64_t ticket) {
  check_process();
  {
    const std::lock_guard<std::mutex> lock(signals_->mutex);
    const std::shared_ptr<Job> job = job_locked(ticket);
    if (job->priority != Priority::ahead) return;
    ahead_in_flight_ -= job->in_flight;
    job->priority = Priority::usual;
    const auto queued = std::find(queue_.begin(), queue_.end(), job);
    if (queued == queue_.end()) return;
    queue_.erase(queued);
    queue_locked(job);
  }
  for (size_t i = 0; i < kWakes; ++i) signals_->work.notify_one();
}

uint64_t Reader::drop(uint64_t ticket) {
  check_process();
  const std::lock_guard<std::mutex> lock(signals_->mutex);
  const std::shared_ptr<Job> job = job_locked(ticket);
  uint64_t started = 0;
  for (size_t run = 0; run < job->next; ++run) {
    const Run& one = job->plan.runs[run];
    for (size_t i = 0; i < one.count; ++i) started += job->plan.pieces[one.first + i].length;
  }
  const auto queued = std::find(queue_.begin(), queue_.end(), job);
  if (queued != queue_.end()) queue_.erase(queued);
  drop_locked(job.get());
  return started;
}

void Reader::wait(uint64_t ticket) {
  check_process();
  std::shared_ptr<Job> job;
  {
    std::unique_lock<std::mutex> lock(signals_->mutex);
    job = job_locked(ticket);
    jobs_.erase(ticket);
    signals_->done.wait(lock, [&job] { return job->unfinished == 0; });
  }
  if (job->error) std::rethrow_exception(job->error);
}

void Reader::cancel() {
  check_process();
  const std::lock_guard<std::mutex> lock(signals_->mutex);
  cancelled_ = true;
  drop_all_locked();
}

void Reader::clear_cancel() {
  check_process();
  const std::lock_guard<std::mutex> lock(signals_->mutex);
  cancelled_ = false;
}

// Runs that were not started will not be; those in flight still count as unfinished.
void Reader::drop_locked(Job* job) {
  const size_t waiting = job->plan.runs.size() - job->next;
  job->next = job->plan.runs.size();
  job->unfinished -= waiting;
  if (waiting > 0 && !job->error) {
    job->error = std::make_exception_ptr(ReadCancelled("reading " + path_ + " was cancelled"));
  }
  if (job->unfinished == 0) signals_->done.notify_all();
}

void Reader::drop_all_locked() {
  for (const auto& job : queue_) drop_locked(job.get());
  queue_.clear();
}

void Reader::close() {
  if (forked()) {
    for (std::thread& thread : threads_) thread.detach();  // they stayed in the parent
    threads_.clear();
    static_cast<void>(signals_.release());
    return;
  }
  std::vector<std::thread> threads;
  {
    const std::lock_guard<std::mutex> lock(signals_->mutex);
    closed_ = true;
    drop_all_locked();
    threads.swap(threads_);
  }
  signals_->work.notify_all();
  for (std::thread& thread : threads) thread.join();
  // Not at a second call, which may come while the first one waits for reads.
  if (!threads.empty()) source_->close();
}

void Reader::work() {
  Buffer scratch(scratch_bytes(limits_));
  std::unique_lock<std::mutex> lock(signals_->mutex);
  while (true) {
    signals_->work.wait(lock, [this] { return closed_ || startable_locked() != queue_.end(); });
    if (closed_) return;
    run_one(&lock, &scratch);
  }
}

// The first job of which a read may be started. What is read ahead is behind all others.
Reader::Queue::iterator Reader::startable_locked() {
  if (queue_.empty()) return queue_.end();
  const bool is_ahead = queue_.front()->priority == Priority::ahead;
  return is_ahead && ahead_in_flight_ >= kReadsAhead ? queue_.end() : queue_.begin();
}

// The next run of a job: its plan and target are read without the lock.
Reader::Work Reader::claim_locked(Queue::iterator place) {
  const std::shared_ptr<Job> job = *place;
  const Run* const run = &job->plan.runs[job->next++];
  ++job->in_flight;
  if (job->priority == Priority::ahead) ++ahead_in_flight_;
  if (job->next == job->plan.runs.size()) queue_.erase(place);
  return {job, run};
}

void Reader::finish_locked(Job* job, const std::exception_ptr& error) {
  --job->in_flight;
  if (job->priority == Priority::ahead) --ahead_in_flight_;
  if (error && !job->error) {
    job->error = error;
    const auto queued =
        std::find_if(queue_.begin(), queue_.end(),
                     [job](const std::shared_ptr<Job>& other) { return other.get() == job; });
    if (queued != queue_.end()) queue_.erase(queued);
    drop_locked(job);
  }
  if (--job->unfinished == 0) signals_->done.notify_all();
}

// Holds what the run brought against its checksums; without the lock.
void Reader::verify(const Work& work) {
  Job* const job = work.job.get();
  if (!job->bundles) return;
  for (const ReadBundle& bundle : job->bundles->complete(*work.run)) {
    if (!checks_->wants(bundle.number)) continue;
    const uint8_t* const data = job->target->data() + bundle.destination;
    if (!checks_->matches(bundle.number, data)) read_again(job, bundle);
  }
}

// A bundle that was wrong, once more and from the device: memory, a cable or a cache may have been
// the fault. ChecksumError where it stays wrong.
void Reader::read_again(Job* job, const ReadBundle& bundle) {
  checks_->count_mismatch();
  const auto offset = static_cast<int64_t>(checks_->offset(bundle.number));
  const auto destination = static_cast<int64_t>(bundle.destination);
  const auto length = static_cast<int64_t>(checks_->file().stride);
  const ReadPlan plan =
      plan_reads({&offset, &destination, 1, length}, source_->size(), job->target->size(), limits_);
  Buffer scratch(scratch_bytes(limits_));  // rare enough to be allocated each time
  source_->forget(static_cast<uint64_t>(offset), checks_->file().stride);
  for (const Run& run : plan.runs) {
    read_run({source_.get(), &path_, &meter_, &scratch}, plan, run, job->target->data());
  }
  if (checks_->matches(bundle.number, job->target->data() + bundle.destination)) return;
  checks_->count_damaged();
  throw ChecksumError(checks_->place(bundle.number) +
                      ": the checksum is wrong, also of what was read again");
}

void Reader::run_one(std::unique_lock<std::mutex>* lock, Buffer* scratch) {
  const Work work = claim_locked(startable_locked());
  const bool more = startable_locked() != queue_.end();
  lock->unlock();
  for (size_t i = 0; more && i < kWakes; ++i) signals_->work.notify_one();
  std::exception_ptr error;
  try {
    read_run({source_.get(), &path_, &meter_, scratch}, work.job->plan, *work.run,
             work.job->target->data());
    verify(work);
  } catch (...) {
    error = std::current_exception();
  }
  lock->lock();
  finish_locked(work.job.get(), error);
}

void Reader::work_ring() {
  RingReads reads(ring_.get(), source_.get(), &path_, &meter_, threads_wanted_, limits_);
  std::vector<Work> works(threads_wanted_);  // by slot
  std::vector<size_t> taken;
  ring_->begin();
  std::unique_lock<std::mutex> lock(signals_->mutex);
  while (true) {
    if (reads.in_flight() == 0) {
      signals_->work.wait(lock, [this] { return closed_ || !queue_.empty(); });
      if (closed_) return;
    }
    taken.clear();
    while (reads.has_room()) {
      const auto place = startable_locked();
      if (place == queue_.end()) break;
      taken.push_back(reads.take());
      works[taken.back()] = claim_locked(place);
    }
    lock.unlock();
    for (const size_t slot : taken) {
      const Work& work = works[slot];
      reads.start(slot, work.job->plan, *work.run, work.job->target->data());
    }
    std::vector<RingReads::Finished>& finished = reads.collect();
    for (RingReads::Finished& one : finished) {
      if (one.error) continue;
      try {
        verify(works[one.slot]);
      } catch (...) {
        one.error = std::current_exception();
      }
    }
    lock.lock();
    for (const RingReads::Finished& one : finished) {
      finish_locked(works[one.slot].job.get(), one.error);
      works[one.slot].job.reset();
    }
  }
}

}  // namespace flash_core
