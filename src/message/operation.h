// One put, get, signal, wait for signals, or flush: what it is, and how far it is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"

namespace ropewalk::message {

class Window;

/// A rank that left in order has been told that all its operations are complete: what a wait still
/// looks for after this time will not come.
inline constexpr std::chrono::milliseconds kLeftGrace{200};

enum class OperationKind : std::uint8_t { kPut, kGet, kSignal, kWaitSignal, kFlush };

struct OperationSpec {
  OperationKind kind = OperationKind::kPut;
  Window* window = nullptr;
  int peer = 0;
  std::uint64_t offset = 0;           ///< kPut, kGet: in the peer's part
  std::uint64_t bytes = 0;            ///< kPut, kGet
  const std::byte* source = nullptr;  ///< kPut
  std::byte* destination = nullptr;   ///< kGet
  int slot = 0;                       ///< kSignal, kWaitSignal
  std::uint64_t count = 0;            ///< kSignal: by how much; kWaitSignal: how many more
  bool on_gpu = false;                ///< kPut, kGet: source or destination is memory of a GPU
};

/// "put of 64 bytes to rank 3, window 1"
std::string describe(const OperationSpec& spec);

/// Threads: who started it may ask ended() and error() at any time; the rest is the messenger's.
struct Operation {
  explicit Operation(const OperationSpec& what = {}) : spec(what) {}

  OperationSpec spec;
  std::uint64_t target = 0;  ///< kWaitSignal: the counter's value that it waits for
  std::uint64_t moved = 0;   ///< kPut: bytes handed on; kGet: bytes that have come
  std::uint32_t number = 0;  ///< kGet, kFlush over a link
  std::optional<Error> fault;
  bool refused = false;  ///< the fault leaves the communicator whole

  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  /// To be started (again).
  void rewind() {
    target = moved = 0;
    fault.reset();
    refused = false;
    ended_.store(false, std::memory_order_relaxed);
  }
  void end() noexcept { ended_.store(true, std::memory_order_release); }
  void fail(const Error& error, bool whole) {
    if (ended()) return;
    fault = error;
    refused = whole;
    end();
  }

 private:
  std::atomic<bool> ended_{false};
};

}  // namespace ropewalk::message
