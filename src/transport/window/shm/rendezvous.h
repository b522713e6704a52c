// The Unix socket over which two ends of a host meet: names, secrets, greetings with descriptors.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "core/process_memory.h"
#include "transport/transport.h"

namespace ropewalk::transport::window {

using Name = std::array<std::byte, 8>;
using Secret = std::array<std::byte, 16>;

/// The first bytes of a handle, which identify the provider.
inline constexpr std::size_t kMarkBytes = 4;

/// The contents of a handle.
struct ListenerAddress {
  Name name{};      ///< of the abstract socket
  Secret secret{};  ///< names can be listed by anyone on the host, this cannot
};
Handle encode(const ListenerAddress& address);
std::optional<ListenerAddress> decode_listener_address(const Handle& handle);

/// The first message of each side, with the descriptor of its window. Plain bytes.
struct Greeting {
  std::array<char, 8> magic;
  Secret secret;
  ProbeAddress probe;
};

/// Sends a greeting on a connected socket.
/// @throws Error kPeerLost
void send_greeting(int socket, const Greeting& greeting, int window);

struct Received {
  Greeting greeting;
  FileDescriptor window;
};
/// @return nothing if nothing has arrived yet
/// @throws Error kPeerLost if the other end has closed or the first message is not a greeting
std::optional<Received> receive_greeting(int socket);

Greeting make_greeting(const Secret& secret, const ProbeAddress& probe);

/// The other end's process as this process sees it; 0 when it cannot be seen.
/// @throws Error kPeerLost when it belongs to another user
pid_t checked_peer(int socket);

/// Listens; returns sockets with a valid greeting. Silent connections are dropped after some time.
class MeetingPoint {
 public:
  MeetingPoint();
  [[nodiscard]] const ListenerAddress& address() const noexcept { return address_; }
  struct Guest {
    FileDescriptor socket;
    Received received;
    pid_t pid = 0;
  };
  std::optional<Guest> accept();

 private:
  struct Waiting {
    FileDescriptor socket;
    pid_t pid;
    std::chrono::steady_clock::time_point since;
  };
  ListenerAddress address_;
  FileDescriptor socket_;
  std::vector<Waiting> waiting_;
};

/// Connects; never waits.
/// @throws Error kPeerLost
FileDescriptor call(const ListenerAddress& listener);

}  // namespace ropewalk::transport::window
