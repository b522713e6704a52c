// DeviceGroup by CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/cuda/copy_engines.h"
#include "comm/cuda/prepared_launch.h"
#include "comm/device_group.h"
#include "comm/hybrid_timer.h"
#include "executor/block/launch.h"
#include "executor/cuda/gpu_clock.h"
#include "executor/cuda/owned.h"
#include "executor/cuda/stream_order.h"
#include "executor/traffic.h"
#include "link/cuda/device_blocks.h"
#include "link/cuda/device_links.h"
#include "link/cuda/device_mapped_windows.h"
#include "link/cuda/device_network.h"
#include "link/cuda/device_peers.h"
#include "link/registered_buffers.h"
#include "transport/window/device/gpu.h"
#include "tune/device_constants.h"
#include "tune/device_pricing.h"
#include "tune/ring_search.h"

namespace ropewalk::comm {

class CudaGroup final : public DeviceGroup {
 public:
  CudaGroup(bootstrap::Bootstrap& bootstrap, const Config& config, Runtime& runtime,
            const tune::GroupFacts& facts, const link::Rails& rails, executor::Traffic* traffic,
            int device, BlockBounds bounds);
  ~CudaGroup() override;
  CudaGroup(const CudaGroup&) = delete;
  CudaGroup& operator=(const CudaGroup&) = delete;

  [[nodiscard]] tune::Tuner tuner(const Config& config,
                                  std::shared_ptr<const topology::Topology> machine,
                                  std::shared_ptr<tune::KeptPlans> plans) override;
  std::unique_ptr<PreparedCall> prepare(const CollectiveCall& call, const Extent& extent,
                                        std::shared_ptr<const tune::Choice> choice) override;
  bool run(PreparedCall& prepared, const CollectiveCall& call, bool in_place,
           const executor::CallTag& tag, DeviceStream stream) override;
  void run_copied(PreparedCall& prepared, const CollectiveCall& call, const executor::CallTag& tag,
                  DeviceStream stream) override;
  void retire(std::unique_ptr<PreparedCall> prepared) override { prepared.reset(); }
  void forget_schedules() override { maker_->forget_given(); }
  [[nodiscard]] int max_channels() const noexcept override { return limits_.channels; }
  [[nodiscard]] trace::StampRange last_launch() const noexcept override { return last_launch_; }
  [[nodiscard]] const trace::DeviceTimes* times() const noexcept override { return times_.get(); }
  [[nodiscard]] bool last_by_copy_engines() const noexcept override { return last_copied_; }
  [[nodiscard]] std::optional<std::size_t> copied_from(
      Collective collective) const noexcept override {
    if (copy_engines_ == nullptr) return {};
    return copy_engines_->from_bytes(collective);
  }
  std::vector<MessageLaunch> send_and_receive(const std::vector<PointToPointCall>& calls,
                                              DeviceStream stream) override;
  [[nodiscard]] const tune::HybridLinks& hybrid_links() const noexcept override {
    return facts_.hybrid;
  }
  void time_hybrid(std::function<void(const tune::HybridTimes&)> timed) override;
  [[nodiscard]] bool any_thread_enqueues(DeviceStream stream) const noexcept override;
  void set_timeout(std::chrono::nanoseconds limit) noexcept override {
    timeout_ns_ = static_cast<std::uint64_t>(limit.count());
  }
  std::uint64_t register_buffer(const void* buffer, std::size_t bytes, Deadline deadline,
                                link::MappedBuffers mapped, bool symmetric) override;
  void deregister_buffer(std::uint64_t number) override;
  [[nodiscard]] const std::vector<link::BufferRange>& reached_buffers(
      std::uint64_t number) const override {
    return buffers_->reached(number);
  }
  [[nodiscard]] bool reaches_all() const noexcept override {
    return direct_ != Direct::kOff && facts_.num_hosts == 1 && peers_->access().missing().empty();
  }
  void abort() noexcept override;
  [[nodiscard]] std::optional<Error> stopped() const override;
  [[nodiscard]] std::optional<executor::CallTag> stopped_in() const override;
  void finish() override;
  void say_farewell(bootstrap::Bootstrap& bootstrap) override;
  [[nodiscard]] int device() const noexcept override { return device_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept override;
  [[nodiscard]] std::optional<std::string> network_slots() const override;

 private:
  enum class Direct : std::uint8_t { kOff, kAuto, kOn };
  static Direct direct_buffers(const Config& config);

  // Of the cost model: kept ones, or measured now. Collective.
  tune::DeviceConstants constants(bootstrap::Bootstrap& bootstrap, const Config& config);
  tune::DeviceTimes measure(const Config& config);
  double seconds_of(const Config& config, Collective collective, std::size_t unit_bytes,
                    std::byte* buffer, cudaStream_t stream);
  // Windows between hosts, where there can be some. Collective.
  void open_mapped_windows(bootstrap::Bootstrap& bootstrap, const Config& config,
                           const link::WindowLayout& layout, cudaStream_t stream);
  // A message to or from this rank goes through the host's memory, and others do not.
  [[nodiscard]] bool by_host_path(int peer) const;
  // Lets the tuner use links through the host's memory beside the others where that may gain.
  void use_hybrid(const Config& config);
  // Which ranks see the call's buffers, and where.
  void fill_reach(PreparedLaunch& launch, const CollectiveCall& call) const;
  void show(executor::Message& message) const;
  // A message as copy engines make it; nothing where kernels do. @param exchanged there is one in
  // the other direction beside it. @pre copy_engines_->messages(), and no graph captures it
  std::optional<handshake::CopiedMessage> by_copy_engines(const PointToPointCall& call,
                                                          bool exchanged);
  // By kernels, at once. @return where each notes its times
  std::vector<trace::StampRange> launch_messages(const std::vector<const PointToPointCall*>& wave,
                                                 cudaStream_t stream);
  void run_by_copy_engines(const CopiedCall& copied, const executor::CallTag& tag, bool captured,
                           cudaStream_t stream);
  // Both ends of the buffer are in memory of this GPU, or of the host and mapped.
  void check_buffer(const void* buffer, std::size_t bytes, const char* name) const;
  // Of the launches' stamps.
  void read_clock();
  // Of the next launch; without times_: none.
  trace::StampRange note_times(executor::LaunchLinks& links, unsigned blocks);
  void count(int peer, std::size_t bytes) noexcept {
    if (executor::Traffic::Counter* counter = counters_[static_cast<std::size_t>(peer)]) {
      counter->add(bytes);
    }
  }
  // Notes the times of the launch if it goes over both classes of links, and tells of the last one.
  void note_hybrid(PreparedLaunch& launch);
  executor::Capture follow_last(cudaStream_t stream);
  // Waits for the links that calls have asked for. @pre network_->connects_first()
  void connect_slots();
  void start(const void* kernel, unsigned blocks, unsigned threads, void* args, std::size_t shared,
             cudaStream_t stream);

  int device_;
  const transport::window::Gpu& gpu_;
  int rank_;
  int size_;
  Direct direct_;
  bool check_pointers_;
  bool check_calls_;
  tune::GroupFacts facts_;
  bool can_overlap_ = false;
  std::uint64_t timeout_ns_;
  tune::DeviceLimits limits_;
  tune::DeviceConstants constants_;
  std::unique_ptr<tune::DevicePricing> pricing_;  // of messages
  schedule::CheckedSchedules& schedules_;
  std::unique_ptr<executor::PinnedBuffer> control_memory_;
  executor::Control* control_ = nullptr;
  // Destroyed bottom up, with this GPU current.
  std::unique_ptr<link::DevicePeers> peers_;
  std::unique_ptr<link::RegisteredBuffers> buffers_;
  std::unique_ptr<executor::StreamOrder> order_;
  std::unique_ptr<link::DeviceBlocks> blocks_;
  std::unique_ptr<link::DeviceMappedWindows> mapped_;  // null where no two hosts have such
  std::unique_ptr<link::DeviceNetwork> network_;       // null where nothing else joins two ranks
  std::unique_ptr<link::DeviceLinks> links_;
  std::unique_ptr<LaunchMaker> maker_;
  std::unique_ptr<CopyEngines> copy_engines_;  // null where kernels do everything
  std::unique_ptr<executor::PinnedBuffer> times_memory_;
  std::unique_ptr<trace::DeviceTimes> times_;  // null where nothing is recorded, as is the next one
  std::unique_ptr<executor::GpuClock> clock_;
  std::unique_ptr<executor::PinnedBuffer> hybrid_memory_;
  // Of operations over both classes, without times_.
  std::unique_ptr<trace::DeviceTimes> hybrid_times_;
  std::unique_ptr<HybridTimer> hybrid_timer_;  // null where nobody asks
  trace::StampRange last_launch_;
  bool last_copied_ = false;
  // By peer, of this host: what kernels send; null where nothing is counted.
  std::vector<executor::Traffic::Counter*> counters_;
  std::uint64_t buffers_state_ = 1;  // counts registrations and their ends
  std::uint32_t measured_calls_ = 0;
};

}  // namespace ropewalk::comm
