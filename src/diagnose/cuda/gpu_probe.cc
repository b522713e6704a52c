// GPUs with the host and with each other.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "comm/device_group.h"
#include "core/error.h"
#include "core/units.h"
#include "diagnose/cuda/probe_kernels.h"
#include "diagnose/probe/probe.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/owned.h"
#include "link/cuda/device_window.h"

namespace ropewalk::diagnose::probe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBytes = std::size_t{64} << 20;
constexpr int kCopies = 10;
constexpr std::uint64_t kKernelLimit = 3'000'000'000;  // nanoseconds
constexpr std::chrono::seconds kHostLimit{5};

constexpr const char* kMovesNothing =
    "transfers between devices are redirected and lost: PCIe access control services (ACS) or the "
    "IOMMU; on bare metal switch ACS off on the bridges above the GPUs or boot with iommu=pt, in a "
    "virtual machine let the host do so";
constexpr const char* kNoOrder =
    "stores of one device reach the other late, out of order or not at all, though copies may "
    "work: "
    "ACS or IOMMU settings, or a bridge that does not keep the order of writes";

// One GPU's resources for its checks; created and destroyed with the GPU current.
class Gpu {
 public:
  explicit Gpu(int device) : device_(device), current_(device) {
    source_ = link::DeviceMemory(kBytes);
    target_ = link::DeviceMemory(kBytes);
    inbox_ = link::DeviceMemory(sizeof(Inbox));
    stream_ = std::make_unique<executor::Stream>();
    begin_ = std::make_unique<executor::Event>();
    end_ = std::make_unique<executor::Event>();
    current_.reset();
  }
  ~Gpu() {
    cudaSetDevice(device_);
    end_.reset();
    begin_.reset();
    stream_.reset();
    source_ = {};
    target_ = {};
    inbox_ = {};
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] std::byte* source() const noexcept { return source_.data(); }
  [[nodiscard]] std::byte* target() const noexcept { return target_.data(); }
  [[nodiscard]] Inbox* inbox() const noexcept { return reinterpret_cast<Inbox*>(inbox_.data()); }
  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_->get(); }
  [[nodiscard]] cudaEvent_t begin() const noexcept { return begin_->get(); }
  [[nodiscard]] cudaEvent_t end() const noexcept { return end_->get(); }

 private:
  // Current while the members are made, and then no more.
  struct Current {
    explicit Current(int device) : held(std::make_unique<executor::CurrentDevice>(device)) {}
    void reset() { held.reset(); }
    std::unique_ptr<executor::CurrentDevice> held;
  };
  int device_;
  Current current_;
  link::DeviceMemory source_;
  link::DeviceMemory target_;
  link::DeviceMemory inbox_;
  std::unique_ptr<executor::Stream> stream_;
  std::unique_ptr<executor::Event> begin_;
  std::unique_ptr<executor::Event> end_;
};

std::vector<std::uint32_t> pattern(std::uint32_t seed) {
  std::vector<std::uint32_t> words(kBytes / sizeof(std::uint32_t));
  for (std::uint32_t i = 0; i < words.size(); ++i) words[i] = exchange_word(seed, i >> 12, i);
  return words;
}

// Waits for a stream, but not for ever: a hung GPU must not hold the report.
void wait_for(cudaStream_t stream, const char* tried) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) {
      executor::check_cuda(state, fmt::format("cudaStreamQuery ({})", tried).c_str());
    }
    if (Clock::now() - begin > 2 * kHostLimit)
      throw Error(Errc::kTimeout, "{}: not in 10 s", tried);
  }
}

// Fills `to` by `copy`, compares it with the source, and times further copies.
//
// `read` copies the received data to the host by a different method from the one under test.
template <typename Copy>
Check copies(const std::string& what, const Gpu& timed, const std::vector<std::uint32_t>& sent,
             Copy&& copy, const std::function<void(std::uint32_t*)>& read) {
  Check check{.what = what};
  try {
    const executor::CurrentDevice current(timed.device());
    copy(timed.stream());
    wait_for(timed.stream(), "copying");
    std::vector<std::uint32_t> came(sent.size());
    read(came.data());
    if (came != sent) {
      const auto wrong = std::inner_product(sent.begin(), sent.end(), came.begin(), std::size_t{0},
                                            std::plus<>{}, [](std::uint32_t a, std::uint32_t b) {
                                              return a == b ? std::size_t{0} : std::size_t{1};
                                            });
      check.outcome = Outcome::kFailed;
      check.found = fmt::format("a copy of {} reports success, but {} of {} words are wrong",
                                format_bytes(kBytes), wrong, sent.size());
      check.cause = kMovesNothing;
      return check;
    }
    executor::check_cuda(cudaEventRecord(timed.begin(), timed.stream()), "cudaEventRecord");
    for (int i = 0; i < kCopies; ++i) copy(timed.stream());
    executor::check_cuda(cudaEventRecord(timed.end(), timed.stream()), "cudaEventRecord");
    wait_for(timed.stream(), "copying");
    float milliseconds = 0;
    executor::check_cuda(cudaEventElapsedTime(&milliseconds, timed.begin(), timed.end()),
                         "cudaEventElapsedTime");
    check.gbps = static_cast<double>(kBytes) * kCopies / milliseconds / 1e6;
    check.found = fmt::format("{} arrived as they were", format_bytes(kBytes));
  } catch (const Error& error) {
    check.outcome = Outcome::kFailed;
    check.found = error.what();
    check.cause = "the driver's log (dmesg, Xid messages) says more";
  }
  return check;
}

void fill(const Gpu& gpu, const std::vector<std::uint32_t>& words) {
  const executor::CurrentDevice current(gpu.device());
  executor::check_cuda(cudaMemcpy(gpu.source(), words.data(), kBytes, cudaMemcpyHostToDevice),
                       "cudaMemcpy");
  executor::check_cuda(cudaMemset(gpu.target(), 0, kBytes), "cudaMemset");
  executor::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void read_target(const Gpu& gpu, std::uint32_t* to) {
  const executor::CurrentDevice current(gpu.device());
  executor::check_cuda(cudaMemcpy(to, gpu.target(), kBytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void clear_inbox(const Gpu& gpu) {
  const executor::CurrentDevice current(gpu.device());
  executor::check_cuda(cudaMemset(gpu.inbox(), 0, sizeof(Inbox)), "cudaMemset");
  executor::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

// Loads the kernel on a GPU: loading at the first use may wait for running kernels.
void load_kernel(const Gpu& gpu, ExchangeResult* result) {
  const executor::CurrentDevice current(gpu.device());
  executor::check_cuda(launch_exchange(gpu.inbox(), gpu.inbox(), 0, 0, 0, 0, result, gpu.stream()),
                       "kernel launch");
  wait_for(gpu.stream(), "a kernel");
}

void judge(Check& check, const ExchangeResult& result, const char* who) {
  if (check.outcome == Outcome::kFailed) return;
  if (result.timed_out == 0 && result.wrong == 0 && result.rounds == kExchangeRounds) return;
  check.outcome = Outcome::kFailed;
  check.found =
      result.timed_out != 0
          ? fmt::format("{}: no flag in 3 s after {} rounds", who, result.rounds)
          : fmt::format("{}: {} words were not there when their flag was", who, result.wrong);
  check.cause = kNoOrder;
}

// Kernels on both GPUs, each writing the other's inbox, wherever the inboxes are.
Check kernels(const std::string& what, const Gpu& first, const Gpu& second, Inbox* first_inbox,
              Inbox* second_inbox) {
  Check check{.what = what};
  try {
    const executor::PinnedBuffer memory(2 * sizeof(ExchangeResult));
    auto* results = new (memory.data()) ExchangeResult[2]{};
    load_kernel(first, &results[0]);
    load_kernel(second, &results[1]);
    results[0] = {};
    results[1] = {};
    {
      const executor::CurrentDevice current(first.device());
      executor::check_cuda(launch_exchange(first_inbox, second_inbox, 0, 1, kExchangeRounds,
                                           kKernelLimit, &results[0], first.stream()),
                           "kernel launch");
    }
    {
      const executor::CurrentDevice current(second.device());
      executor::check_cuda(launch_exchange(second_inbox, first_inbox, 1, 0, kExchangeRounds,
                                           kKernelLimit, &results[1], second.stream()),
                           "kernel launch");
    }
    wait_for(first.stream(), "a kernel that exchanges flags");
    wait_for(second.stream(), "a kernel that exchanges flags");
    judge(check, results[0], fmt::format("GPU {}", first.device()).c_str());
    judge(check, results[1], fmt::format("GPU {}", second.device()).c_str());
    if (check.outcome == Outcome::kPassed) {
      check.latency_us = static_cast<double>(results[0].nanoseconds) / (kExchangeRounds - 1) / 1000;
      check.found = fmt::format("{} rounds of {} and a flag in each direction", kExchangeRounds,
                                format_bytes(kExchangeWords * sizeof(std::uint32_t)));
    }
  } catch (const Error& error) {
    check.outcome = Outcome::kFailed;
    check.found = error.what();
    check.cause = "the driver's log (dmesg, Xid messages) says more";
  }
  return check;
}

// The host plays the other end, with both inboxes in memory of the host.
Check kernel_and_host(const Gpu& gpu) {
  Check check{.what = "flags and data between a kernel and the host"};
  try {
    const executor::PinnedBuffer memory(2 * sizeof(Inbox) + sizeof(ExchangeResult));
    auto* inboxes = new (memory.data()) Inbox[2]{};
    auto* result = new (inboxes + 2) ExchangeResult{};
    load_kernel(gpu, result);
    *result = {};
    Inbox& to_gpu = inboxes[0];
    Inbox& to_host = inboxes[1];
    const executor::CurrentDevice current(gpu.device());
    executor::check_cuda(launch_exchange(&to_gpu, &to_host, 0, 1, kExchangeRounds, kKernelLimit,
                                         result, gpu.stream()),
                         "kernel launch");
    std::size_t wrong = 0;
    const Clock::time_point begin = Clock::now();
    for (std::uint32_t round = 1; round <= kExchangeRounds; ++round) {
      for (std::uint32_t i = 0; i < kExchangeWords; ++i) {
        to_gpu.data[round % 2][i] = exchange_word(1, round, i);
      }
      std::atomic_ref(to_gpu.flag).store(round, std::memory_order_release);
      while (std::atomic_ref(to_host.flag).load(std::memory_order_acquire) < round) {
        if (Clock::now() - begin > kHostLimit) {
          throw Error(Errc::kTimeout, "the kernel's flag of round {} did not come in 5 s", round);
        }
      }
      for (std::uint32_t i = 0; i < kExchangeWords; ++i) {
        const std::uint32_t word =
            std::atomic_ref(to_host.data[round % 2][i]).load(std::memory_order_relaxed);
        wrong += word == exchange_word(0, round, i) ? 0 : 1;
      }
    }
    wait_for(gpu.stream(), "a kernel that exchanges flags");
    judge(check, *result, "the kernel");
    if (wrong != 0 && check.outcome == Outcome::kPassed) {
      check.outcome = Outcome::kFailed;
      check.found = fmt::format("the host: {} words were not there when their flag was", wrong);
      check.cause = kNoOrder;
    }
    if (check.outcome == Outcome::kPassed) {
      check.latency_us = static_cast<double>(result->nanoseconds) / (kExchangeRounds - 1) / 1000;
      check.found = fmt::format("{} rounds of {} and a flag in each direction", kExchangeRounds,
                                format_bytes(kExchangeWords * sizeof(std::uint32_t)));
    }
  } catch (const Error& error) {
    check.outcome = Outcome::kFailed;
    check.found = error.what();
    check.cause = kNoOrder;
  }
  return check;
}

void need_device(int device) {
  if (const std::string reason = comm::why_no_device(); !reason.empty()) {
    throw Error(Errc::kInvalidUsage, reason);
  }
  if (const int count = comm::device_count(); device < 0 || device >= count) {
    throw Error(Errc::kInvalidArgument, "devices: {} is not one of the {} GPUs", device, count);
  }
}

// Lets `from` reach the memory of `to`.
// @return the reason when it cannot
std::string open_peer(int from, int to) {
  int can = 0;
  executor::check_cuda(cudaDeviceCanAccessPeer(&can, from, to), "cudaDeviceCanAccessPeer");
  if (can == 0) return fmt::format("GPU {} cannot reach the memory of GPU {}", from, to);
  const executor::CurrentDevice current(from);
  const cudaError_t result = cudaDeviceEnablePeerAccess(to, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
  } else if (result != cudaSuccess) {
    cudaGetLastError();
    return fmt::format("GPU {} to GPU {}: {}", from, to, cudaGetErrorString(result));
  }
  return {};
}

Check peer_access(int first, int second) {
  Check check{.what = "peer access"};
  for (const auto& [from, to] : {std::pair{first, second}, std::pair{second, first}}) {
    if (const std::string reason = open_peer(from, to); !reason.empty()) {
      check.outcome = Outcome::kDegraded;
      check.found = reason + "; data goes through the host";
      check.cause =
          "no NVLink and different PCIe root ports, MIG, a virtual machine, or a driver "
          "setting; nvidia-smi topo -p2p r says which pairs can";
      return check;
    }
  }
  check.found = "both directions";
  return check;
}

Check through_host(const Gpu& from, const Gpu& to, const std::vector<std::uint32_t>& sent,
                   const executor::PinnedBuffer& stage) {
  return copies(
      fmt::format("GPU {} to host to GPU {}", from.device(), to.device()), to, sent,
      [&](cudaStream_t stream) {
        executor::check_cuda(
            cudaMemcpyAsync(stage.data(), from.source(), kBytes, cudaMemcpyDefault, stream),
            "cudaMemcpyAsync (to the host)");
        executor::check_cuda(
            cudaMemcpyAsync(to.target(), stage.data(), kBytes, cudaMemcpyDefault, stream),
            "cudaMemcpyAsync (from the host)");
      },
      [&](std::uint32_t* came) { read_target(to, came); });
}

}  // namespace

Checks gpu(int device) {
  need_device(device);
  const Gpu tried(device);
  Checks checks;
  const std::vector<std::uint32_t> sent = pattern(static_cast<std::uint32_t>(device) + 7);
  const executor::PinnedBuffer host(kBytes);
  fill(tried, sent);
  std::memcpy(host.data(), sent.data(), kBytes);
  // Each copy is read back by the other method, so that a copy that does nothing is detected.
  checks.push_back(copies(
      "host to GPU", tried, sent,
      [&](cudaStream_t stream) {
        executor::check_cuda(
            cudaMemcpyAsync(tried.target(), host.data(), kBytes, cudaMemcpyDefault, stream),
            "cudaMemcpyAsync (from the host)");
      },
      [&](std::uint32_t* came) { read_target(tried, came); }));
  std::memset(host.data(), 0, kBytes);
  checks.push_back(copies(
      "GPU to host", tried, sent,
      [&](cudaStream_t stream) {
        executor::check_cuda(
            cudaMemcpyAsync(host.data(), tried.source(), kBytes, cudaMemcpyDefault, stream),
            "cudaMemcpyAsync (to the host)");
      },
      [&](std::uint32_t* came) { std::memcpy(came, host.data(), kBytes); }));
  checks.push_back(kernel_and_host(tried));
  return checks;
}

Checks gpu_pair(int first, int second) {
  need_device(first);
  need_device(second);
  if (first == second) {
    throw Error(Errc::kInvalidArgument, "devices: {} and {} are the same GPU", first, second);
  }
  Checks checks = {peer_access(first, second)};
  const bool reaches = checks.front().outcome == Outcome::kPassed;
  const Gpu a(first);
  const Gpu b(second);
  const std::vector<std::uint32_t> from_a = pattern(static_cast<std::uint32_t>(first) + 100);
  const std::vector<std::uint32_t> from_b = pattern(static_cast<std::uint32_t>(second) + 100);
  fill(a, from_a);
  fill(b, from_b);
  for (const bool forward : {true, false}) {
    const Gpu& from = forward ? a : b;
    const Gpu& to = forward ? b : a;
    checks.push_back(copies(
        fmt::format("copy from GPU {} to GPU {}", from.device(), to.device()), from,
        forward ? from_a : from_b,
        [&](cudaStream_t stream) {
          executor::check_cuda(cudaMemcpyPeerAsync(to.target(), to.device(), from.source(),
                                                   from.device(), kBytes, stream),
                               "cudaMemcpyPeerAsync (between GPUs)");
        },
        [&](std::uint32_t* came) { read_target(to, came); }));
  }
  if (reaches) {
    clear_inbox(a);
    clear_inbox(b);
    checks.push_back(kernels("kernels that exchange flags and data", a, b, a.inbox(), b.inbox()));
  } else {
    checks.push_back({.what = "kernels that exchange flags and data",
                      .outcome = Outcome::kSkipped,
                      .found = "no peer access"});
  }
  fill(a, from_a);
  fill(b, from_b);
  const executor::PinnedBuffer stage(kBytes);
  checks.push_back(through_host(a, b, from_a, stage));
  checks.push_back(through_host(b, a, from_b, stage));
  const executor::PinnedBuffer inboxes(2 * sizeof(Inbox));
  auto* in_host = new (inboxes.data()) Inbox[2]{};
  checks.push_back(kernels("kernels that exchange flags and data through the host", a, b,
                           &in_host[0], &in_host[1]));
  return checks;
}

}  // namespace ropewalk::diagnose::probe
