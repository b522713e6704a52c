// The part of a communicator that works on the memory of GPUs.
//
// Ranks of one host write each other's windows by peer access, in one process or over CUDA IPC;
// those of several hosts are linked by a transport, which a thread drives (link/cuda). Several
// ranks may share a GPU, each with its part of the multiprocessors. Operations are enqueued on a
// stream and run there in order; no call of the host takes part in them, so they may be captured in
// CUDA graphs.
//
// A build without CUDA has none: attach_device() says so.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "comm/collective_call.h"
#include "comm/executor.h"
#include "comm/runtime.h"
#include "core/error.h"
#include "executor/traffic.h"
#include "link/buffer_range.h"
#include "link/rails.h"
#include "trace/device_times.h"
#include "tune/hybrid_controller.h"
#include "tune/tuner.h"

namespace ropewalk::comm {

/// Whether copy engines make collectives (setting COPY_ENGINES, comm/copy_plan.h). In this order
/// the first one of all ranks' wishes holds; kUnset: the setting.
enum class CopyEngineUse : std::uint8_t { kOff, kAuto, kOn, kUnset };

/// How many blocks, each on a multiprocessor of its own, an operation may take. 0: as serves it
/// best.
struct BlockBounds {
  int least = 0;  ///< of a collective, where data and GPUs allow
  int most = 0;   ///< but one for each peer and direction of messages that go at once
  /// Blocks that form a cluster; kUnset: the setting CGA_CLUSTER_SIZE.
  static constexpr int kUnset = -1;
  int cluster = kUnset;
  CopyEngineUse copy_engines = CopyEngineUse::kUnset;
};

/// Threads: one at a time, except abort().
class DeviceGroup : public Executor {
 public:
  /// For calls on the memory of the ranks' GPUs.
  /// @param machine, plans as for tune::device_tuner()
  [[nodiscard]] virtual tune::Tuner tuner(const Config& config,
                                          std::shared_ptr<const topology::Topology> machine,
                                          std::shared_ptr<tune::KeptPlans> plans) = 0;

  /// As run(), which enqueues and throws Error kCuda, kInvalidArgument for a buffer that this GPU
  /// cannot reach; for exchanges_in_place(): the input is copied first, in the order of the stream.
  virtual void run_copied(PreparedCall& prepared, const CollectiveCall& call,
                          const executor::CallTag& tag, DeviceStream stream) = 0;
  /// Where the launch of the last run() or run_copied() notes its times; none where it does not.
  [[nodiscard]] virtual trace::StampRange last_launch() const noexcept = 0;
  /// What the launches note; null where they do not (setting TRACE).
  [[nodiscard]] virtual const trace::DeviceTimes* times() const noexcept = 0;
  /// The last run() or run_copied() was made by copy engines, and not by the schedule that was
  /// chosen.
  [[nodiscard]] virtual bool last_by_copy_engines() const noexcept = 0;
  /// From how many bytes for each peer on (bytes_for_peer()) copy engines make this collective,
  /// where the outputs lie in symmetric windows; nothing where they do not. The same on all ranks.
  [[nodiscard]] virtual std::optional<std::size_t> copied_from(
      Collective collective) const noexcept = 0;
  /// How a send or receive was enqueued.
  struct MessageLaunch {
    trace::StampRange launch;  ///< as last_launch()
    bool copied = false;       ///< by copy engines
  };
  /// Enqueues sends and receives that run all at once; several with one peer run in order.
  /// @return of each call
  virtual std::vector<MessageLaunch> send_and_receive(const std::vector<PointToPointCall>& calls,
                                                      DeviceStream stream) = 0;

  /// Both classes of links between GPUs, as the tuner has them; no channels where there is one
  /// class. The same on all ranks.
  [[nodiscard]] virtual const tune::HybridLinks& hybrid_links() const noexcept = 0;
  /// From now on `timed` is told what operations over both classes took, of one at a time, by later
  /// calls of run(). Not of captured ones.
  virtual void time_hybrid(std::function<void(const tune::HybridTimes&)> timed) = 0;

  /// Whether another thread than the caller may enqueue on `stream` what the caller asks for: not
  /// where it is captured, nor on the streams that CUDA makes for a device or a thread.
  [[nodiscard]] virtual bool any_thread_enqueues(DeviceStream stream) const noexcept = 0;

  /// Kernels that are enqueued from now on may stand still for this long; zero is for ever.
  virtual void set_timeout(std::chrono::nanoseconds limit) noexcept = 0;

  /// Collective: lets ranks of other processes read this buffer where it lies. Sizes may differ.
  /// @param mapped, symmetric as RegisteredBuffers::add
  /// @return its number, from 1
  /// @throws Error as RegisteredBuffers::add
  virtual std::uint64_t register_buffer(const void* buffer, std::size_t bytes, Deadline deadline,
                                        link::MappedBuffers mapped, bool symmetric) = 0;
  /// Local, and waits for nothing. Graphs that were captured with the buffer must not be launched
  /// any more.
  /// @throws Error kInvalidArgument for an unknown number; kCuda
  virtual void deregister_buffer(std::uint64_t number) = 0;

  /// By rank: where this rank's GPU reaches the buffers of one registration; of no bytes where it
  /// does not. An owner's part holds until that rank deregisters it.
  /// @throws Error kInvalidArgument for an unknown number
  [[nodiscard]] virtual const std::vector<link::BufferRange>& reached_buffers(
      std::uint64_t number) const = 0;
  /// The GPUs of all ranks reach each other's memory. The same on all ranks.
  [[nodiscard]] virtual bool reaches_all() const noexcept = 0;

  /// Makes the kernels of this rank end soon. Any thread, any time.
  virtual void abort() noexcept = 0;
  /// The error with which a kernel of this rank ended, if any.
  [[nodiscard]] virtual std::optional<Error> stopped() const = 0;
  /// The collective in which it did, where it is known: of a kernel that waited too long.
  [[nodiscard]] virtual std::optional<executor::CallTag> stopped_in() const = 0;
  /// Waits until all kernels of this rank have ended and what they sent has left.
  virtual void finish() = 0;
  /// Tells the other ranks that this one no longer needs their windows, and waits for the same from
  /// them. The last step before leaving the communicator in order: those who have heard it close
  /// their links, which stopped() would take for a loss from here on.
  /// @pre finish()
  virtual void say_farewell(bootstrap::Bootstrap& bootstrap) = 0;

  [[nodiscard]] virtual int device() const noexcept = 0;
  /// Device memory that the communicator holds.
  [[nodiscard]] virtual std::size_t memory_bytes() const noexcept = 0;
  /// Where this rank's slots of protocol simple are, of links that threads move between hosts:
  /// "GPU memory" or "pinned memory"; none where there are no such links.
  [[nodiscard]] virtual std::optional<std::string> network_slots() const = 0;
};

/// Collective over all ranks: each with the GPU `device`, as the CUDA runtime numbers them.
/// @param rails of the transport NET between hosts
/// @param traffic  where it counts what it sends; null: nowhere. It outlives the result
/// @param blocks may differ between ranks: the narrowest hold
/// @throws Error kCuda; kInvalidUsage when this build has no CUDA; as transport::make_transport()
std::unique_ptr<DeviceGroup> attach_device(bootstrap::Bootstrap& bootstrap, const Config& config,
                                           Runtime& runtime, const tune::GroupFacts& facts,
                                           const link::Rails& rails, executor::Traffic* traffic,
                                           int device, BlockBounds blocks);

/// Why GPUs cannot be used here; empty when they can.
std::string why_no_device();

/// GPUs that this process can use: 0 where why_no_device() says why.
/// @throws Error kCuda
int device_count();

/// One GPU as JSON: device, name, bus_id, capability, total_bytes, free_bytes.
/// @throws Error kInvalidArgument for a number that no GPU has; kCuda
std::string describe_device(int device);

/// A GPU's PCI address, "0000:3B:00.0".
/// @throws Error kCuda
std::string device_bus_id(int device);

/// The calling thread's current device.
/// @throws Error kCuda
int current_device();

}  // namespace ropewalk::comm
