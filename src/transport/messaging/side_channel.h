// The TCP connection that accompanies each connection over a fabric.
//
// A fabric's messages do not show that a peer died: sends to it may never complete. The side
// channel carries the two fabric addresses at the start, the outcome of verification, and the
// reason of a failure; when it closes, the peer's process has ended. No message and no progress
// depends on it after that. It is made like a connection of the provider `tcp` with one stream:
// both ends prove that they know the handle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_descriptor.h"
#include "transport/messaging/tcp/frame.h"

namespace ropewalk::transport::messaging {

enum class Note : std::uint32_t {
  kHello = 1,  ///< address, numbers, abilities
  kVerified,   ///< to the sender: all patterns came right
  kBroken,     ///< this end broke, for the reason that follows
  kStopped,    ///< this end's memory is left alone, and it leaves the peer's alone, from now on; a
               ///< provider's sender may add what it has written (ofi/sender.h)
  kEnd,        ///< this end was closed; from the sender with the number of its messages
};

/// Threads: those of its connection.
class SideChannel {
 public:
  /// The connecting end: proves itself, and then expects `reply`.
  static SideChannel connecting(FileDescriptor socket, const tcp::Token& proof,
                                const tcp::Reply& reply);
  /// The accepting end, whose peer has proven itself.
  static SideChannel accepting(FileDescriptor socket, const tcp::Reply& reply);

  /// Queues a note, and sends it as soon as the socket takes it.
  void send(Note note, std::span<const std::byte> payload);
  void send(Note note, std::string_view text) { send(note, std::as_bytes(std::span(text))); }

  struct Received {
    Note note;
    std::vector<std::byte> payload;
    [[nodiscard]] std::string text() const {
      return {reinterpret_cast<const char*>(payload.data()), payload.size()};
    }
  };
  /// Moves what can be moved.
  /// @return the next note
  std::optional<Received> poll();
  /// The peer's end came, and all of its notes have been taken.
  [[nodiscard]] bool ended() const noexcept { return ended_; }
  /// Why, in words.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// Gives the socket away, for closing.
  FileDescriptor release() noexcept { return std::move(socket_); }

 private:
  explicit SideChannel(FileDescriptor socket) : socket_(std::move(socket)) {}
  void flush();
  void read();
  void end(std::string reason);

  FileDescriptor socket_;
  std::vector<std::byte> out_;
  std::vector<std::byte> held_back_;  // until the peer has proven itself
  std::vector<std::byte> in_;
  std::optional<tcp::Reply> reply_;  // still expected
  bool socket_ended_ = false;
  bool ended_ = false;
  std::string reason_;
};

}  // namespace ropewalk::transport::messaging
