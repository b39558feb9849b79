#include "file_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "buffer.h"
#include "errors.h"
#include "retries.h"
#include "uring.h"

namespace flash_core {

namespace {

constexpr uint64_t kLargestPageBytes = 65536;

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.value_) { other.value_ = -1; }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() { reset(); }
  void reset() {
    if (value_ >= 0) ::close(std::exchange(value_, -1));
  }
  int get() const { return value_; }

 private:
  int value_;
};

// Bundles are read in no order: read-ahead would fetch what nobody asked for.
void advise_random(const Descriptor& file) {
#ifdef __linux__
  posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);
#else
  static_cast<void>(file);
#endif
}

class FileSource final : public Source {
 public:
  // `may_stop_direct`: it was opened with O_DIRECT, which may be given up.
  FileSource(Descriptor file, uint64_t size, size_t alignment, bool may_stop_direct)
      : file_(std::move(file)),
        size_(size),
        alignment_(alignment),
        may_stop_direct_(may_stop_direct) {}

  uint64_t size() const override { return size_; }
  size_t alignment() const override { return alignment_; }
  ssize_t read(const iovec* vectors, int count, uint64_t offset) override {
    const ssize_t got = preadv(file_.get(), vectors, count, static_cast<off_t>(offset));
    return got < 0 ? -static_cast<ssize_t>(errno) : got;
  }
  DirectStopped stop_direct() override;
  void close() override { file_.reset(); }
  void forget(uint64_t offset, uint64_t length) override {
#ifdef __linux__
    // Only whole pages go: rounded out to those of any system.
    const uint64_t start = offset - offset % kLargestPageBytes;
    const uint64_t nbytes = length + 2 * kLargestPageBytes;
    posix_fadvise(file_.get(), static_cast<off_t>(start), static_cast<off_t>(nbytes),
                  POSIX_FADV_DONTNEED);
#else
    static_cast<void>(offset);
    static_cast<void>(length);
#endif
  }
  std::unique_ptr<Ring> open_ring(unsigned depth, std::string* problem) override {
    return open_uring(file_.get(), depth, problem);
  }

 private:
  Descriptor file_;
  uint64_t size_;
  size_t alignment_;
  bool may_stop_direct_;
  std::atomic<bool> stopped_{false};
};

// The alignment stays: plans were made with it, and the page cache takes any.
DirectStopped FileSource::stop_direct() {
#ifdef O_DIRECT
  if (!may_stop_direct_) return DirectStopped::not_direct;
  const int flags = fcntl(file_.get(), F_GETFL);
  if (flags < 0 || fcntl(file_.get(), F_SETFL, flags & ~O_DIRECT) != 0) {
    return DirectStopped::not_direct;
  }
  if (stopped_.exchange(true)) return DirectStopped::before;
  advise_random(file_);
  return DirectStopped::now;
#else
  return DirectStopped::not_direct;
#endif
}

bool means_no_direct_io(int code) {
  return code == EINVAL || code == EOPNOTSUPP || code == ENOTSUP || code == EPERM;
}

[[noreturn]] void fail(int code, const std::string& what, const std::string& path) {
  throw DeviceError(code, what + ": " + std::strerror(code), path);
}

Descriptor open_plain(const std::string& path, int flags) {
  Retries retries;
  int file = -1;
  int code = 0;
  do {
    file = open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
    code = errno;
  } while (file < 0 && retries.may_pass(code));
  errno = code;
  return Descriptor(file);
}

uint64_t size_of(const Descriptor& file, const std::string& path) {
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) fail(errno, "stat", path);
  if (S_ISDIR(status.st_mode)) fail(EISDIR, "open", path);
  if (S_ISBLK(status.st_mode)) {  // a device has no size but its end
    const off_t end = lseek(file.get(), 0, SEEK_END);
    if (end < 0) fail(errno, "seek", path);
    return static_cast<uint64_t>(end);
  }
  return static_cast<uint64_t>(status.st_size);
}

OpenedFile open_buffered(const std::string& path, const std::string& fallback) {
  Descriptor file = open_plain(path, 0);
  if (file.get() < 0) fail(errno, "open", path);
  const uint64_t size = size_of(file, path);
  advise_random(file);
  return {std::make_unique<FileSource>(std::move(file), size, 1, false), fallback};
}

#ifdef O_DIRECT

constexpr size_t kPageBytes = 4096;  // what buffers are aligned to

// What the file system says of itself (Linux 6.1 and later), else what devices usually ask for.
std::vector<size_t> alignments_to_try(const Descriptor& file) {
#ifdef STATX_DIOALIGN
  struct statx status = {};
  if (statx(file.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0 && status.stx_dio_offset_align != 0) {
    return {std::max<size_t>(status.stx_dio_offset_align, status.stx_dio_mem_align)};
  }
#else
  static_cast<void>(file);
#endif
  return {512, kPageBytes};
}

// 0 where a direct read of that alignment works, else an errno.
int probe(const Descriptor& file, uint64_t size, size_t alignment) {
  Buffer memory(static_cast<int64_t>(2 * alignment));
  const iovec vector = {memory.data() + alignment, alignment};
  const uint64_t offset = size >= 2 * alignment ? alignment : 0;
  Retries retries;
  int code = 0;
  do {
    const ssize_t got = preadv(file.get(), &vector, 1, static_cast<off_t>(offset));
    code = got < 0 ? errno : 0;
  } while (code != 0 && retries.may_pass(code));
  return code;
}

// A direct source, or why there is none.
std::optional<OpenedFile> open_direct(const std::string& path, bool required, std::string* reason) {
  Descriptor file = open_plain(path, O_DIRECT);
  if (file.get() < 0) {
    if (!means_no_direct_io(errno)) fail(errno, "open", path);
    *reason = std::string("open: ") + std::strerror(errno);
    return std::nullopt;
  }
  const uint64_t size = size_of(file, path);
  for (const size_t alignment : alignments_to_try(file)) {
    if (alignment > kPageBytes) {
      *reason = "direct reads need an alignment of " + std::to_string(alignment);
      continue;
    }
    const int code = probe(file, size, alignment);
    if (code == 0) {
      return OpenedFile{std::make_unique<FileSource>(std::move(file), size, alignment, !required),
                        ""};
    }
    if (!means_no_direct_io(code)) fail(code, "probe read", path);
    *reason = std::string("probe read: ") + std::strerror(code);
  }
  return std::nullopt;
}

#elif defined(F_NOCACHE)

// macOS: not cached, and nothing need be aligned.
std::optional<OpenedFile> open_direct(const std::string& path, bool, std::string* reason) {
  Descriptor file = open_plain(path, 0);
  if (file.get() < 0) fail(errno, "open", path);
  const uint64_t size = size_of(file, path);
  if (fcntl(file.get(), F_NOCACHE, 1) != 0) {
    *reason = std::string("F_NOCACHE: ") + std::strerror(errno);
    return std::nullopt;
  }
  fcntl(file.get(), F_RDAHEAD, 0);
  return OpenedFile{std::make_unique<FileSource>(std::move(file), size, 1, false), ""};
}

#else

std::optional<OpenedFile> open_direct(const std::string&, bool, std::string* reason) {
  *reason = "the platform has no direct I/O";
  return std::nullopt;
}

#endif

}  // namespace

Direct parse_direct(const std::string& name) {
  if (name == "required") return Direct::required;
  if (name == "optional") return Direct::optional;
  if (name == "disabled") return Direct::disabled;
  throw std::invalid_argument("direct is '" + name + "'; expected required, optional or disabled");
}

OpenedFile open_file(const std::string& path, Direct direct) {
  std::string reason = "disabled by request";
  if (direct != Direct::disabled) {
    std::optional<OpenedFile> opened = open_direct(path, direct == Direct::required, &reason);
    if (opened) return std::move(*opened);
    if (direct == Direct::required) {
      throw DeviceError(EINVAL, "direct I/O is required but refused (" + reason + ")", path);
    }
  }
  return open_buffered(path, reason);
}

}  // namespace flash_core
