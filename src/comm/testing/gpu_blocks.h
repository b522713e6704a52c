// For tests of programs that have the stand-in for CUDA: GPUs whose memory the host threads that
// stand in for blocks reach, and network links with slots there.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "comm/testing/block_network.h"
#include "transport/testing/gpu_nic.h"
#include "transport/window/device/testing/on_device.h"
#include "transport/window/device/testing/stand_in.h"

namespace ropewalk::comm::testing {

/// While it lives, what is allocated on a GPU is reached by threads of the process.
class GpuBlocks {
 public:
  explicit GpuBlocks(const std::string& options = "", bool touchable = true) {
    (void)gpus();
    stand_in_.configure(((touchable ? "touchable," : "") + options).c_str());
  }
  ~GpuBlocks() { stand_in_.configure(""); }
  GpuBlocks(const GpuBlocks&) = delete;
  GpuBlocks& operator=(const GpuBlocks&) = delete;

  /// Slots of a rank on the GPU of its number, of those there are.
  /// @param transport "ofi" and "sisci" take GPU memory themselves, others get `nic` over them
  BlockGpu of_rank(int rank, std::string_view transport) {
    BlockGpu made;
    made.options.use = link::GpuSlots::Use::kOn;
    made.options.block_bytes = std::size_t{256} << 10;
    made.options.gpu = [rank]() -> transport::window::Gpu& { return gpu_of(rank); };
    made.settings = {{"CUDA_LIBRARY", RW_STAND_IN_CUDA}};
    if (transport == "sisci") return made;
#ifdef RW_STAND_IN_LIBFABRIC
    if (transport == "ofi") {
      made.settings.emplace_back("OFI_LIBRARY", RW_STAND_IN_LIBFABRIC);
      made.settings.emplace_back("OFI_PROVIDER", "tcp;ofi_rxm");
      return made;
    }
#endif
    made.nic = [this](std::unique_ptr<transport::Transport> inner) {
      return std::make_unique<transport::testing::GpuNic>(std::move(inner), nic);
    };
    return made;
  }
  static transport::window::Gpu& gpu_of(int rank) { return gpus().at(rank % gpus().count()); }
  [[nodiscard]] const transport::window::testing::StandIn& stand_in() const { return stand_in_; }

  transport::testing::GpuNicState nic;

 private:
  // Once for all tests, as in a process. Never destroyed: exit() would do that after the stand-in's
  // memory of this thread is gone.
  static transport::window::Gpus& gpus() {
    static auto* const made = new transport::window::testing::TestGpus(RW_STAND_IN_CUDA);
    return made->gpus;
  }
  transport::window::testing::StandIn stand_in_;
};

}  // namespace ropewalk::comm::testing
