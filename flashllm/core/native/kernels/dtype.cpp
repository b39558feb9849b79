#include "dtype.h"

#include <array>
#include <stdexcept>

namespace flash_core {

namespace {

constexpr std::array<const char*, kDTypes> kNames = {"f32", "f16", "bf16", "int8", "int4", "mxfp4"};

}  // namespace

const char* dtype_name(DType dtype) { return kNames[static_cast<size_t>(dtype)]; }

DType parse_dtype(const std::string& name) {
  for (size_t i = 0; i < kDTypes; ++i) {
    if (name == kNames[i]) return static_cast<DType>(i);
  }
  throw std::invalid_argument("dtype is '" + name +
                              "'; expected f32, f16, bf16, int8, int4 or mxfp4");
}

Checked row_bytes(DType dtype, uint64_t columns) {
  if (columns == 0) throw std::invalid_argument("a row has no columns");
  if (!is_grouped(dtype)) return Checked(columns) * Checked(item_bytes(dtype));
  const Checked groups(columns / kGroup + (columns % kGroup != 0 ? 1 : 0));
  return groups * Checked(group_bytes(dtype) + scale_bytes(dtype));
}

}  // namespace flash_core
