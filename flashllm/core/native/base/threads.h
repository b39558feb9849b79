// What every thread of this library starts with.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace flash_core {

// While it lives, threads that are started do not receive the signals that are meant for Python's
// main thread. The starting thread has its own mask back afterwards.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGCHLD, SIGWINCH, SIGUSR1,
                             SIGUSR2, SIGPIPE}) {
      sigaddset(&blocked, signal);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, &previous_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t previous_;
};

}  // namespace flash_core
