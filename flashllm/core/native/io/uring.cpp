#include "uring.h"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif

// Headers older than Linux 6.1 lack the modes that make a ring cheap.
#ifdef IORING_SETUP_DEFER_TASKRUN

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

namespace flash_core {

namespace {

int setup(unsigned entries, io_uring_params* params) {
  return static_cast<int>(syscall(__NR_io_uring_setup, entries, params));
}

int enter(int ring, unsigned submit, unsigned least) {
  const unsigned flags = IORING_ENTER_GETEVENTS;
  return static_cast<int>(
      syscall(__NR_io_uring_enter, ring, submit, least, flags, nullptr, size_t{0}));
}

class Mapping {
 public:
  Mapping(int file, size_t size, off_t offset) : size_(size), process_(getpid()) {
    address_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, offset);
    if (address_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    // A child has no ring, and must not write into its parent's.
    madvise(address_, size, MADV_DONTFORK);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  // In a child something else may lie there by now.
  ~Mapping() {
    if (getpid() == process_) munmap(address_, size_);
  }

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(address_) + offset);
  }

 private:
  void* address_;
  size_t size_;
  pid_t process_;
};

class File {
 public:
  explicit File(int value) : value_(value) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(value_); }
  int get() const { return value_; }

 private:
  int value_;
};

// Both queues are one mapping in every kernel that has the modes asked for below.
size_t queues_bytes(const io_uring_params& params) {
  const size_t submissions = params.sq_off.array + params.sq_entries * sizeof(unsigned);
  const size_t completions = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  return submissions > completions ? submissions : completions;
}

// The kernel's side of a number that both sides see.
unsigned load(const unsigned* place) { return __atomic_load_n(place, __ATOMIC_ACQUIRE); }
void store(unsigned* place, unsigned value) { __atomic_store_n(place, value, __ATOMIC_RELEASE); }

class Uring final : public Ring {
 public:
  Uring(int ring, const io_uring_params& params, int file)
      : ring_(ring),
        queues_(ring, queues_bytes(params), IORING_OFF_SQ_RING),
        entries_(ring, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES),
        disabled_((params.flags & IORING_SETUP_R_DISABLED) != 0),
        file_(file),
        sq_tail_(queues_.at<unsigned>(params.sq_off.tail)),
        sq_mask_(*queues_.at<unsigned>(params.sq_off.ring_mask)),
        cq_head_(queues_.at<unsigned>(params.cq_off.head)),
        cq_tail_(queues_.at<unsigned>(params.cq_off.tail)),
        cq_mask_(*queues_.at<unsigned>(params.cq_off.ring_mask)),
        sqes_(entries_.at<io_uring_sqe>(0)),
        cqes_(queues_.at<io_uring_cqe>(params.cq_off.cqes)) {
    unsigned* const array = queues_.at<unsigned>(params.sq_off.array);
    for (unsigned i = 0; i < params.sq_entries; ++i) array[i] = i;
  }

  void begin() override {
    if (!disabled_) return;
    if (syscall(__NR_io_uring_register, ring_.get(), IORING_REGISTER_ENABLE_RINGS, nullptr, 0) != 0)
      throw std::system_error(errno, std::generic_category(), "io_uring_register");
  }

  void push(const iovec* vectors, int count, uint64_t offset, size_t tag) override {
    io_uring_sqe entry = {};
    entry.fd = file_;
    entry.off = offset;
    entry.user_data = tag;
    if (count == 1) {
      entry.opcode = IORING_OP_READ;
      entry.addr = reinterpret_cast<uintptr_t>(vectors[0].iov_base);
      entry.len = static_cast<unsigned>(vectors[0].iov_len);
    } else {
      entry.opcode = IORING_OP_READV;
      entry.addr = reinterpret_cast<uintptr_t>(vectors);
      entry.len = static_cast<unsigned>(count);
    }
    push(entry);
  }

  void push(const io_uring_sqe& entry) {
    const unsigned tail = *sq_tail_;
    sqes_[tail & sq_mask_] = entry;
    store(sq_tail_, tail + 1);
    ++pushed_;
  }

  void enter(size_t least) override {
    while (pushed_ > 0 || load(cq_tail_) - *cq_head_ < least) {
      const int started = flash_core::enter(ring_.get(), pushed_, static_cast<unsigned>(least));
      if (started >= 0) {
        pushed_ -= static_cast<unsigned>(started);
      } else if (errno == EAGAIN || errno == EBUSY) {
        std::this_thread::yield();  // the kernel is short of memory: what is in flight frees some
      } else if (errno != EINTR) {
        throw std::system_error(errno, std::generic_category(), "io_uring_enter");
      }
    }
  }

  bool pop(RingResult* result) override {
    const unsigned head = *cq_head_;
    if (head == load(cq_tail_)) return false;
    const io_uring_cqe& entry = cqes_[head & cq_mask_];
    *result = {static_cast<size_t>(entry.user_data), entry.res};
    store(cq_head_, head + 1);
    return true;
  }

 private:
  const File ring_;
  const Mapping queues_;
  const Mapping entries_;
  const bool disabled_;
  const int file_;
  unsigned* const sq_tail_;
  const unsigned sq_mask_;
  unsigned* const cq_head_;
  const unsigned* const cq_tail_;
  const unsigned cq_mask_;
  io_uring_sqe* const sqes_;
  const io_uring_cqe* const cqes_;
  unsigned pushed_ = 0;
};

// With the best mode that this kernel has. It starts disabled, since the thread that enables it is
// the one that may use it.
std::unique_ptr<Uring> open_mode(int file, unsigned depth) {
  constexpr unsigned kDisabled = IORING_SETUP_R_DISABLED;
  for (const unsigned flags : {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | kDisabled,
                               IORING_SETUP_COOP_TASKRUN | kDisabled, 0U}) {
    io_uring_params params = {};
    params.flags = flags;
    const int ring = setup(depth, &params);
    if (ring >= 0) return std::make_unique<Uring>(ring, params, file);
    if (errno != EINVAL) break;
  }
  throw std::system_error(errno, std::generic_category(), "io_uring_setup");
}

// Some sandboxes allow a ring to be made and not to be enabled or used. Where that came out in the
// thread that reads, nobody would be there to be told.
void probe() {
  const std::unique_ptr<Uring> ring = open_mode(-1, 1);
  ring->begin();
  io_uring_sqe nothing = {};
  nothing.opcode = IORING_OP_NOP;
  ring->push(nothing);
  ring->enter(1);
}

}  // namespace

std::unique_ptr<Ring> open_uring(int file, unsigned depth, std::string* problem) {
  try {
    probe();
    return open_mode(file, depth);
  } catch (const std::system_error& error) {
    *problem = error.what();
    return nullptr;
  }
}

}  // namespace flash_core

#else

namespace flash_core {

std::unique_ptr<Ring> open_uring(int, unsigned, std::string* problem) {
  *problem = "built without io_uring";
  return nullptr;
}

}  // namespace flash_core

#endif
