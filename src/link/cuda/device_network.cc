#include "link/cuda/device_network.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "executor/cuda/owned.h"
#include "link/gpu_slot_link.h"
#include "link/window_layout.h"

namespace ropewalk::link {
namespace {

// Enough for the links of a ring and of a tree of hosts.
constexpr std::size_t kBlockBytes = std::size_t{64} << 20;
// Bytes of the slots of one link.
constexpr std::uint32_t kLinkBytes = std::uint32_t{1} << 20;
// Tags of these links at connecting; host memory's links have 0.
constexpr std::uint32_t kTag = 1;
constexpr std::uint32_t kFlaggedTag = 2;

FifoMemory pinned(std::size_t bytes) {
  auto owned = std::make_shared<executor::PinnedBuffer>(bytes);
  auto* const data = static_cast<std::byte*>(owned->data());
  std::memset(data, 0, bytes);
  return {data, [owned](std::byte*) {}};
}

}  // namespace

executor::FifoShape DeviceNetwork::shape_for(int ranks) {
  executor::FifoShape shape;
  shape.headers = shape.slots = device_link_slots(ranks);
  shape.slot_bytes = kLinkBytes / shape.slots;
  return shape;
}

DeviceNetwork::DeviceNetwork(bootstrap::Bootstrap& bootstrap, const Rails& rails,
                             const Options& options,
                             const std::function<void(const Error&)>& on_error)
    : ranks_(bootstrap.size()), pool_(pinned, kBlockBytes), simple_threads_(options.threads) {
  if (options.has_ll) {
    const auto take_tags = [this](std::size_t number) {
      return reinterpret_cast<executor::CallTag*>(pool_.take(number * sizeof(executor::CallTag)));
    };
    own_tag_ = take_tags(1);
    board_ = take_tags(executor::kBoardTags * static_cast<std::size_t>(bootstrap.size()));
  }
  for (int t = 0; t < options.threads + (options.has_ll ? 1 : 0); ++t) {
    NetworkLinks::Options of_links;
    of_links.shape = shape();
    of_links.flagged = t == options.threads;
    of_links.tag = of_links.flagged ? kFlaggedTag : kTag;
    of_links.tags = {own_tag_, board_};
    of_links.by_blocks = true;
    of_links.make_memory = [this](std::size_t bytes) {
      return FifoMemory(pool_.take(bytes), [](std::byte*) {});
    };
    std::unique_ptr<transport::Transport> transport = options.make_transport();
    name_ = transport->name();
    if (t == 0) {
      GpuSlots::Options of_slots = options.gpu_slots;
      of_slots.end_bytes = gpu_slots_bytes(shape());
      of_slots.block_bytes = kBlockBytes;
      slots_ = GpuSlots::agree(bootstrap, *transport, options.nics, std::move(of_slots),
                               options.deadline);
      const auto is_by_cuda = [&](int nic) {
        return nic < transport->num_devices() && transport->properties(nic).gpu_memory_by_cuda;
      };
      connects_first_ = slots_ != nullptr && std::ranges::any_of(options.nics, is_by_cuda);
    }
    if (!of_links.flagged) of_links.gpu_slots = slots_.get();
    std::vector<int> cpus = options.cpus(*transport);
    auto links =
        std::make_unique<NetworkLinks>(bootstrap, std::move(transport), std::move(of_links));
    links->spread(rails, kChannels);
    if (options.seals) links->seal();
    if (options.traffic != nullptr) links->count_in(*options.traffic);
    ProgressThread::Policy policy;
    policy.cpus = std::move(cpus);
    threads_.push_back(
        std::make_unique<ProgressThread>(std::move(links), std::move(policy), on_error));
  }
}

std::optional<Error> DeviceNetwork::failure() const {
  for (const auto& thread : threads_) {
    if (std::optional<Error> error = thread->failure()) return error;
  }
  return std::nullopt;
}

template <typename Condition>
bool DeviceNetwork::all_links(Condition&& condition) {
  return std::ranges::all_of(threads_, [&](auto& thread) { return thread->with_links(condition); });
}

bool DeviceNetwork::connected() {
  connected_ = connected_ || all_links([](const NetworkLinks& links) { return links.connected(); });
  return connected_;
}

bool DeviceNetwork::drain(Deadline deadline) {
  const auto drained = [this] {
    return all_links([](NetworkLinks& links) { return links.drained(); });
  };
  while (!drained()) {
    if (failure().has_value() || std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

template <typename Function>
auto DeviceNetwork::with_links_of(executor::Protocol protocol, int channel, Function&& function) {
  const bool simple = protocol == executor::Protocol::kSimple;
  pool_.reserve(simple ? network_end_bytes(shape()) : flagged_end_bytes());
  if (simple && slots_ != nullptr) slots_->reserve();
  connected_ = false;
  return thread_of(protocol, channel).with_links(std::forward<Function>(function));
}

executor::SendEnd DeviceNetwork::send_end(executor::Protocol protocol, int channel, int peer) {
  return with_links_of(protocol, channel,
                       [&](NetworkLinks& links) { return links.sender(channel, peer).end(); });
}

executor::ReceiveEnd DeviceNetwork::receive_end(executor::Protocol protocol, int channel,
                                                int peer) {
  return with_links_of(protocol, channel,
                       [&](NetworkLinks& links) { return links.receiver(channel, peer).end(); });
}

}  // namespace ropewalk::link
