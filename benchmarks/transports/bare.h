// A message-passing library called directly, for comparison with the transport over it.
#pragma once

#include <cstddef>

namespace ropewalk {

/// One end of a pair of processes; its memory was given when it was made. Receives are posted
/// before their messages come.
class Bare {
 public:
  virtual ~Bare() = default;
  virtual void send_many(std::size_t bytes, std::size_t messages, std::size_t in_flight) = 0;
  virtual void receive_many(std::size_t bytes, std::size_t messages, std::size_t in_flight) = 0;
  virtual void ping_pong(std::size_t bytes, int times, bool first) = 0;
};

}  // namespace ropewalk
