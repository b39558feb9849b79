// A file read with pread, past the page cache where the file system lets us.
#pragma once

#include <memory>
#include <string>

#include "source.h"

namespace flash_core {

// Whether the page cache may be used: never, if need be, or always.
enum class Direct { required, optional, disabled };

// invalid_argument for a name that is none of those.
Direct parse_direct(const std::string& name);

struct OpenedFile {
  std::unique_ptr<Source> source;
  std::string fallback;  // why reads are not direct; "" where they are
};

// A probe read decides, since open() may accept what reads refuse. DeviceError if the file
// cannot be opened, or if direct I/O is required and refused.
OpenedFile open_file(const std::string& path, Direct direct);

}  // namespace flash_core
