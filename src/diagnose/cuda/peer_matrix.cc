#include "diagnose/peer_matrix.h"

#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "comm/device_group.h"
#include "diagnose/cuda/peer_kernels.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/owned.h"
#include "link/cuda/device_window.h"

namespace ropewalk::diagnose {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLargestBytes = std::size_t{4} << 30;
constexpr int kMostRepetitions = 1000;
constexpr std::size_t kWord = 16;  // of a copy whose latency is asked for
constexpr int kLatencyCopies = 100;
// Of the chain that a kernel follows: steps of 4 KiB, so that no cache line is met twice.
constexpr std::uint32_t kStride = 1024;
constexpr std::uint32_t kChainEntries = 512;
constexpr int kHops = 2000;

// One GPU's resources. Created and destroyed with the GPU current.
struct Gpu {
  explicit Gpu(int number, std::size_t bytes)
      : device(number),
        source(bytes),
        target(bytes),
        chain(sizeof(std::uint32_t) * kStride * kChainEntries),
        end(sizeof(std::uint32_t)) {
    std::vector<std::uint32_t> entries(std::size_t{kStride} * kChainEntries);
    // An odd step visits all entries of a power of two; a large one defeats the prefetcher.
    for (std::uint32_t i = 0; i < kChainEntries; ++i) {
      entries[std::size_t{i} * kStride] = (i + 211) % kChainEntries * kStride;
    }
    executor::check_cuda(
        cudaMemcpy(chain.data(), entries.data(), chain.bytes(), cudaMemcpyHostToDevice),
        "cudaMemcpy");
    executor::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  int device;
  link::DeviceMemory source;
  link::DeviceMemory target;
  link::DeviceMemory chain;
  link::DeviceMemory end;
  executor::Stream stream;
  executor::Stream second;  // for simultaneous work
  executor::Event start;
  executor::Event second_end;
  executor::Event stop;
};

// One sequence of work on one GPU; at most two at a time.
struct Lane {
  Gpu* gpu = nullptr;
  std::function<void(cudaStream_t)> enqueue;
};

class Bench {
 public:
  explicit Bench(std::size_t bytes, int repetitions)
      : bytes_(bytes),
        repetitions_(repetitions),
        host_(2 * bytes),
        chain_(host_chain_bytes()),
        flag_(sizeof(std::uint32_t)) {
    const int count = comm::device_count();
    for (int i = 0; i < count; ++i) {
      const executor::CurrentDevice current(i);
      gpus_.push_back(std::make_unique<Gpu>(i, bytes));
    }
    auto* entries = static_cast<std::uint32_t*>(chain_.data());
    for (std::uint32_t i = 0; i < kChainEntries; ++i)
      entries[i * kStride] = (i + 211) % kChainEntries * kStride;
  }
  ~Bench() {
    for (std::unique_ptr<Gpu>& gpu : gpus_) {
      cudaSetDevice(gpu->device);
      gpu.reset();
    }
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Json run() {
    Json result = {{"bytes", bytes_}, {"repetitions", repetitions_}};
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      result["gpus"].push_back(Json::parse(comm::describe_device(static_cast<int>(i))));
      for (std::size_t j = 0; j < gpus_.size(); ++j) result["peer_access"][i][j] = can_access(i, j);
    }
    result["matrices"] = Json::array();
    for (const bool access : {false, true}) {
      set_peer_access(access);
      for (const bool both : {false, true}) {
        for (const char* by : {"copy engine", "kernel write", "kernel read"}) {
          if (!access && by != std::string_view("copy engine")) continue;
          result["matrices"].push_back(matrix("bandwidth", by, access, both));
        }
      }
      result["matrices"].push_back(matrix("latency", "copy engine", access, false));
      if (access) result["matrices"].push_back(matrix("latency", "kernel load", access, false));
    }
    set_peer_access(false);
    result["host"] = host();
    return result;
  }

 private:
  static std::size_t host_chain_bytes() { return sizeof(std::uint32_t) * kStride * kChainEntries; }

  bool can_access(std::size_t from, std::size_t to) {
    if (from == to) return true;
    int can = 0;
    executor::check_cuda(
        cudaDeviceCanAccessPeer(&can, static_cast<int>(from), static_cast<int>(to)),
        "cudaDeviceCanAccessPeer");
    return can != 0;
  }

  void set_peer_access(bool on) {
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      const executor::CurrentDevice current(static_cast<int>(i));
      for (std::size_t j = 0; j < gpus_.size(); ++j) {
        if (i == j || !can_access(i, j)) continue;
        const cudaError_t result = on ? cudaDeviceEnablePeerAccess(static_cast<int>(j), 0)
                                      : cudaDeviceDisablePeerAccess(static_cast<int>(j));
        if (result == cudaErrorPeerAccessAlreadyEnabled ||
            result == cudaErrorPeerAccessNotEnabled) {
          cudaGetLastError();
        } else {
          executor::check_cuda(result,
                               on ? "cudaDeviceEnablePeerAccess" : "cudaDeviceDisablePeerAccess");
        }
      }
    }
  }

  // Seconds from when all lanes may start to when all have ended.
  double seconds(const std::vector<Lane>& lanes) {
    run_lanes(lanes);  // allocations at the first use are not timed
    return run_lanes(lanes);
  }

  double run_lanes(const std::vector<Lane>& lanes) {
    auto* flag = static_cast<std::uint32_t*>(flag_.data());
    std::atomic_ref(*flag).store(0);
    Gpu& first = *lanes.front().gpu;
    for (std::size_t k = 0; k < lanes.size(); ++k) {
      Gpu& gpu = *lanes[k].gpu;
      const executor::CurrentDevice current(gpu.device);
      cudaStream_t stream = k == 0 ? gpu.stream.get() : gpu.second.get();
      if (k == 0) {
        executor::check_cuda(launch_hold(flag, stream), "kernel launch");
        executor::check_cuda(cudaEventRecord(gpu.start.get(), stream), "cudaEventRecord");
      } else {
        executor::check_cuda(cudaStreamWaitEvent(stream, first.start.get(), 0),
                             "cudaStreamWaitEvent");
      }
      lanes[k].enqueue(stream);
      if (k > 0) {
        executor::check_cuda(cudaEventRecord(gpu.second_end.get(), stream), "cudaEventRecord");
      }
    }
    {
      const executor::CurrentDevice current(first.device);
      for (std::size_t k = 1; k < lanes.size(); ++k) {
        executor::check_cuda(
            cudaStreamWaitEvent(first.stream.get(), lanes[k].gpu->second_end.get(), 0),
            "cudaStreamWaitEvent");
      }
      executor::check_cuda(cudaEventRecord(first.stop.get(), first.stream.get()),
                           "cudaEventRecord");
    }
    std::atomic_ref(*flag).store(1);
    const executor::CurrentDevice current(first.device);
    executor::check_cuda(cudaEventSynchronize(first.stop.get()), "cudaEventSynchronize");
    float milliseconds = 0;
    executor::check_cuda(cudaEventElapsedTime(&milliseconds, first.start.get(), first.stop.get()),
                         "cudaEventElapsedTime");
    return milliseconds / 1e3;
  }

  Lane copies(std::size_t from, std::size_t to, std::string_view by, std::size_t bytes, int times) {
    Gpu& source = *gpus_[from];
    Gpu& target = *gpus_[to];
    if (by == "copy engine") {
      return {&source, [&source, &target, bytes, times](cudaStream_t stream) {
                for (int i = 0; i < times; ++i) {
                  executor::check_cuda(
                      cudaMemcpyPeerAsync(target.target.data(), target.device, source.source.data(),
                                          source.device, bytes, stream),
                      "cudaMemcpyPeerAsync (between GPUs)");
                }
              }};
    }
    return {by == "kernel write" ? &source : &target,
            [&source, &target, bytes, times](cudaStream_t stream) {
              for (int i = 0; i < times; ++i) {
                executor::check_cuda(
                    launch_copy(target.target.data(), source.source.data(), bytes, stream),
                    "kernel launch");
              }
            }};
  }

  std::optional<double> value(std::string_view what, std::string_view by, bool access, bool both,
                              std::size_t i, std::size_t j) {
    if (access && !can_access(i, j)) return {};
    if (by == "kernel load") {
      Gpu& reader = *gpus_[i];
      const auto* chain = reinterpret_cast<const std::uint32_t*>(gpus_[j]->chain.data());
      auto* end = reinterpret_cast<std::uint32_t*>(reader.end.data());
      return seconds({{&reader,
                       [=](cudaStream_t stream) {
                         executor::check_cuda(launch_chase(chain, kHops, end, stream),
                                              "kernel launch");
                       }}}) /
             kHops * 1e6;
    }
    if (what == "latency") {
      return seconds({copies(i, j, by, kWord, kLatencyCopies)}) / kLatencyCopies * 1e6;
    }
    std::vector<Lane> lanes = {copies(i, j, by, bytes_, repetitions_)};
    double moved = static_cast<double>(bytes_) * repetitions_;
    if (both && i != j) {
      lanes.push_back(copies(j, i, by, bytes_, repetitions_));
      moved *= 2;
    } else if (both) {
      moved *= 2;  // within one GPU a copy reads and writes the same memory
    }
    return moved / seconds(lanes) / 1e9;
  }

  Json matrix(const char* what, const char* by, bool access, bool both) {
    Json values = Json::array();
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      Json row = Json::array();
      for (std::size_t j = 0; j < gpus_.size(); ++j) {
        const std::optional<double> found = value(what, by, access, both, i, j);
        row.push_back(found.has_value() ? Json(*found) : Json());
      }
      values.push_back(std::move(row));
    }
    return {{"what", what},
            {"direction", both ? "bidirectional" : "unidirectional"},
            {"by", by},
            {"peer_access", access},
            {"unit", what == std::string_view("latency") ? "us" : "GB/s"},
            {"values", std::move(values)}};
  }

  // Between a GPU and pinned memory of the host. Reading and writing at once takes two streams.
  Lane host_copies(std::size_t i, bool to_gpu, bool by_kernel, std::size_t bytes, int times) {
    Gpu& gpu = *gpus_[i];
    auto* host = static_cast<std::byte*>(host_.data()) + (to_gpu ? 0 : bytes_);
    void* to = to_gpu ? static_cast<void*>(gpu.target.data()) : host;
    const void* from = to_gpu ? static_cast<const void*>(host) : gpu.source.data();
    return {&gpu, [=](cudaStream_t stream) {
              for (int n = 0; n < times; ++n) {
                executor::check_cuda(
                    by_kernel ? launch_copy(to, from, bytes, stream)
                              : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream),
                    by_kernel ? "kernel launch (a copy)" : "cudaMemcpyAsync");
              }
            }};
  }

  Json host() {
    Json rows = Json::array();
    const auto add = [&](const char* what, const char* direction, const char* by, auto&& measure) {
      Json values = Json::array();
      for (std::size_t i = 0; i < gpus_.size(); ++i) values.push_back(measure(i));
      rows.push_back({{"what", what},
                      {"direction", direction},
                      {"by", by},
                      {"unit", what == std::string_view("latency") ? "us" : "GB/s"},
                      {"values", std::move(values)}});
    };
    const double moved = static_cast<double>(bytes_) * repetitions_ / 1e9;
    for (const bool by_kernel : {false, true}) {
      const char* by = by_kernel ? "kernel" : "copy engine";
      for (const bool to_gpu : {true, false}) {
        add("bandwidth", to_gpu ? "host to GPU" : "GPU to host", by, [&](std::size_t i) {
          return moved / seconds({host_copies(i, to_gpu, by_kernel, bytes_, repetitions_)});
        });
      }
      add("bandwidth", "both ways", by, [&](std::size_t i) {
        return 2 * moved /
               seconds({host_copies(i, true, by_kernel, bytes_, repetitions_),
                        host_copies(i, false, by_kernel, bytes_, repetitions_)});
      });
    }
    for (const bool to_gpu : {true, false}) {
      add("latency", to_gpu ? "host to GPU" : "GPU to host", "copy engine", [&](std::size_t i) {
        return seconds({host_copies(i, to_gpu, false, kWord, kLatencyCopies)}) / kLatencyCopies *
               1e6;
      });
    }
    add("latency", "host to GPU", "kernel load", [&](std::size_t i) {
      Gpu& gpu = *gpus_[i];
      const auto* chain = static_cast<const std::uint32_t*>(chain_.data());
      auto* end = reinterpret_cast<std::uint32_t*>(gpu.end.data());
      return seconds({{&gpu,
                       [=](cudaStream_t stream) {
                         executor::check_cuda(launch_chase(chain, kHops, end, stream),
                                              "kernel launch");
                       }}}) /
             kHops * 1e6;
    });
    return rows;
  }

  std::size_t bytes_;
  int repetitions_;
  executor::PinnedBuffer host_;
  executor::PinnedBuffer chain_;
  executor::PinnedBuffer flag_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
};

}  // namespace

std::string measure_peers(std::size_t bytes, int repetitions) {
  if (const std::string reason = comm::why_no_device(); !reason.empty()) {
    throw Error(Errc::kInvalidUsage, reason);
  }
  if (bytes == 0 || bytes % kWord != 0 || bytes > kLargestBytes) {
    throw Error(Errc::kInvalidArgument, "bytes: {} is not a multiple of {} up to {}", bytes, kWord,
                kLargestBytes);
  }
  if (repetitions < 1 || repetitions > kMostRepetitions) {
    throw Error(Errc::kInvalidArgument, "repetitions: {} is outside 1 to {}", repetitions,
                kMostRepetitions);
  }
  return Bench(bytes, repetitions).run().dump();
}

}  // namespace ropewalk::diagnose
