/* Makes system calls of a program fail, for tests: LD_PRELOAD it.

   "Fail the Nth call, of these kinds, on paths that contain X, with errno E": by environment
   variables when the program starts,

     FAULT_CALLS   kinds, with commas between them (see KINDS)
     FAULT_PATH    a part of the path; all paths if it is empty
     FAULT_NTH     the first call that fails, counted from 1
     FAULT_TIMES   how many fail; 0 is all from then on; 1 if it is not set
     FAULT_CODE    an errno, or one of SHORT to REFUSE_DIRECT, below
     FAULT_BYTES   of memory, only what is at least so large counts

   or by fault_arm() later. io_uring is not seen. Calls that the C library makes itself are not seen
   either, so fopen is none of these. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { READ = 1, OPEN = 2, WRITE = 4, SYNC = 8, RENAME = 16, SPACE = 32, NAMES = 64, MEMORY = 128 };
static const struct {
  const char* name;
  int kinds;
} KINDS[] = {
    {"read", READ},     {"open", OPEN},     {"write", WRITE}, {"fsync", SYNC},
    {"rename", RENAME}, {"space", SPACE},   {"names", NAMES}, {"malloc", MEMORY},
    {"change", WRITE | SYNC | RENAME | SPACE | NAMES},
};

/* What happens instead of an errno. REFUSE_DIRECT is EINVAL where the file is open with O_DIRECT. */
enum { SHORT = -1, ZERO = -2, DELAY = -3, KILL = -4, FLIP = -5, REFUSE_DIRECT = -6 };
enum { DELAY_MICROSECONDS = 20000 };

static struct {
  int kinds;
  char path[512];
  long nth, times;
  int code;
  size_t bytes;
  long seen;   /* calls that counted */
  long failed; /* those that were made to fail */
} fault;

void fault_arm(const char* calls, const char* path, long nth, long times, int code) {
  __atomic_store_n(&fault.kinds, 0, __ATOMIC_SEQ_CST);
  fault.nth = nth;
  fault.times = times;
  fault.code = code;
  __atomic_store_n(&fault.seen, 0, __ATOMIC_SEQ_CST);
  __atomic_store_n(&fault.failed, 0, __ATOMIC_SEQ_CST);
  snprintf(fault.path, sizeof fault.path, "%s", path);
  int kinds = 0;
  for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; ++i) {
    const size_t length = strlen(KINDS[i].name);
    for (const char* at = calls; (at = strstr(at, KINDS[i].name)) != NULL; at += length) {
      if ((at == calls || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
        kinds |= KINDS[i].kinds;
    }
  }
  __atomic_store_n(&fault.kinds, kinds, __ATOMIC_SEQ_CST);
}

void fault_disarm(void) { __atomic_store_n(&fault.kinds, 0, __ATOMIC_SEQ_CST); }
long fault_seen(void) { return __atomic_load_n(&fault.seen, __ATOMIC_SEQ_CST); }
long fault_failed(void) { return __atomic_load_n(&fault.failed, __ATOMIC_SEQ_CST); }

static long number(const char* name, long otherwise) {
  const char* value = getenv(name);
  return value != NULL && *value != '\0' ? atol(value) : otherwise;
}

__attribute__((constructor)) static void arm_by_environment(void) {
  const char* calls = getenv("FAULT_CALLS");
  const char* path = getenv("FAULT_PATH");
  fault.bytes = (size_t)number("FAULT_BYTES", 0);
  if (calls == NULL) return;
  fault_arm(calls, path == NULL ? "" : path, number("FAULT_NTH", 1), number("FAULT_TIMES", 1),
            (int)number("FAULT_CODE", EIO));
}

/* 0 where the call is to be made as it is; else the code, with errno set if it is one. */
static int strike(int kind, const char* path) {
  if ((__atomic_load_n(&fault.kinds, __ATOMIC_SEQ_CST) & kind) == 0) return 0;
  if (path != NULL && strstr(path, fault.path) == NULL) return 0;
  const long place = __atomic_add_fetch(&fault.seen, 1, __ATOMIC_SEQ_CST);
  if (place < fault.nth || (fault.times > 0 && place >= fault.nth + fault.times)) return 0;
  __atomic_add_fetch(&fault.failed, 1, __ATOMIC_SEQ_CST);
  if (fault.code == KILL) {
    kill(getpid(), SIGKILL);
    pause();
  }
  if (fault.code == DELAY) {
    usleep(DELAY_MICROSECONDS);
    return 0;
  }
  const int code = fault.code == REFUSE_DIRECT ? EINVAL : fault.code;
  if (code > 0) errno = code;
  return code;
}

static int strike_file(int kind, int file) {
  if ((__atomic_load_n(&fault.kinds, __ATOMIC_SEQ_CST) & kind) == 0) return 0;
  if (fault.code == REFUSE_DIRECT && (fcntl(file, F_GETFL) & O_DIRECT) == 0) return 0;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const int before = errno;
  const ssize_t length = readlink(link, path, sizeof path - 1);
  errno = before;
  path[length < 0 ? 0 : length] = '\0';
  return path[0] == '/' ? strike(kind, path) : 0; /* no pipes, no terminals */
}

#define REAL(name) \
  static __typeof__(name)* real; \
  if (real == NULL) real = (__typeof__(name)*)dlsym(RTLD_NEXT, #name)

static size_t half(size_t count) { return count > 1024 ? count / 1024 * 512 : count; }

/* A read of one buffer: `call` makes it, of `count` bytes. */
#define READ_BODY(file, buffer, count, call)                        \
  const int code = strike_file(READ, file);                         \
  if (code > 0) return -1;                                          \
  if (code == ZERO) return 0;                                       \
  if (code == SHORT) count = half(count);                           \
  const ssize_t got = call;                                         \
  if (code == FLIP && got > 0) ((char*)(buffer))[got / 2] ^= 0x10;  \
  return got

ssize_t read(int file, void* buffer, size_t count) {
  REAL(read);
  READ_BODY(file, buffer, count, real(file, buffer, count));
}
ssize_t pread(int file, void* buffer, size_t count, off_t offset) {
  REAL(pread);
  READ_BODY(file, buffer, count, real(file, buffer, count, offset));
}
ssize_t pread64(int file, void* buffer, size_t count, off64_t offset) {
  REAL(pread64);
  READ_BODY(file, buffer, count, real(file, buffer, count, offset));
}

/* A read of several: a short one has the first of them, or a part of it. */
#define READ_VECTORS_BODY(file, vectors, n, call)                                     \
  const int code = strike_file(READ, file);                                           \
  struct iovec first;                                                                 \
  if (code > 0) return -1;                                                            \
  if (code == ZERO) return 0;                                                         \
  if (code == SHORT) {                                                                \
    first = vectors[0];                                                               \
    if (n == 1) first.iov_len = half(first.iov_len);                                  \
    vectors = &first;                                                                 \
    n = 1;                                                                            \
  }                                                                                   \
  const ssize_t got = call;                                                           \
  if (code == FLIP && got > 0) ((char*)vectors[0].iov_base)[vectors[0].iov_len / 2] ^= 0x10; \
  return got

ssize_t preadv(int file, const struct iovec* vectors, int n, off_t offset) {
  REAL(preadv);
  READ_VECTORS_BODY(file, vectors, n, real(file, vectors, n, offset));
}
ssize_t preadv64(int file, const struct iovec* vectors, int n, off64_t offset) {
  REAL(preadv64);
  READ_VECTORS_BODY(file, vectors, n, real(file, vectors, n, offset));
}
ssize_t preadv2(int file, const struct iovec* vectors, int n, off_t offset, int flags) {
  REAL(preadv2);
  READ_VECTORS_BODY(file, vectors, n, real(file, vectors, n, offset, flags));
}
ssize_t preadv64v2(int file, const struct iovec* vectors, int n, off64_t offset, int flags) {
  REAL(preadv64v2);
  READ_VECTORS_BODY(file, vectors, n, real(file, vectors, n, offset, flags));
}

#define WRITE_BODY(file, count, call)                             \
  const int code = strike_file(WRITE, file);                      \
  if (code > 0) return -1;                                        \
  if (code == SHORT && count > 1) count = count > 1024 ? half(count) : count / 2; \
  return call

ssize_t write(int file, const void* buffer, size_t count) {
  REAL(write);
  WRITE_BODY(file, count, real(file, buffer, count));
}
ssize_t pwrite(int file, const void* buffer, size_t count, off_t offset) {
  REAL(pwrite);
  WRITE_BODY(file, count, real(file, buffer, count, offset));
}
ssize_t pwrite64(int file, const void* buffer, size_t count, off64_t offset) {
  REAL(pwrite64);
  WRITE_BODY(file, count, real(file, buffer, count, offset));
}

static int strike_open(const char* path, int flags) {
  const int code = strike(OPEN, path);
  if (code != 0) return code;
  return (flags & O_CREAT) != 0 ? strike(NAMES, path) : 0;
}

#define OPEN_BODY(path, flags, ...)                               \
  mode_t mode = 0;                                                \
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {                     \
    va_list more;                                                 \
    va_start(more, flags);                                        \
    mode = va_arg(more, mode_t);                                  \
    va_end(more);                                                 \
  }                                                               \
  return strike_open(path, flags) > 0 ? -1 : real(__VA_ARGS__, mode)

int open(const char* path, int flags, ...) {
  REAL(open);
  OPEN_BODY(path, flags, path, flags);
}
int open64(const char* path, int flags, ...) {
  REAL(open64);
  OPEN_BODY(path, flags, path, flags);
}
int openat(int directory, const char* path, int flags, ...) {
  REAL(openat);
  OPEN_BODY(path, flags, directory, path, flags);
}
int openat64(int directory, const char* path, int flags, ...) {
  REAL(openat64);
  OPEN_BODY(path, flags, directory, path, flags);
}

int fsync(int file) {
  REAL(fsync);
  return strike_file(SYNC, file) > 0 ? -1 : real(file);
}
int fdatasync(int file) {
  REAL(fdatasync);
  return strike_file(SYNC, file) > 0 ? -1 : real(file);
}
int rename(const char* from, const char* to) {
  REAL(rename);
  return strike(RENAME, from) > 0 ? -1 : real(from, to);
}
int renameat(int from_directory, const char* from, int to_directory, const char* to) {
  REAL(renameat);
  return strike(RENAME, from) > 0 ? -1 : real(from_directory, from, to_directory, to);
}
int mkdir(const char* path, mode_t mode) {
  REAL(mkdir);
  return strike(NAMES, path) > 0 ? -1 : real(path, mode);
}
int unlink(const char* path) {
  REAL(unlink);
  return strike(NAMES, path) > 0 ? -1 : real(path);
}
int ftruncate(int file, off_t length) {
  REAL(ftruncate);
  return strike_file(SPACE, file) > 0 ? -1 : real(file, length);
}
int ftruncate64(int file, off64_t length) {
  REAL(ftruncate64);
  return strike_file(SPACE, file) > 0 ? -1 : real(file, length);
}
/* These return the errno. */
int posix_fallocate(int file, off_t offset, off_t length) {
  REAL(posix_fallocate);
  const int code = strike_file(SPACE, file);
  return code > 0 ? code : real(file, offset, length);
}
int posix_fallocate64(int file, off64_t offset, off64_t length) {
  REAL(posix_fallocate64);
  const int code = strike_file(SPACE, file);
  return code > 0 ? code : real(file, offset, length);
}

#ifdef __GLIBC__
extern void* __libc_malloc(size_t);
extern void* __libc_memalign(size_t, size_t);

static int strike_memory(size_t count) {
  if (count < fault.bytes || strike(MEMORY, NULL) <= 0) return 0;
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t count) { return strike_memory(count) ? NULL : __libc_malloc(count); }
int posix_memalign(void** out, size_t alignment, size_t count) {
  void* const memory = strike_memory(count) ? NULL : __libc_memalign(alignment, count);
  if (memory == NULL) return ENOMEM;
  *out = memory;
  return 0;
}
#endif
