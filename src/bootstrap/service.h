// The event loop of a Context, on whose thread the bootstrap's protocols run.
//
// "Service thread" in this folder is its thread. The protocol objects (connection.h, listener.h,
// root.h, bootstrap_rank.h) live there and need no locks among themselves.
#pragma once

#include <array>

#include "core/event_loop.h"

namespace ropewalk::bootstrap {

class Service : public EventLoop {
 public:
  Service();
  ~Service() { stop(); }  // before the token, which what is kept may ask for
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// Random, the same for all ranks served here. Any thread.
  [[nodiscard]] const std::array<unsigned char, 16>& token() const noexcept { return token_; }

 private:
  std::array<unsigned char, 16> token_{};
};

}  // namespace ropewalk::bootstrap
