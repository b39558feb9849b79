// A ring of the Linux kernel (io_uring), by its system calls alone.
#pragma once

#include <memory>
#include <string>

#include "ring.h"

namespace flash_core {

// A ring of that depth for a file, or none and why: old kernels, containers and other systems
// have none. The file stays open as long as the ring lives.
std::unique_ptr<Ring> open_uring(int file, unsigned depth, std::string* problem);

}  // namespace flash_core
