#include "executor/host/link_limits.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "executor/host/host_team.h"
#include "executor/link_end.h"
#include "executor/program.h"
#include "executor/walker.h"

namespace ropewalk::executor {
namespace {

constexpr std::size_t kStreamBytes = std::size_t{256}
                                     << 10U;  // as large as a link's slots together
constexpr int kStreams = 16;
constexpr int kRoundTrips = 2000;
constexpr int kRepetitions = 3;
// Each stream uses other memory, as do the calls of a program that walks through its data: memory
// that was just used is in the caches, where both ends copy several times as fast. The memory after
// the streams' part was written later, and has evicted that part from a last-level cache of up to
// this size.
constexpr std::size_t kStreamedBytes = kRepetitions * kStreams * kStreamBytes;
constexpr std::size_t kCacheBytes = std::size_t{36} << 20U;

struct Free {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory zeroed_lines(std::size_t bytes) {
  const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(4096, rounded)));
  std::memset(memory.get(), 0, rounded);
  return memory;
}

// One end of an exchange: sends to, and receives from, the other thread.
class Side {
 public:
  Side(std::byte* out, std::byte* in, const FifoShape& shape)
      : data_(zeroed_lines(kStreamedBytes + kCacheBytes)), team_(0) {
    send_end_.lie_in(out, shape);
    receive_end_.lie_in(in, shape);
    call_.input = data_.get();
    call_.output = data_.get();
    call_.type = DataType::kUint8;
    call_.element_bytes = 1;
    call_.check_tags = false;
  }

  void send(std::size_t bytes) { run(send_, {&send_end_}, {}, bytes); }
  void receive(std::size_t bytes) { run(receive_, {}, {&receive_end_}, bytes); }
  /// The next calls take the memory after that of the last.
  void advance(std::size_t bytes) {
    call_.input += bytes;
    call_.output += bytes;
  }

 private:
  void run(const Program& program, std::vector<SendEnd*> sends, std::vector<ReceiveEnd*> receives,
           std::size_t bytes) {
    Strand strand;
    strand.program = &program;
    strand.sends = std::move(sends);
    strand.receives = std::move(receives);
    strand.sources.resize(1);
    strand.destinations.resize(2);
    strand.length = strand.part_length = bytes;
    strand.chunk_length = send_end_.shape.slot_bytes;
    strand.rounds = (bytes + strand.chunk_length - 1) / strand.chunk_length;
    call_.count = bytes;
    while (!walk(team_, strand, call_)) {
    }
  }

  Memory data_;
  HostTeam team_;
  SendEnd send_end_;
  ReceiveEnd receive_end_;
  Call call_;
  Program send_ = make_send_program();
  Program receive_ = make_receive_program();
};

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::optional<LinkLimits> measure_link(const std::vector<int>& cores) {
  if (cores.size() < 2) return std::nullopt;
  const FifoShape shape;
  const Memory there = zeroed_lines(shape.bytes());
  const Memory back = zeroed_lines(shape.bytes());
  LinkLimits limits;
  // Threads of their own at both ends: the caller's affinity stays as it is.
  std::thread echo([&] {
    pin(cores[1]);
    Side side(back.get(), there.get(), shape);
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      for (int i = 0; i < kRoundTrips; ++i) {
        side.receive(8);
        side.send(8);
      }
      for (int i = 0; i < kStreams; ++i) {
        side.receive(kStreamBytes);
        side.advance(kStreamBytes);
      }
      side.send(8);
    }
  });
  std::thread origin([&] {
    pin(cores[0]);
    Side side(there.get(), back.get(), shape);
    double round_trips = 1e9;
    double streams = 1e9;
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kRoundTrips; ++i) {
        side.send(8);
        side.receive(8);
      }
      round_trips = std::min(round_trips, seconds_since(start));
      const auto streaming = std::chrono::steady_clock::now();
      for (int i = 0; i < kStreams; ++i) {
        side.send(kStreamBytes);
        side.advance(kStreamBytes);
      }
      side.receive(8);
      streams = std::min(streams, seconds_since(streaming));
    }
    limits.hop_seconds = round_trips / kRoundTrips / 2;
    limits.staged_bytes_per_second = static_cast<double>(kStreamBytes) * kStreams / streams;
  });
  origin.join();
  echo.join();
  return limits;
}

}  // namespace ropewalk::executor
