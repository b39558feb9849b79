// Which failures of a read may pass, and how often it is tried again: for reads of a running model
// and for the probe read at opening. `core/numpy_twin/reader.py` has the same numbers.
#pragma once

#include <cerrno>
#include <chrono>
#include <thread>

namespace flash_core {

class Retries {
 public:
  // Whether to read again after this errno. Where something is short (memory, descriptors), waits
  // for a moment first, a longer one each time: 31 ms in all.
  bool may_pass(int code) {
    switch (code) {
      case EIO:
        return device_left_-- > 0;
      case EINTR:
      case EAGAIN:
        return transient_left_-- > 0;
      case ENOMEM:
      case ENOBUFS:
      case EMFILE:
      case ENFILE:
        if (shortage_left_-- <= 0) return false;
        std::this_thread::sleep_for(pause_);
        pause_ *= 2;
        return true;
      default:
        return false;
    }
  }

 private:
  int device_left_ = 2;
  int transient_left_ = 1000;
  int shortage_left_ = 5;
  std::chrono::milliseconds pause_{1};
};

}  // namespace flash_core
