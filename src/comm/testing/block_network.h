// For tests: the network links of a rank's blocks, and the thread that moves them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/test_support.h"
#include "comm/testing/networks.h"
#include "core/settings.h"
#include "executor/block/launch.h"
#include "link/gpu_slot_link.h"
#include "link/gpu_slots.h"
#include "link/network_links.h"
#include "link/progress_thread.h"
#include "transport/registry.h"

namespace ropewalk::comm::testing {

/// Slots in GPU memory, of links of protocol simple.
struct BlockGpu {
  link::GpuSlots::Options options;
  /// Makes of a transport one that takes GPU memory; none where it does.
  std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)> nic;
  std::vector<std::pair<const char*, std::string>> settings;  ///< besides the transport's
};

class BlockNetwork {
 public:
  /// @param transport of one of networks(), whose settings it has
  /// @param control the blocks', which end when the links fail. Outlives this.
  /// @param gpu null: slots in host memory. It is tried without `faults`.
  BlockNetwork(bootstrap::Bootstrap& bootstrap, std::string_view transport, bool flagged,
               const executor::FifoShape& shape, const std::string& faults,
               executor::Control& control, const BlockGpu* gpu = nullptr)
      : flagged_(flagged),
        board_(static_cast<std::size_t>(bootstrap.size()) * executor::kBoardTags) {
    Config config = bootstrap::quiet_config();
    (void)bridges();
    const auto network = std::ranges::find(networks(), transport, &Network::name);
    RW_ASSERT(network != networks().end());
    for (const auto& [setting, value] : network->settings) config.set(setting, value, "test");
    if (gpu != nullptr) {
      for (const auto& [setting, value] : gpu->settings) config.set(setting, value, "test");
    }
    link::NetworkLinks::Options options;
    options.shape = shape;
    options.tag = 1;
    options.by_blocks = true;
    options.flagged = flagged;
    options.tags = {&tag_, board_.data()};
    const auto make = [&] {
      auto made = transport::make_transport(network->transport, config);
      return gpu != nullptr && gpu->nic ? gpu->nic(std::move(made)) : std::move(made);
    };
    if (gpu != nullptr) {
      link::GpuSlots::Options of_slots = gpu->options;
      of_slots.end_bytes = link::gpu_slots_bytes(shape);
      const std::unique_ptr<transport::Transport> tried = make();
      const std::vector<int> devices = {0};
      slots_ =
          link::GpuSlots::agree(bootstrap, *tried, devices, std::move(of_slots), bootstrap::soon());
      options.gpu_slots = slots_.get();
    }
    if (!faults.empty()) config.set("FAULTY", faults, "test");
    auto links = std::make_unique<link::NetworkLinks>(bootstrap, make(), std::move(options));
    thread_ = std::make_unique<link::ProgressThread>(
        std::move(links), link::ProgressThread::Policy(),
        [&control](const Error&) { std::atomic_ref(control.abort).store(1); });
  }
  executor::SendEnd send_end(int channel, int peer) {
    executor::SendEnd end = thread_->with_links(
        [&](link::NetworkLinks& links) { return links.sender(channel, peer).end(); });
    end.kept = &sent_[{channel, peer}];
    return end;
  }
  executor::ReceiveEnd receive_end(int channel, int peer) {
    executor::ReceiveEnd end = thread_->with_links(
        [&](link::NetworkLinks& links) { return links.receiver(channel, peer).end(); });
    end.kept = &received_[{channel, peer}];
    return end;
  }
  /// The tags that travel beside the data, of ll. @return whether there are any
  bool lend_tags(executor::LaunchLinks& links) {
    if (!flagged_) return false;
    links.network_tag = &tag_;
    links.network_board = board_.data();
    return true;
  }
  link::ProgressThread& thread() { return *thread_; }
  /// Null where all ranks' slots are in host memory.
  [[nodiscard]] const link::GpuSlots* slots() const { return slots_.get(); }
  /// Until all that blocks left has been sent. @return false where the links fail, or 30 s pass
  bool drain() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!thread_->with_links([](link::NetworkLinks& links) { return links.drained(); })) {
      if (thread_->failure().has_value() || std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void close() { thread_.reset(); }
  /// What has gone over each link, in chunks or rounds. No block is at work.
  std::string state() {
    return thread_->with_links([this](link::NetworkLinks& links) {
      std::string text;
      const auto count = [](std::uint64_t* at) {
        return std::atomic_ref(*at).load(std::memory_order_acquire);
      };
      for (const auto& [key, counters] : sent_) {
        const auto& [channel, peer] = key;
        text +=
            fmt::format("channel {} to rank {}: {} written, {} sent\n", channel, peer,
                        counters.published, count(links.sender(channel, peer).end().consumed_at));
      }
      for (const auto& [key, counters] : received_) {
        const auto& [channel, peer] = key;
        text +=
            fmt::format("channel {} from rank {}: {} read, {} told\n", channel, peer,
                        counters.received, count(links.receiver(channel, peer).end().consumed_at));
      }
      return text;
    });
  }

 private:
  bool flagged_;
  alignas(16) executor::CallTag tag_;
  std::vector<executor::CallTag> board_;
  std::map<std::pair<int, int>, executor::SendCounters> sent_;
  std::map<std::pair<int, int>, executor::ReceiveCounters> received_;
  std::unique_ptr<link::GpuSlots> slots_;
  std::unique_ptr<link::ProgressThread> thread_;
};

}  // namespace ropewalk::comm::testing
