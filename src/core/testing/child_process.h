// A second process of a test, with a socket between the two.
#pragma once

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <utility>

namespace ropewalk::testing {

/// A forked process that runs `body` with its end of the socket and ends with what that returns, or
/// with 99 after an exception, whose words go to standard error. It ends with its parent, and is
/// killed when this object goes.
class Child {
 public:
  explicit Child(const std::function<int(int socket)>& body) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[0]);
      int status = 99;
      try {
        status = body(ends[1]);
      } catch (const std::exception& error) {
        fprintf(stderr, "child: %s\n", error.what());
      }
      _exit(status);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~Child() {
    kill();
    close(socket_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// @return its exit status, or 1000 and the number of the signal that ended it
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int socket() const { return socket_; }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

/// @throws std::runtime_error if the other process has ended
inline void write_all(int socket, const void* data, std::size_t bytes) {
  if (write(socket, data, bytes) != static_cast<ssize_t>(bytes)) {
    throw std::runtime_error("the other process is gone");
  }
}
inline void read_all(int socket, void* data, std::size_t bytes) {
  if (recv(socket, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) {
    throw std::runtime_error("the other process is gone");
  }
}

}  // namespace ropewalk::testing
