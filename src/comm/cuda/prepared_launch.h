// A collective as a kernel to launch: all of its parameters but the buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/cuda/copy_engines.h"
#include "comm/executor.h"
#include "executor/block/channel_cut.h"
#include "executor/block/launch.h"
#include "executor/cuda/kernel.h"
#include "executor/program.h"
#include "link/cuda/device_blocks.h"
#include "link/cuda/device_links.h"
#include "schedule/checked.h"

namespace ropewalk::comm {

/// A checked schedule's step lists for this rank, in device memory.
struct DevicePrograms {
  std::shared_ptr<const schedule::Checked> checked;
  bool given = false;  // by the user
  std::shared_ptr<link::DeviceBlock> memory;
  std::uint32_t program_bytes = 0;
  executor::ProgramRoom room;
  std::uint32_t max_chunks = 0;
  std::vector<executor::PartSent> sent;
};

class PreparedLaunch final : public PreparedCall {
 public:
  using PreparedCall::PreparedCall;

  /// By its kernel.
  [[nodiscard]] std::vector<trace::SentBytes> sent_bytes() const override { return sent; }
  [[nodiscard]] std::vector<trace::SentBytes> copied_bytes() const override {
    return copied.has_value() ? copied->sent : std::vector<trace::SentBytes>();
  }

  executor::LaunchArgs args;
  executor::CudaKernels kernels{};
  unsigned blocks = 0;
  unsigned threads = 0;
  std::size_t shared_bytes = 0;
  bool in_place_works = true;
  bool direct = false;  ///< buffers may be given by address
  std::vector<trace::SentBytes> sent;
  std::shared_ptr<link::DeviceBlock> programs;
  std::shared_ptr<link::DeviceBlock> begins;  ///< where the channels' shares differ; or null
  // The last call's.
  const void* checked_input = nullptr;
  const void* checked_output = nullptr;
  std::uint64_t buffers_seen = 0;    ///< state of the registrations that `args` shows
  std::optional<CopiedCall> copied;  ///< with these buffers copy engines make it
  unsigned long long held_by = 0;    ///< number of the capture whose graph holds the blocks
};

/// Makes them. Threads: one at a time.
class LaunchMaker {
 public:
  struct Options {
    int rank = 0;
    int num_ranks = 1;
    bool check_tags = true;
    /// Long chunks may be sent by address: in rooted collectives, whose data goes in one direction,
    /// or always.
    bool direct_rooted = false;
    bool direct_always = false;
  };
  /// Shorter chunks are better staged: reading through a given address waits for the reader's
  /// answer.
  static constexpr std::size_t kAddressBytes = std::size_t{16} << 10;

  /// `links` and `blocks` outlive it.
  LaunchMaker(link::DeviceLinks& links, link::DeviceBlocks& blocks, const Options& options)
      : links_(links), blocks_(blocks), options_(options) {}

  std::unique_ptr<PreparedLaunch> make(const CollectiveCall& call, const Extent& extent,
                                       std::shared_ptr<const tune::Choice> choice);
  void forget_given();

 private:
  DevicePrograms& programs(const tune::Choice& choice);
  void cut(PreparedLaunch& launch, const DevicePrograms& programs);
  static bool waits_together(const PreparedLaunch& launch, const DevicePrograms& programs);
  static void count(PreparedLaunch& launch, const DevicePrograms& programs,
                    const executor::ChannelCut& parts);

  link::DeviceLinks& links_;
  link::DeviceBlocks& blocks_;
  Options options_;
  std::map<std::pair<const schedule::Checked*, executor::Protocol>, DevicePrograms> programs_;
};

}  // namespace ropewalk::comm
