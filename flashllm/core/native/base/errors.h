// What can go wrong outside this program. Wrong arguments are std::invalid_argument and
// std::out_of_range; bugs are assertions.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace flash_core {

// The device or the file system failed: an errno, and the file it happened in.
class DeviceError : public std::runtime_error {
 public:
  DeviceError(int code, const std::string& message, std::string path)
      : std::runtime_error(message), code_(code), path_(std::move(path)) {}

  int code() const { return code_; }
  const std::string& path() const { return path_; }

 private:
  int code_;
  std::string path_;
};

// The file ends before the bytes that were asked for.
class EndOfFile : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What the device gives is not what was written, also when it is read again.
class ChecksumError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The work was dropped because of a call of cancel() or close().
class ReadCancelled : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace flash_core
