#include "caches.h"

#include <unistd.h>

namespace flash_core {

namespace {

constexpr size_t kCoreCacheBytes = 512 << 10;
constexpr size_t kSharedCacheBytes = 4 << 20;

size_t told(int name, size_t otherwise) {
  const long nbytes = name < 0 ? 0 : sysconf(name);
  return nbytes > 0 ? static_cast<size_t>(nbytes) : otherwise;
}

#if defined(_SC_LEVEL2_CACHE_SIZE) && defined(_SC_LEVEL3_CACHE_SIZE)
constexpr int kCoreCache = _SC_LEVEL2_CACHE_SIZE;
constexpr int kSharedCache = _SC_LEVEL3_CACHE_SIZE;
#else
constexpr int kCoreCache = -1;
constexpr int kSharedCache = -1;
#endif

}  // namespace

size_t core_cache_bytes() {
  static const size_t nbytes = told(kCoreCache, kCoreCacheBytes);
  return nbytes;
}

size_t shared_cache_bytes() {
  static const size_t nbytes = told(kSharedCache, kSharedCacheBytes);
  return nbytes;
}

}  // namespace flash_core
