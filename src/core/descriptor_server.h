// Hands a file descriptor, of shared memory say, from one process to others of this host and user.
//
// It goes over an abstract Unix socket with an unguessable name (core/unix_socket.h); both ends
// check that the other has their user id.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "core/file_descriptor.h"

namespace ropewalk {

/// Hands a file descriptor to other processes of this host and user.
class DescriptorServer {
 public:
  /// Listens on an abstract Unix socket with a random name.
  DescriptorServer();
  ~DescriptorServer();
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;

  /// 32 hexadecimal letters; send it to the receivers over a private channel.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// Serves waiting receivers without blocking.
  /// @return how many were served by this call
  int serve(int fd);

  /// Serves until `receivers` were served in all. `meanwhile` is called some ten times a second,
  /// and may throw to end the wait: a receiver may have died.
  /// @throws Error kTimeout
  void serve(int fd, int receivers, std::chrono::steady_clock::time_point deadline,
             const std::function<void()>& meanwhile);

 private:
  std::string name_;
  FileDescriptor socket_;
};

/// Fetches the descriptor from the server called `name`.
/// @throws Error kTimeout, kSystem
FileDescriptor fetch_descriptor(std::string_view name,
                                std::chrono::steady_clock::time_point deadline);

}  // namespace ropewalk
