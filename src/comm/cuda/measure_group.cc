// Times a few operations of a communicator that has just been made, for the cost model.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <vector>

#include "comm/call_pipeline.h"
#include "comm/cuda/cuda_group.h"
#include "core/log.h"
#include "executor/cuda/captured_graph.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/owned.h"
#include "tune/device_constants.h"
#include "tune/machine_constants.h"
#include "tune/tuning_store.h"

namespace ropewalk::comm {
namespace {

using executor::kNumProtocols;
using executor::Protocol;

// Operations in a graph, and its launches that are timed.
constexpr int kOperations = 20;
constexpr int kLaunches = 3;
// Numbers that the communicator's own calls reach last.
constexpr std::uint32_t kFirstCall = 0x80000000;

std::string name_of(int device, int ranks, const link::PeerAccess& access) {
  cudaDeviceProp properties{};
  executor::check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return fmt::format("{}/{} x {}{}", tune::machine_name(), properties.name, ranks,
                     !access.any()              ? ", no peer access"
                     : access.missing().empty() ? ""
                                                : ", some peer access");
}

}  // namespace

// Every rank calls with the same; each has its own time.
double CudaGroup::seconds_of(const Config& config, Collective collective, std::size_t unit_bytes,
                             std::byte* buffer, cudaStream_t stream) {
  CallPipeline calls(tuner(config, nullptr, nullptr), *this, rank_, size_);
  CollectiveCall call;
  call.collective = collective;
  call.type = DataType::kFloat32;
  call.count = unit_bytes / sizeof(float);
  call.input = buffer;
  call.output = buffer + tune::DeviceTimes::kLinkBytes;
  executor::CallTag tag;
  tag.count = call.count;
  tag.collective = static_cast<std::uint8_t>(collective);
  const auto enqueue = [&] {
    tag.call = kFirstCall + measured_calls_;
    run(calls.get(call, measured_calls_++), call, false, tag, stream);
  };
  enqueue();
  executor::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize (measuring)");
  executor::CapturedGraph graph(stream);
  graph.begin();
  for (int i = 0; i < kOperations; ++i) enqueue();
  graph.end();
  graph.load();
  graph.launch();
  executor::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize (measuring)");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kLaunches; ++i) graph.launch();
  executor::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize (measuring)");
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  return passed.count() / (kLaunches * kOperations);
}

tune::DeviceTimes CudaGroup::measure(const Config& config) {
  link::DeviceMemory buffer(static_cast<std::size_t>(size_ + 1) * tune::DeviceTimes::kLinkBytes);
  const executor::Stream stream;
  const auto time = [&](Protocol protocol, const char* channels, Collective collective,
                        std::size_t bytes) {
    Config forced = config;
    forced.set("ALGORITHM", "ring", "measuring");
    forced.set("PROTOCOL", executor::name(protocol), "measuring");
    forced.set("CHANNELS", channels, "measuring");
    return seconds_of(forced, collective, bytes, buffer.data(), stream.get());
  };
  tune::DeviceTimes times;
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    const auto p = static_cast<std::size_t>(protocol);
    if (limits_.slot_bytes[p] == 0) continue;
    times.gather[p] = time(protocol, "1", Collective::kAllGather, tune::DeviceTimes::kShortBytes);
    times.reduce[p] = time(protocol, "1", Collective::kAllReduce, tune::DeviceTimes::kShortBytes);
    times.block[p] = time(protocol, "1", Collective::kAllGather, tune::DeviceTimes::kBlockBytes[p]);
  }
  times.link = time(Protocol::kSimple, "0", Collective::kAllGather, tune::DeviceTimes::kLinkBytes);
  if (peers_->has_hybrid_windows() && limits_.hybrid_channels > 0) {
    facts_.hybrid.channels = limits_.hybrid_channels;
    facts_.hybrid.host_alone = true;
    Config alone = config;
    alone.set("HYBRID", "on", "measuring");
    alone.set("ALGORITHM", "ring", "measuring");
    const auto time_alone = [&](Collective collective) {
      return seconds_of(alone, collective, tune::DeviceTimes::kLinkBytes, buffer.data(),
                        stream.get());
    };
    times.hybrid = time_alone(Collective::kAllGather);
    times.hybrid_one_way = time_alone(Collective::kBroadcast);
    facts_.hybrid = {};
  }
  order_->forget();  // the graphs are gone
  return times;
}

tune::DeviceConstants CudaGroup::constants(bootstrap::Bootstrap& bootstrap, const Config& config) {
  const link::PeerAccess& access = peers_->access();
  const bool far = mapped_ != nullptr;  // through the host's memory, too
  const bool some_miss = access.any() && (!access.missing().empty() || far);
  const tune::DeviceBase base =
      tune::device_base(access.any() || (access.missing().empty() && !far));
  constants_ = base.constants;
  if (network_ != nullptr) {
    // What rails carry was measured while joining; without several, nothing was.
    const double rails = std::accumulate(facts_.rail_rates.begin(), facts_.rail_rates.end(), 0.0);
    if (rails > 0) {
      constants_.network_rate = constants_.network_one_way_rate = rails;
      constants_.network_link_rate = rails;  // its channels take all rails
    }
    return constants_;
  }
  if (size_ < 2 || !config.flag(Setting::kTune)) return base.constants;
  // What is measured is a ring: where none avoids the pairs without access, the built-in constants
  // of each kind of link hold.
  if (some_miss && tune::slow_neighbours(facts_.host_path_pairs, size_, facts_.ring_order) > 0) {
    return base.constants;
  }
  const Deadline deadline = deadline_of(config);
  const std::string file = tune::tuning_file(config);
  // The first rank's word holds for all: ranks that choose differently do not understand each
  // other.
  struct Known {
    bool known = false;
    tune::DeviceConstants constants;
  } known;
  std::string name;
  if (rank_ == 0) {
    name = name_of(device_, size_, access);
    if (far) name += fmt::format(", hosts joined by windows over {}", mapped_->windows().name());
    const auto kept = tune::kept_device_constants(file, name);
    if (kept && (kept->hybrid_rate > 0 || limits_.hybrid_channels == 0)) known = {true, *kept};
  }
  bootstrap.broadcast(std::as_writable_bytes(std::span(&known, 1)), 0, deadline);
  if (known.known) return known.constants;
  std::vector<tune::DeviceTimes> all(static_cast<std::size_t>(size_));
  all[static_cast<std::size_t>(rank_)] = measure(config);
  bootstrap.all_gather(std::as_writable_bytes(std::span(all)), sizeof(tune::DeviceTimes), deadline);
  tune::DeviceTimes slowest = all[0];
  const auto slower = [](double& mine, double other) { mine = std::max(mine, other); };
  for (const tune::DeviceTimes& each : all) {
    for (std::size_t p = 0; p < kNumProtocols; ++p) {
      slower(slowest.gather[p], each.gather[p]);
      slower(slowest.reduce[p], each.reduce[p]);
      slower(slowest.block[p], each.block[p]);
    }
    slower(slowest.link, each.link);
    slower(slowest.hybrid, each.hybrid);
    slower(slowest.hybrid_one_way, each.hybrid_one_way);
  }
  const tune::DeviceConstants result = tune::scaled(base, slowest, size_);
  if (rank_ == 0) {
    tune::write_tuning(file, name, to_json(result));
    log::info(log::kTuning, "measured the GPUs' constants into {}: {}", file, describe(slowest));
  }
  return result;
}

}  // namespace ropewalk::comm
