// What libmp's handles point to.
#pragma once

#include <ropewalk/messages.h>
#include <ropewalk/ropewalk.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ropewalk::mp {

struct KernelWords;

enum class Kind : std::uint8_t { kSend, kReceive, kPut, kGet };

/// kPrepared: nothing has happened. kQueued: in a stream that has not reached it, or for a kernel
/// that has not started it. kStarted: under
/// way. kEnded: complete, or failed.
enum class State : std::uint8_t { kPrepared, kQueued, kStarted, kEnded };

struct Block {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace ropewalk::mp

// libmp's names. NOLINTBEGIN(readability-identifier-naming)
struct mp_reg {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  bool on_gpu = false;
};

struct mp_window {
  rwMessageWindow_t window = nullptr;
  std::vector<std::size_t> sizes;  // by rank
  bool on_gpu = false;             // of all ranks that have a part
};

struct mp_request {
  ropewalk::mp::Kind kind = ropewalk::mp::Kind::kSend;
  ropewalk::mp::State state = ropewalk::mp::State::kPrepared;
  int peer = 0;
  std::vector<ropewalk::mp::Block> blocks;
  std::size_t bytes = 0;

  // Of puts and gets.
  mp_window* window = nullptr;
  std::size_t displacement = 0;
  bool buffer_on_gpu = false;
  rwRequest_t transfer = nullptr;
  bool releases_itself = false;  // MP_PUT_NOWAIT

  // Of sends and receives: how far it is.
  std::size_t moved = 0;
  std::size_t message_bytes = 0;  // of a receive: of the message that came
  bool begun = false;

  bool told_to_wait = false;  // a stream or a kernel was told to wait for it
  int waiting_streams = 0;    // those, and kernels, that have not come past their wait

  // Of those that kernels start or wait for.
  ropewalk::mp::KernelWords* kernel_words = nullptr;
  std::uint32_t kernel_number = 0;
  bool kernel_told = false;  // that it has ended

  std::string error;  // "" for none

  [[nodiscard]] bool ended() const noexcept { return state == ropewalk::mp::State::kEnded; }
  void end(std::string text = {}) {
    error = std::move(text);
    state = ropewalk::mp::State::kEnded;
  }
};
// NOLINTEND(readability-identifier-naming)
