// A round of messages by the functions of ropewalk/device.cuh, of which every byte is compared:
// one text for kernels (tests/gpu/window_forms.cu) and for threads of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ropewalk/device.cuh>

namespace ropewalk::capi::testing {

/// How data goes to the next rank of the ring.
enum class Form : int {
  kPutSignal,  ///< put_signal()
  kPuts,       ///< two of put(), then signal() by 2
  kFlush,      ///< put(), flush(), the source changes, signal()
  kGet,        ///< put() and signal(), and the data is got back from there
};
constexpr int kForms = 4;
constexpr const char* kFormNames[kForms] = {"put_signal", "put+put+signal", "put+flush+signal",
                                            "put+signal+get"};

/// Around what is written, with bytes that must stay.
constexpr std::size_t kEdge = 16;
constexpr unsigned char kStays = 0xa5;
/// Distances from an aligned address.
struct Shifts {
  std::size_t source;  ///< of a put, and of where a get writes
  std::size_t target;
};
constexpr std::size_t kMostShift = 16;
constexpr Shifts kShifts[] = {{0, 0}, {8, 0}, {4, 12}, {3, 0}, {0, 5}, {7, 7}};

/// Slots of the window.
constexpr int kData = 0;
constexpr int kReady = 1;
constexpr int kRead = 2;
constexpr int kSlots = 3;

struct Round {
  Form form = Form::kPutSignal;
  std::size_t bytes = 0;
  Shifts shifts{};
  int turn = 0;  ///< other data in each
};

/// Where a rank has what a round uses, each of `bytes_of_memory(most)`.
struct Memory {
  rwDeviceWindow window{};
  unsigned char* mine = nullptr;  ///< the window's
  unsigned char* source = nullptr;
  unsigned char* back = nullptr;
  int right = 0;
  int left = 0;
};
constexpr std::size_t bytes_of_memory(std::size_t most) { return most + 2 * kEdge + kMostShift; }

/// What came of it.
struct Found {
  std::uint64_t wrong = 0;  ///< bytes; the first that a thread found:
  std::uint64_t at = 0;     ///< from the beginning of the data, as a signed number
  std::uint64_t expected = 0;
  std::uint64_t got = 0;
  std::uint64_t of_get = 0;
  std::uint64_t counted = 0;  ///< signals that signal_count() told,
  std::uint64_t counts = 0;   ///< and that there were
  int status = 0;             ///< of the first function that failed
  int step = 0;               ///< which
};

RW_DEVICE_FUNCTION unsigned char byte_of(int rank, int turn, std::size_t k) {
  return static_cast<unsigned char>(k * 7 + k / 251 + static_cast<std::size_t>(rank) * 13 +
                                    static_cast<std::size_t>(turn) * 29);
}

template <typename Scope>
RW_DEVICE_FUNCTION void fill(const Scope& scope, unsigned char* memory, std::size_t bytes) {
  for (std::size_t k = scope.rank(); k < bytes; k += scope.size()) memory[k] = kStays;
}

/// `memory` has the edges, and between them the data of `rank`.
template <typename Scope>
RW_DEVICE_FUNCTION void compare(const Scope& scope, const unsigned char* memory, const Round& round,
                                int rank, bool of_get, Found& found) {
  for (std::size_t k = scope.rank(); k < round.bytes + 2 * kEdge; k += scope.size()) {
    const bool inside = k >= kEdge && k < kEdge + round.bytes;
    const unsigned char expected = inside ? byte_of(rank, round.turn, k - kEdge) : kStays;
    if (memory[k] == expected) continue;
    if (device::detail::take_ticket(&found.wrong) != 0) continue;
    found.at = k - kEdge;
    found.expected = expected;
    found.got = memory[k];
    found.of_get = of_get ? 1 : 0;
  }
}

/// All ranks call with the same `round`, once at a time. The first failure ends it.
template <typename Scope>
RW_DEVICE_FUNCTION void run_round(const Scope& scope, const Memory& memory, const Round& round,
                                  Found& found) {
  using device::Status;
  const rwDeviceWindow& window = memory.window;
  int step = 0;
  const auto failed = [&](Status status) {
    ++step;
    if (status == Status::kDone) return false;
    if (scope.rank() == 0) {
      found.status = static_cast<int>(status);
      found.step = step;
    }
    return true;
  };
  unsigned char* const source = memory.source + kEdge + round.shifts.source;
  unsigned char* const target = memory.mine + round.shifts.target;  // with its edges
  unsigned char* const back = memory.back + round.shifts.source;
  const std::size_t offset = kEdge + round.shifts.target;
  for (std::size_t k = scope.rank(); k < round.bytes; k += scope.size()) {
    source[k] = byte_of(window.rank, round.turn, k);
  }
  fill(scope, target, round.bytes + 2 * kEdge);
  fill(scope, back, round.bytes + 2 * kEdge);
  const std::uint64_t before = device::signal_count(window, memory.left, kData);
  // The left one may put now.
  if (failed(device::signal(scope, window, memory.left, kReady))) return;
  if (failed(device::wait_signal(scope, window, memory.right, kReady))) return;
  std::uint64_t count = 1;
  switch (round.form) {
    case Form::kPutSignal:
      if (failed(device::put_signal(scope, window, memory.right, offset, source, round.bytes,
                                    kData))) {
        return;
      }
      break;
    case Form::kPuts: {
      const std::size_t half = round.bytes / 2;
      count = 2;
      if (failed(device::put(scope, window, memory.right, offset, source, half)) ||
          failed(device::put(scope, window, memory.right, offset + half, source + half,
                             round.bytes - half)) ||
          failed(device::signal(scope, window, memory.right, kData, count))) {
        return;
      }
      break;
    }
    case Form::kFlush:
      if (failed(device::put(scope, window, memory.right, offset, source, round.bytes)) ||
          failed(device::flush(scope, window))) {
        return;
      }
      fill(scope, source, round.bytes);
      if (failed(device::signal(scope, window, memory.right, kData))) return;
      break;
    case Form::kGet:
      if (failed(device::put(scope, window, memory.right, offset, source, round.bytes)) ||
          failed(device::signal(scope, window, memory.right, kData))) {
        return;
      }
      break;
  }
  if (failed(device::wait_signal(scope, window, memory.left, kData, count))) return;
  compare(scope, target, round, memory.left, false, found);
  if (scope.rank() == 0) {
    found.counted = device::signal_count(window, memory.left, kData) - before;
    found.counts = count;
  }
  if (round.form == Form::kGet) {
    if (failed(device::get(scope, window, memory.right, offset, back + kEdge, round.bytes))) return;
    compare(scope, back, round, window.rank, true, found);
  }
  // Sources may change, and the right one's part.
  if (failed(device::flush(scope, window))) return;
  if (failed(device::signal(scope, window, memory.right, kRead))) return;
  (void)failed(device::wait_signal(scope, window, memory.left, kRead));
}

}  // namespace ropewalk::capi::testing
