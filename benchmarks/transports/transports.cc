// Transports side by side: bandwidth and latency between two processes, by turns.
//
// transports [--rounds N] [--latency] NAME[,SETTING=VALUE...]...
//
// Each NAME is a transport with its settings, `bare:PROVIDER`: libfabric alone, or `bare:psm2`:
// libpsm2 alone, over its shared-memory device. Both processes open a connection each way over
// every one; then, for each size, the transports take turns, so that other load on the machine
// affects all equally. With --latency only the shortest messages. Printed are medians, and their
// ratio to the first transport's. Buffers are registered, and what arrived is compared outside the
// time.
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/settings.h"
#include "transport/registry.h"
#include "transport/transport.h"
#include "transports/bare.h"
#ifdef RW_HAVE_BARE_FABRIC
#include "transports/bare_fabric.h"
#endif
#ifdef RW_HAVE_BARE_PSM2
#include "transports/bare_psm2.h"
#endif

namespace ropewalk {
namespace {

using Clock = std::chrono::steady_clock;
using namespace transport;  // NOLINT(google-build-using-namespace)

constexpr std::string_view kBare = "bare:";
constexpr std::size_t kLargest = 16 << 20;
constexpr std::size_t kInFlight = 4;
constexpr std::size_t kBytesPerTurn = 64 << 20;
constexpr int kPingPongs = 300;

struct Chosen {
  std::string label;
  std::string name;
  Config config;
};

Chosen parse(const std::string& text) {
  Chosen chosen{text, {}, Config::load()};
  std::size_t at = text.find(',');
  chosen.name = text.substr(0, at);
  while (at != std::string::npos) {
    const std::size_t end = text.find(',', at + 1);
    const std::string part = text.substr(at + 1, end == std::string::npos ? end : end - at - 1);
    const std::size_t equals = part.find('=');
    chosen.config.set(part.substr(0, equals), part.substr(equals + 1), "command line");
    at = end;
  }
  return chosen;
}

void exchange(int socket, const void* out, void* in, std::size_t bytes) {
  if (write(socket, out, bytes) != static_cast<ssize_t>(bytes) ||
      recv(socket, in, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) {
    throw Error(Errc::kPeerLost, "{}", "the other process is gone");
  }
}

void meet(int socket) {
  char mine = 'm';
  char theirs = 0;
  exchange(socket, &mine, &theirs, 1);
}

// One transport's connections and buffers in one of the two processes.
class End {
 public:
  End(const Chosen& chosen, int socket) : out_(kLargest), in_(kLargest) {
    for (std::size_t i = 0; i < kLargest; ++i) out_[i] = static_cast<char>(i * 7 + i / 251);
    if (chosen.name.starts_with(kBare)) {
      bare_ = make_bare(chosen.name.substr(kBare.size()), socket);
      return;
    }
    transport_ = make_transport(chosen.name, chosen.config);
    if (transport_->num_devices() == 0) {
      throw Error(Errc::kSystem, "{} has no device here", chosen.name);
    }
    const auto listener = transport_->listen(0);
    Handle theirs{};
    exchange(socket, listener->handle().data(), theirs.data(), theirs.size());
    const auto connector = transport_->connect(0, theirs);
    while (!sender_ || !receiver_) {
      if (!sender_) sender_ = connector->poll();
      if (!receiver_) receiver_ = listener->accept();
    }
    out_memory_ = sender_->register_memory(out_.data(), out_.size(), MemoryKind::kHost);
    in_memory_ = receiver_->register_memory(in_.data(), in_.size(), MemoryKind::kHost);
  }

  // Several messages in flight, one after the other into the same memory.
  void send_many(std::size_t bytes, std::size_t messages) {
    if (bare_) return bare_->send_many(bytes, messages, kInFlight);
    std::deque<std::unique_ptr<Request>> flying;
    for (std::size_t i = 0; i < messages || !flying.empty();) {
      if (i < messages && flying.size() < kInFlight) {
        if (auto request = sender_->send(out_.data(), bytes, 0, out_memory_.get())) {
          flying.push_back(std::move(request));
          ++i;
          continue;
        }
      }
      if (!flying.empty() && flying.front()->test()) flying.pop_front();
    }
  }
  void receive_many(std::size_t bytes, std::size_t messages) {
    if (bare_) return bare_->receive_many(bytes, messages, kInFlight);
    const ReceiveBuffer buffer{in_.data(), bytes, 0, in_memory_.get()};
    std::deque<std::unique_ptr<Request>> flying;
    for (std::size_t i = 0; i < messages || !flying.empty();) {
      if (i < messages && flying.size() < kInFlight) {
        if (auto request = receiver_->receive({&buffer, 1})) {
          flying.push_back(std::move(request));
          ++i;
          continue;
        }
      }
      if (!flying.empty() && flying.front()->test()) flying.pop_front();
    }
  }
  void ping_pong(std::size_t bytes, int times, bool first) {
    if (bare_) return bare_->ping_pong(bytes, times, first);
    const ReceiveBuffer buffer{in_.data(), bytes, 0, in_memory_.get()};
    for (int i = 0; i < times; ++i) {
      if (first) send_one(bytes);
      std::unique_ptr<Request> receive;
      while (!receive) receive = receiver_->receive({&buffer, 1});
      while (!receive->test()) {
      }
      if (!first) send_one(bytes);
    }
  }
  void clear() { std::fill(in_.begin(), in_.end(), 0); }
  [[nodiscard]] bool right(std::size_t bytes) const {
    return std::memcmp(in_.data(), out_.data(), bytes) == 0;
  }

 private:
  void send_one(std::size_t bytes) {
    std::unique_ptr<Request> send;
    while (!send) send = sender_->send(out_.data(), bytes, 0, out_memory_.get());
    while (!send->test()) {
    }
  }

  std::unique_ptr<Bare> make_bare(const std::string& library, [[maybe_unused]] int socket) {
#ifdef RW_HAVE_BARE_PSM2
    if (library == "psm2") {
      return std::make_unique<BarePsm2>(socket, out_.data(), in_.data());
    }
#endif
#ifdef RW_HAVE_BARE_FABRIC
    return std::make_unique<BareFabric>(library, socket, out_.data(), in_.data(), kLargest);
#else
    throw Error(Errc::kInvalidUsage, "{}{}: not in this build", kBare, library);
#endif
  }

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<SendConnection> sender_;
  std::unique_ptr<ReceiveConnection> receiver_;
  std::vector<char> out_;
  std::vector<char> in_;
  std::unique_ptr<Bare> bare_;
  std::unique_ptr<Registration> out_memory_;
  std::unique_ptr<Registration> in_memory_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(const std::string& label, std::size_t bytes, double value, const char* unit,
           double ratio) {
  fmt::print("{:<40} {:>10} {:>10.2f} {:<5} {:>6.2f}\n", label, bytes, value, unit, ratio);
  std::fflush(stdout);
}

// Both processes take the same turns; the first one measures the time.
int run(const std::vector<Chosen>& chosen, int rounds, bool latency_only, int socket, bool first) {
  std::vector<std::unique_ptr<End>> ends;
  for (const Chosen& one : chosen) ends.push_back(std::make_unique<End>(one, socket));
  int wrong = 0;
  for (std::size_t bytes = 64 << 10; bytes <= kLargest && !latency_only; bytes *= 4) {
    std::vector<std::vector<double>> rates(ends.size());
    const std::size_t messages = kBytesPerTurn / bytes;
    for (int round = -1; round < rounds; ++round) {  // the first is for warming up
      for (std::size_t i = 0; i < ends.size(); ++i) {
        ends[i]->clear();
        meet(socket);
        const Clock::time_point begin = Clock::now();
        first ? ends[i]->send_many(bytes, messages) : ends[i]->receive_many(bytes, messages);
        meet(socket);
        const std::chrono::duration<double> time = Clock::now() - begin;
        if (!first && !ends[i]->right(bytes)) ++wrong;
        if (round >= 0) rates[i].push_back(static_cast<double>(kBytesPerTurn) / time.count() / 1e9);
      }
    }
    for (std::size_t i = 0; first && i < ends.size(); ++i) {
      print(chosen[i].label, bytes, median(rates[i]), "GB/s", median(rates[i]) / median(rates[0]));
    }
  }
  std::vector<std::vector<double>> times(ends.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      meet(socket);
      const Clock::time_point begin = Clock::now();
      ends[i]->ping_pong(8, kPingPongs, first);
      const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
      if (round >= 0) times[i].push_back(time.count() / kPingPongs / 2);
    }
  }
  for (std::size_t i = 0; first && i < ends.size(); ++i) {
    print(chosen[i].label, 8, median(times[i]), "us", median(times[i]) / median(times[0]));
  }
  meet(socket);
  if (wrong > 0) fmt::print(stderr, "{} turns brought wrong data\n", wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ropewalk

int main(int argc, char** argv) {
  using namespace ropewalk;
  int rounds = 9;
  bool latency_only = false;
  std::vector<Chosen> chosen;
  int sockets[2];
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      if (argument == "--rounds" && i + 1 < argc) {
        rounds = std::atoi(argv[++i]);
      } else if (argument == "--latency") {
        latency_only = true;
      } else {
        chosen.push_back(parse(argument));
      }
    }
    if (chosen.empty() || rounds < 1) {
      fmt::print(stderr, "usage: {} [--rounds N] [--latency] NAME[,SETTING=VALUE...]...\n",
                 argv[0]);
      return 2;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 2;
    const pid_t child = fork();
    const bool first = child != 0;
    const int result = run(chosen, rounds, latency_only, sockets[first ? 0 : 1], first);
    if (!first) _exit(result);
    int status = 0;
    waitpid(child, &status, 0);
    return result != 0 || status != 0 ? 1 : 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
