#include "executor/host/limits.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "core/error.h"
#include "executor/host/kernels.h"
#include "executor/host/kernels_table.h"

namespace ropewalk::executor {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Memory of its own pages, all of them touched.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw system_error(errno, fmt::format("mmap of {} bytes for a measurement", bytes));
    }
    data_ = static_cast<std::byte*>(memory);
    std::memset(data_, 0, bytes);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(data_, bytes_); }
  [[nodiscard]] std::byte* data() const { return data_; }
  /// Else this process's first writes after a fork would copy pages.
  void keep_from_children() const { madvise(data_, bytes_, MADV_DONTFORK); }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

std::vector<int> usable_cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;  // more than 1024 processors
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cores.push_back(cpu);
  }
  return cores;
}

/// Keeps the thread on one core as far as the system allows it.
void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

/// Puts the calling thread's core set back.
class KeepCores {
 public:
  KeepCores() : known_(sched_getaffinity(0, sizeof set_, &set_) == 0) {}
  KeepCores(const KeepCores&) = delete;
  KeepCores& operator=(const KeepCores&) = delete;
  ~KeepCores() {
    if (known_) sched_setaffinity(0, sizeof set_, &set_);
  }

 private:
  cpu_set_t set_{};
  bool known_;
};

/// The smallest time of one body() seen within the budget, in batches long enough for the clock.
template <typename Body>
double smallest_seconds(Seconds budget, Body&& body) {
  const auto batch = [&](int runs) {
    const auto begin = Clock::now();
    for (int i = 0; i < runs; ++i) body();
    return Seconds(Clock::now() - begin).count() / runs;
  };
  const auto end = Clock::now() + budget;
  const double first = std::max(batch(1), 1e-9);
  double least = first;
  int batches = 0;
  while (batches < 3 || (batches < 2000 && Clock::now() < end)) {
    least = std::min(least, batch(std::clamp(static_cast<int>(20e-6 / least), 1, 2000)));
    ++batches;
  }
  return least;
}

double rate(std::size_t bytes, double seconds) {
  return static_cast<double>(bytes) / std::max(seconds, 1e-12);
}

// ---- memory -------------------------------------------------------------------------------------

std::vector<BandwidthPoint> measure_bandwidth(Seconds budget) {
  // The bytes that a copy reads; it writes as many.
  constexpr std::array<std::size_t, 6> kHalves = {std::size_t{12} << 10,   std::size_t{128} << 10,
                                                  std::size_t{512} << 10,  std::size_t{2048} << 10,
                                                  std::size_t{8192} << 10, std::size_t{96} << 20};
  const Pages pages(2 * kHalves.back());
  const detail::CopyKernel copy_kernel = detail::copy_kernel();
  const Seconds share = budget / static_cast<double>(3 * kHalves.size());
  std::vector<BandwidthPoint> points;
  for (const std::size_t half : kHalves) {
    BandwidthPoint point;
    point.working_set = 2 * half;
    std::byte* const first = pages.data();
    void* const second = first + half;
    point.memcpy_bytes_per_second =
        rate(half, smallest_seconds(share, [&] { std::memcpy(second, first, half); }));
    point.streaming_bytes_per_second =
        rate(half, smallest_seconds(share, [&] { copy_kernel(&second, 1, 1, first, half); }));
    const std::size_t third = point.working_set / 3 / 64 * 64;
    const void* const sources[] = {first, first + third};
    void* const destination = first + 2 * third;
    CombineArgs args;
    args.sources = sources;
    args.destinations = {&destination, 1};
    args.count = third / sizeof(float);
    point.combine_bytes_per_second = rate(third, smallest_seconds(share, [&] { combine(args); }));
    points.push_back(point);
  }
  return points;
}

// ---- a cache line between two cores -------------------------------------------------------------

struct alignas(128) SharedLine {
  std::atomic<std::uint64_t> turn{0};
};
constexpr std::uint64_t kStop = ~std::uint64_t{0};

/// Spins, but lets others run where the partner was taken off its core. That takes about a
/// millisecond: on a busy machine, who yields at once hardly ever runs together with the partner.
std::uint64_t wait_for_turn(const SharedLine& line, std::uint64_t from) {
  for (int spins = 0;; ++spins) {
    const std::uint64_t turn = line.turn.load(std::memory_order_acquire);
    if (turn >= from) return turn;
    if (spins > 1000000) std::this_thread::yield();
  }
}

double measure_line(int first, int second, Seconds budget) {
  SharedLine line;
  pin_to(first);
  std::thread partner([&] {
    pin_to(second);
    for (std::uint64_t turn = 1;; turn += 2) {
      if (wait_for_turn(line, turn) == kStop) return;
      line.turn.store(turn + 1, std::memory_order_release);
    }
  });
  std::uint64_t turn = 0;
  const double round = smallest_seconds(budget, [&] {
    line.turn.store(turn + 1, std::memory_order_release);
    wait_for_turn(line, turn + 2);
    turn += 2;
  });
  line.turn.store(kStop, std::memory_order_release);
  partner.join();
  return round / 2;
}

std::vector<LineLatency> measure_lines(const std::vector<int>& cores, Seconds budget) {
  std::vector<LineLatency> latencies;
  const std::size_t num = std::min<std::size_t>(cores.size(), 8);
  const std::size_t num_pairs = num * (num - 1) / 2;
  const auto pairs = static_cast<double>(num_pairs);
  for (std::size_t a = 0; a < num; ++a) {
    for (std::size_t b = a + 1; b < num; ++b) {
      latencies.push_back({cores[a], cores[b], measure_line(cores[a], cores[b], budget / pairs)});
    }
  }
  return latencies;
}

// ---- another process's memory -------------------------------------------------------------------

// The data written last may still be in a cache of up to this size.
constexpr std::size_t kCacheBytes = std::size_t{36} << 20;
constexpr std::size_t kFreshBytes = std::size_t{12} << 20;
// As the executor reads operands (host_team.cc).
constexpr std::size_t kFreshPiece = std::size_t{128} << 10;

constexpr std::size_t kTogether = 8 * kFreshPiece;  // long enough for the clock

/// Bytes per second of `read(offset, bytes)` over memory that no cache holds, from `begin` to
/// `end`, each piece once.
double fresh_rate(std::size_t begin, std::size_t end, const auto& read) {
  double least = 1e9;
  for (; begin < end; begin += kTogether) {
    const auto start = Clock::now();
    for (std::size_t at = begin; at < begin + kTogether; at += kFreshPiece) read(at, kFreshPiece);
    least = std::min(least, Seconds(Clock::now() - start).count());
  }
  return rate(kTogether, least);
}

std::optional<ProcessRead> measure_process_read(Seconds budget) {
  constexpr std::size_t kSmall = std::size_t{64} << 10;
  constexpr std::size_t kLarge = std::size_t{8} << 20;
  // Half of the memory is read into a cache, the other half into memory.
  constexpr std::size_t kHalf = kFreshBytes / 2;
  const Pages outputs(kHalf);
  outputs.keep_from_children();
  const Pages destination(kLarge);
  const Pages source(kFreshBytes + kCacheBytes);  // the last that is written
  int ends[2];
  if (pipe(ends) != 0) return std::nullopt;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    // Only what is safe between fork and exec of a process with threads: wait for the parent to
    // close the pipe, or to die.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[1]);
    char byte = 0;
    if (getppid() == parent) {
      while (read(ends[0], &byte, 1) < 0 && errno == EINTR) {
      }
    }
    _exit(0);
  }
  close(ends[0]);
  const Socket keep_alive(ends[1]);
  if (child < 0) return std::nullopt;

  bool permitted = true;
  const auto read_piece = [&](std::byte* to, std::byte* from, std::size_t bytes) {
    const iovec local{to, bytes};
    const iovec remote{from, bytes};
    permitted = permitted &&
                process_vm_readv(child, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
  };
  const auto read_child = [&](std::size_t bytes) {
    read_piece(destination.data(), source.data(), bytes);
  };
  read_child(8);
  ProcessRead result;
  if (permitted) {
    result.seconds_per_call = smallest_seconds(budget / 3, [&] { read_child(8); });
    result.small_bytes_per_second =
        rate(kSmall, smallest_seconds(budget / 3, [&] { read_child(kSmall); }));
    result.large_bytes_per_second =
        rate(kLarge, smallest_seconds(budget / 3, [&] { read_child(kLarge); }));
    result.fresh_bytes_per_second = fresh_rate(0, kHalf, [&](std::size_t at, std::size_t bytes) {
      read_piece(destination.data(), source.data() + at, bytes);
    });
    result.moved_bytes_per_second =
        fresh_rate(kHalf, kFreshBytes, [&](std::size_t at, std::size_t bytes) {
          read_piece(outputs.data() + at - kHalf, source.data() + at, bytes);
        });
  }
  kill(child, SIGKILL);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return permitted ? std::optional(result) : std::nullopt;
}

// ---- TCP over loopback --------------------------------------------------------------------------

bool receive_all(int fd, void* data, std::size_t bytes) {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t received = recv(fd, next, bytes, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    next += received;
    bytes -= static_cast<std::size_t>(received);
  }
  return true;
}
bool send_all(int fd, const void* data, std::size_t bytes) {
  ssize_t sent = 0;
  do {
    sent = send(fd, data, bytes, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);  // 8 bytes go at once
}

struct TcpTimes {
  double latency;  // one way
  double message;  // at both ends, by one core
};

std::optional<TcpTimes> measure_tcp(const std::vector<int>& cores, Seconds budget) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Socket client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener || !client || bind(listener.get(), name, length) != 0 ||
      listen(listener.get(), 1) != 0 || getsockname(listener.get(), name, &length) != 0 ||
      connect(client.get(), name, length) != 0) {
    return std::nullopt;
  }
  sockaddr_in peer{};
  sockaddr_in own{};
  socklen_t peer_length = sizeof peer;
  socklen_t own_length = sizeof own;
  const Socket server(
      accept4(listener.get(), reinterpret_cast<sockaddr*>(&peer), &peer_length, SOCK_CLOEXEC));
  if (!server || getsockname(client.get(), reinterpret_cast<sockaddr*>(&own), &own_length) != 0 ||
      own.sin_port != peer.sin_port) {
    return std::nullopt;  // a stranger came first
  }
  const int on = 1;
  setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(server.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);

  if (!cores.empty()) pin_to(cores.front());
  bool works = true;
  const double both_ends = smallest_seconds(budget * 0.2, [&] {
    std::uint64_t words = 1;
    works = works && send_all(client.get(), &words, sizeof words) &&
            receive_all(server.get(), &words, sizeof words);
  });
  std::thread echo([&] {
    if (cores.size() > 1) pin_to(cores[1]);
    std::uint64_t message = 0;
    while (receive_all(server.get(), &message, sizeof message) &&
           send_all(server.get(), &message, sizeof message)) {
    }
    shutdown(server.get(), SHUT_RDWR);
  });
  const double round = smallest_seconds(budget * 0.8, [&] {
    std::uint64_t message = 1;
    works = works && send_all(client.get(), &message, sizeof message) &&
            receive_all(client.get(), &message, sizeof message);
  });
  shutdown(client.get(), SHUT_RDWR);
  echo.join();
  return works ? std::optional(TcpTimes{round / 2, both_ends}) : std::nullopt;
}

}  // namespace

std::optional<double> Limits::best_line_latency_seconds() const {
  if (line_latency.empty()) return std::nullopt;
  return std::min_element(line_latency.begin(), line_latency.end(),
                          [](const auto& a, const auto& b) { return a.seconds < b.seconds; })
      ->seconds;
}
double Limits::cached_copy_bytes_per_second() const {
  return bandwidth.empty() ? 0 : bandwidth.front().memcpy_bytes_per_second;
}
double Limits::uncached_copy_bytes_per_second() const {
  if (bandwidth.empty()) return 0;
  return std::max(bandwidth.back().memcpy_bytes_per_second,
                  bandwidth.back().streaming_bytes_per_second);
}
double Limits::cached_combine_bytes_per_second() const {
  return bandwidth.empty() ? 0 : bandwidth.front().combine_bytes_per_second;
}
double Limits::uncached_combine_bytes_per_second() const {
  return bandwidth.empty() ? 0 : bandwidth.back().combine_bytes_per_second;
}

namespace {

Limits path_costs(Seconds budget) {
  Limits limits;
  limits.cores = usable_cores();
  if (!limits.cores.empty()) pin_to(limits.cores.front());
  limits.process_read = measure_process_read(budget * 0.5);
  if (const std::optional<TcpTimes> tcp = measure_tcp(limits.cores, budget * 0.5)) {
    limits.tcp_latency_seconds = tcp->latency;
    limits.tcp_message_seconds = tcp->message;
  }
  return limits;
}

}  // namespace

Limits measure_path_costs(std::chrono::milliseconds budget) {
  const KeepCores keep_cores;
  return path_costs(budget);
}

Limits measure_limits(std::chrono::milliseconds budget) {
  const KeepCores keep_cores;
  const Seconds total = budget;
  Limits limits = path_costs(total * 0.3);
  if (!limits.cores.empty()) pin_to(limits.cores.front());
  limits.bandwidth = measure_bandwidth(total * 0.5);
  if (limits.cores.size() > 1) limits.line_latency = measure_lines(limits.cores, total * 0.2);
  return limits;
}

}  // namespace ropewalk::executor
