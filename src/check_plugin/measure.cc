#include "check_plugin/measure.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>

#include "check_plugin/connections.h"
#include "check_plugin/gpu.h"
#include "check_plugin/region.h"
#include "check_plugin/transfers.h"

namespace ropewalk::check_plugin {
namespace {

constexpr int kMeasuredRounds = 7;
constexpr std::size_t kSlotsInUse = kSteps;

// Of each size in the page.
enum Number : std::size_t {
  kLatencyMin,
  kLatencyMedian,
  kBandwidthMedian,
  kBandwidthMax,
  kMemcpyMedian,
  kMemcpyMax,
  kKernelMedian,
  kKernelMax,
  kNumbers,
};
static_assert(kMostSizes * kNumbers <= kMostNumbers);

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One direction of a connection with a registered region of slots.
class Lane {
 public:
  Lane(Session& session, void* comm, bool sends, std::size_t bytes, int gpu)
      : session_(session),
        comm_(comm),
        sends_(sends),
        bytes_(bytes),
        region_(kSlotsInUse * bytes, gpu),
        mhandle_(region_.register_on(session, comm)) {
    for (std::size_t i = 0; i < kSlotsInUse; ++i) {
      parts_[i] = {{region_.at(i * bytes), bytes, 0, mhandle_}};
      if (sends) region_.fill(i * bytes, bytes, bytes + i);
    }
  }
  ~Lane() { session_.plugin().dereg_mr(comm_, mhandle_); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Posts the next message if the plugin takes it.
  bool post() {
    const std::vector<Part>& parts = parts_[posted_ % kSlotsInUse];
    void* request = nullptr;
    session_.expect(sends_ ? session_.plugin().isend(comm_, parts[0], &request)
                           : session_.plugin().irecv(comm_, parts, &request),
                    sends_ ? Call::kIsend : Call::kIrecv);
    if (request == nullptr) return false;
    requests_[posted_ % kSlotsInUse] = request;
    ++posted_;
    return true;
  }
  // Tests the oldest.
  // @return whether it is done
  bool test() {
    if (done_ == posted_) return false;
    int done = 0;
    session_.expect(session_.plugin().test(requests_[done_ % kSlotsInUse], &done, sizes_.data()),
                    Call::kTest);
    if (done == 0) return false;
    ++done_;
    return true;
  }
  [[nodiscard]] std::size_t pending() const noexcept { return posted_ - done_; }
  [[nodiscard]] std::size_t done() const noexcept { return done_; }
  [[nodiscard]] Region& region() noexcept { return region_; }

  // @throws Failed unless all slots hold what the sender filled in
  void check() {
    for (std::size_t i = 0; i < std::min(kSlotsInUse, done_); ++i) {
      if (const auto wrong = region_.difference(i * bytes_, bytes_, bytes_ + i)) {
        throw Failed{"measured messages as they were sent", *wrong};
      }
    }
  }

 private:
  Session& session_;
  void* comm_;
  bool sends_;
  std::size_t bytes_;
  Region region_;
  void* mhandle_;
  std::array<std::vector<Part>, kSlotsInUse> parts_;
  std::array<void*, kSlotsInUse> requests_{};
  std::array<int, 64> sizes_{};
  std::size_t posted_ = 0;
  std::size_t done_ = 0;
};

std::size_t ping_pongs(std::size_t bytes) {
  return std::clamp<std::size_t>((std::size_t{16} << 20) / (bytes + 1), 10, 400);
}
std::size_t messages(std::size_t bytes) {
  return std::clamp<std::size_t>((std::size_t{64} << 20) / (bytes + 1), 2 * kSlotsInUse, 2000);
}

// The measurement before has left the slots in the caches of the core that copied, which may be
// another core than now. So each measurement begins with one uncounted message in each slot.

// Half of a round trip in seconds, the mean of many.
double ping_pong(Session& session, Lane& out, Lane& in, std::size_t bytes) {
  const std::size_t count = kSlotsInUse + ping_pongs(bytes);
  const auto until = [&](auto&& ready) { session.wait("a measured ping-pong completes", ready); };
  // A receive is there before its message comes, if the plugin takes it so early.
  in.post();
  session.meet();
  double begin = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i == kSlotsInUse) begin = now();
    const auto send = [&] {
      until([&] {
        if (out.pending() > 0) out.test();
        return out.pending() < kSlotsInUse && out.post();
      });
    };
    const auto receive = [&] {
      until([&] {
        if (out.pending() > 0) out.test();
        return (in.pending() > 0 || in.post()) && in.test();
      });
      if (i + 1 < count) in.post();
    };
    if (session.sender()) {
      send();
      receive();
    } else {
      receive();
      send();
    }
  }
  const double seconds = (now() - begin) / static_cast<double>(count - kSlotsInUse) / 2;
  until([&] { return out.pending() == 0 || (out.test() && out.pending() == 0); });
  session.meet();
  return seconds;
}

// Bytes per second of a stream with NCCL's number of messages in flight, seen by the receiver.
double stream(Session& session, Lane& lane, std::size_t bytes) {
  const std::size_t count = messages(bytes);
  std::size_t posted = 0;
  const std::size_t first = lane.done() + kSlotsInUse;
  const std::size_t goal = first + count;
  double begin = 0;
  session.meet();
  session.wait("measured messages complete", [&] {
    while (posted < kSlotsInUse + count && lane.pending() < kSlotsInUse && lane.post()) ++posted;
    while (lane.test()) {
      if (lane.done() == first) begin = now();
    }
    return lane.done() == goal;
  });
  const double seconds = now() - begin;
  session.meet();
  return static_cast<double>(count * bytes) / seconds;
}

// Bytes per second of `copy` from a slot of the other process to one of this.
double copies(std::size_t bytes, const std::function<bool(std::size_t slot)>& copy) {
  const std::size_t count = messages(bytes);
  double begin = 0;
  for (std::size_t i = 0; i < kSlotsInUse + count; ++i) {
    if (i == kSlotsInUse) begin = now();
    if (!copy(i % kSlotsInUse)) return 0;
  }
  return static_cast<double>(count * bytes) / (now() - begin);
}

struct Remote {
  pid_t pid;
  std::byte* data;
};

void measure_size(Session& session, const Comms& comms, std::size_t bytes, std::size_t index,
                  std::byte* shared, int gpu) {
  Lane out(session, comms.sends[0], true, bytes, gpu);
  Lane in(session, comms.receives[0], false, bytes, gpu);
  // Where the other process has its slots, for copies that need no plugin.
  const Remote own{getpid(), out.region().data()};
  session.tell(std::as_bytes(std::span(&own, 1)));
  if (shared != nullptr && session.sender()) {
    std::memcpy(shared, out.region().data(), kSlotsInUse * bytes);
  }
  session.meet();
  Remote remote{};
  std::memcpy(&remote, session.heard(sizeof remote).data(), sizeof remote);
  session.meet();

  std::vector<double> latencies;
  std::vector<double> bandwidths;
  std::vector<double> memcpys;
  std::vector<double> kernel_copies;
  for (int round = -1; round < kMeasuredRounds; ++round) {  // the first warms up
    const double latency = ping_pong(session, out, in, bytes);
    const double bandwidth = stream(session, session.sender() ? out : in, bytes);
    double by_memcpy = 0;
    double by_kernel = 0;
    if (shared != nullptr && session.receiver()) {
      std::byte* to = in.region().data();
      by_memcpy = copies(bytes, [&](std::size_t slot) {
        std::memcpy(to + slot * bytes, shared + slot * bytes, bytes);
        // So that the copy is made.
        asm volatile("" : : "r"(to) : "memory");
        return true;
      });
      by_kernel = copies(bytes, [&](std::size_t slot) {
        const iovec local{to + slot * bytes, bytes};
        const iovec there{remote.data + slot * bytes, bytes};
        return process_vm_readv(remote.pid, &local, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
      });
    }
    if (round < 0) continue;
    latencies.push_back(latency);
    bandwidths.push_back(bandwidth);
    memcpys.push_back(by_memcpy);
    kernel_copies.push_back(by_kernel);
  }
  if (session.receiver()) {
    // The copies wrote the same bytes: only the plugin's last stream is checked.
    in.region().blank(0, in.region().bytes());
  }
  stream(session, session.sender() ? out : in, bytes);
  if (session.receiver()) in.check();
  double* numbers = session.own().numbers.data() + index * kNumbers;
  numbers[kLatencyMin] = *std::min_element(latencies.begin(), latencies.end());
  numbers[kLatencyMedian] = median(latencies);
  numbers[kBandwidthMedian] = median(bandwidths);
  numbers[kBandwidthMax] = *std::max_element(bandwidths.begin(), bandwidths.end());
  numbers[kMemcpyMedian] = median(memcpys);
  numbers[kMemcpyMax] = *std::max_element(memcpys.begin(), memcpys.end());
  numbers[kKernelMedian] = median(kernel_copies);
  numbers[kKernelMax] = *std::max_element(kernel_copies.begin(), kernel_copies.end());
  session.meet();
}

void measure_all(Session& session, const std::vector<std::size_t>& sizes, std::byte* shared,
                 int gpu) {
  const Comms comms = connect_processes(session, 1, 1);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    measure_size(session, comms, sizes[i], i, shared, gpu);
  }
  meet_and_close(session, comms);
}

}  // namespace

void measure(Session& session, const std::vector<std::size_t>& sizes, std::byte* shared) {
  session.start();
  measure_all(session, sizes, shared, -1);
}

void measure_gpu(Session& session, const std::vector<std::size_t>& sizes) {
  const int gpu = start_with_gpu(session);
  measure_all(session, sizes, nullptr, gpu);
}

std::size_t shared_bytes(const std::vector<std::size_t>& sizes) {
  return kSlotsInUse * *std::max_element(sizes.begin(), sizes.end());
}

nlohmann::json measured(const ProcessPage& page, const std::vector<std::size_t>& sizes) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const double* numbers = page.numbers.data() + i * kNumbers;
    const auto rate = [&](Number middle, Number most) -> nlohmann::json {
      if (numbers[middle] <= 0) return nullptr;
      return {{"median", numbers[middle] / 1e9}, {"max", numbers[most] / 1e9}};
    };
    const auto ratio = [&](Number to) -> nlohmann::json {
      if (numbers[to] <= 0) return nullptr;
      return numbers[kBandwidthMedian] / numbers[to];
    };
    rows.push_back(
        {{"bytes", sizes[i]},
         {"latency_us",
          {{"min", numbers[kLatencyMin] * 1e6}, {"median", numbers[kLatencyMedian] * 1e6}}},
         {"bandwidth", rate(kBandwidthMedian, kBandwidthMax)},
         {"memcpy", rate(kMemcpyMedian, kMemcpyMax)},
         {"kernel_copy", rate(kKernelMedian, kKernelMax)},
         {"of_memcpy", ratio(kMemcpyMedian)},
         {"of_kernel_copy", ratio(kKernelMedian)}});
  }
  return rows;
}

}  // namespace ropewalk::check_plugin
