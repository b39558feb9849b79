// A bug behind three conditions, for the driver itself: `make fuzz` begins by finding it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4 || data[0] != 'b') return 0;
  if (data[1] != 'u') return 0;
  if (data[2] == 'g') std::abort();
  return 0;
}
