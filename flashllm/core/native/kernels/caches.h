// How large the processor's caches are, as far as the system says it.
#pragma once

#include <cstddef>

namespace flash_core {

// The second-level cache of a core; 512 KiB where it is not known.
size_t core_cache_bytes();

// The cache that cores share; 4 MiB where it is not known.
size_t shared_cache_bytes();

}  // namespace flash_core
