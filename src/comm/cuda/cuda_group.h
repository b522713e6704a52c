// DeviceGroup by CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "comm/device_group.h"
#include "executor/block/launch.h"
#include "link/cuda/device_peers.h"
#include "link/cuda/device_window.h"
#include "link/registered_buffers.h"
#include "schedule/checked.h"
#include "tune/cuda/device_tuner.h"
#include "tune/device_constants.h"

namespace ropewalk::comm {

class CudaGroup final : public DeviceGroup {
 public:
  CudaGroup(bootstrap::Bootstrap& bootstrap, const Config& config, Runtime& runtime, int device);
  ~CudaGroup() override;
  CudaGroup(const CudaGroup&) = delete;
  CudaGroup& operator=(const CudaGroup&) = delete;

  void launch(const CollectiveCall& call, bool in_place, const executor::CallTag& tag,
              DeviceStream stream) override;
  void launch_copied(const CollectiveCall& call, const Extent& extent, const executor::CallTag& tag,
                     DeviceStream stream) override;
  void launch(const std::vector<PointToPointCall>& calls, DeviceStream stream) override;
  void use_schedule(std::shared_ptr<const schedule::Checked> checked) override;
  void forget_schedules() override;
  void set_timeout(std::chrono::nanoseconds limit) noexcept override {
    timeout_ns_ = static_cast<std::uint64_t>(limit.count());
  }
  std::uint64_t register_buffer(const void* buffer, std::size_t bytes, Deadline deadline) override;
  void deregister_buffer(std::uint64_t number) override;
  [[nodiscard]] const std::vector<link::BufferRange>& reached_buffers(
      std::uint64_t number) const override {
    return buffers_->reached(number);
  }
  [[nodiscard]] bool reaches_all() const noexcept override { return direct_ != Direct::kOff; }
  void abort() noexcept override;
  [[nodiscard]] std::optional<Error> stopped() const override;
  void finish(bootstrap::Bootstrap& bootstrap) override;
  [[nodiscard]] int device() const noexcept override { return device_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept override;
  [[nodiscard]] std::string describe_way(const CollectiveCall& call) override;

 private:
  // A checked schedule of this rank in device memory.
  struct Prepared {
    std::shared_ptr<const schedule::Checked> checked;
    link::DeviceMemory programs;
    std::uint32_t program_bytes = 0;
    executor::ProgramRoom room;
    std::uint32_t max_chunks = 0;
  };
  // All of a launch but the buffers, for calls like the last one.
  struct Way {
    CollectiveCall call;  // without buffers
    bool in_place = false;
    tune::DeviceChoice choice;
    executor::LaunchArgs args;
    link::DeviceMemory begins;  // where the channels' shares differ
    const void* kernel = nullptr;
    std::size_t shared_bytes = 0;
    std::size_t input_bytes = 0;
    bool direct = false;  // buffers may be given by address
    // What was looked at last.
    const void* checked_input = nullptr;
    const void* checked_output = nullptr;
  };

  void lay_links();
  // Of the cost model: kept ones, or measured now. Collective.
  tune::DeviceConstants constants(bootstrap::Bootstrap& bootstrap, const Config& config,
                                  const tune::DeviceTuner::Limits& limits);
  tune::DeviceTimes measure(const Config& config, const tune::DeviceTuner::Limits& limits,
                            const tune::DeviceConstants& constants);
  double seconds_of(Collective collective, std::size_t unit_bytes, std::byte* buffer,
                    cudaStream_t stream);
  // Device memory with `values`, also while a stream of this thread captures.
  template <typename T>
  link::DeviceMemory device_copy(const std::vector<T>& values);
  [[nodiscard]] executor::LaunchLinks links_of(executor::Protocol protocol) const;
  Prepared& prepared(const CollectiveCall& call, const tune::DeviceChoice& choice,
                     const schedule::Checked* given);
  // Null when the tuner chooses.
  [[nodiscard]] const schedule::Checked* given_for(const CollectiveCall& call) const;
  void drop_given();
  void drop_last_way();
  Way& way_of(const CollectiveCall& call, bool in_place);
  // Which ranks see the call's buffers, and where.
  void fill_reach(Way& way, const CollectiveCall& call) const;
  void show(executor::Message& message) const;
  // What was looked at last may be seen otherwise now.
  void forget_buffers() noexcept;
  // Both ends of the buffer are in memory of this GPU, or of the host and mapped.
  void check_buffer(const void* buffer, std::size_t bytes, const char* name) const;
  // Operations of one communicator run in the order of their calls, on whatever stream.
  // @return false when `stream` captures: then it is not marked as the last
  bool follow_last(cudaStream_t stream);
  void mark_last(cudaStream_t stream);
  // Every operation has run. False when graphs have some, of which nothing is known.
  [[nodiscard]] bool idle() const;
  void wait_until_idle() const;
  void start(const void* kernel, unsigned blocks, unsigned threads, void* args, std::size_t shared,
             cudaStream_t stream);

  int device_;
  int rank_;
  int size_;
  enum class Direct : std::uint8_t { kOff, kAuto, kOn };
  Direct direct_ = Direct::kAuto;
  bool check_pointers_ = true;
  bool can_overlap_ = false;
  bool check_calls_ = true;
  std::uint64_t timeout_ns_ = 0;
  int max_channels_ = 1;
  link::WindowLayout layout_;
  std::array<link::DeviceMemory, executor::kNumProtocols> send_ends_;
  std::array<link::DeviceMemory, executor::kNumProtocols> receive_ends_;
  link::DeviceMemory boards_;  // addresses of this rank's tags in all windows
  std::unique_ptr<link::DevicePeers> peers_;
  std::unique_ptr<link::RegisteredBuffers> buffers_;
  executor::Control* control_ = nullptr;  // in pinned memory
  executor::Control* control_on_device_ = nullptr;
  std::unique_ptr<tune::DeviceTuner> tuner_;
  schedule::CheckedSchedules& schedules_;
  std::map<std::tuple<std::string, Collective, int, int, bool>, Prepared> prepared_;
  std::map<Collective, std::shared_ptr<const schedule::Checked>> given_;  // by the user
  // Of ways and schedules that are not used any more: kernels and graphs may still read it.
  std::vector<link::DeviceMemory> retired_;
  std::vector<std::unique_ptr<Way>> ways_;  // the most recently used first
  cudaStream_t setup_stream_ = nullptr;     // apart from the user's streams
  cudaEvent_t last_event_ = nullptr;
  unsigned long long last_stream_ = 0;  // its number: streams may be gone when the next is used
  bool launched_ = false;               // last_event_ is recorded
  std::uint32_t measured_calls_ = 0;
  bool captured_ = false;  // operations went into graphs
};

}  // namespace ropewalk::comm
