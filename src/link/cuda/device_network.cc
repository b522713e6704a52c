#include "link/cuda/device_network.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace ropewalk::link {
namespace {

constexpr std::size_t kPage = 4096;
// Enough for the links of a ring and of a tree of hosts.
constexpr std::size_t kBlockBytes = std::size_t{64} << 20;
constexpr std::uint32_t kSlots = 8;
constexpr std::uint32_t kSlotBytes = std::uint32_t{128} << 10;
// Beside host memory's links.
constexpr std::uint32_t kTag = 1;

}  // namespace

PinnedPool::PinnedPool(std::size_t block_bytes) : block_bytes_(block_bytes) {
  add_block(block_bytes);
}

void PinnedPool::add_block(std::size_t bytes) {
  blocks_.push_back(std::make_unique<executor::PinnedBuffer>(bytes));
  next_ = static_cast<std::byte*>(blocks_.back()->data());
  left_ = bytes;
  bytes_ += bytes;
  std::memset(next_, 0, bytes);
}

std::byte* PinnedPool::take(std::size_t bytes) {
  const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  if (rounded > left_) add_block(std::max(rounded, block_bytes_));
  left_ -= rounded;
  return std::exchange(next_, next_ + rounded);
}

executor::FifoShape DeviceNetwork::shape() {
  executor::FifoShape shape;
  shape.headers = kSlots;
  shape.slots = kSlots;
  shape.slot_bytes = kSlotBytes;
  return shape;
}

DeviceNetwork::DeviceNetwork(bootstrap::Bootstrap& bootstrap,
                             std::unique_ptr<transport::Transport> transport, const Rails& rails,
                             bool seals, executor::Traffic* traffic, std::vector<int> cpus,
                             std::function<void(const Error&)> on_error)
    : pool_(kBlockBytes), name_(transport->name()) {
  NetworkLinks::Options options;
  options.shape = shape();
  options.tag = kTag;
  options.by_blocks = true;
  options.make_memory = [this](std::size_t bytes) {
    return FifoMemory(pool_.take(bytes), [](std::byte*) {});
  };
  auto links = std::make_unique<NetworkLinks>(bootstrap, std::move(transport), std::move(options));
  links->spread(rails, kChannels);
  if (seals) links->seal();
  if (traffic != nullptr) links->count_in(*traffic);
  ProgressThread::Policy policy;
  policy.cpus = std::move(cpus);
  thread_ =
      std::make_unique<ProgressThread>(std::move(links), std::move(policy), std::move(on_error));
}

bool DeviceNetwork::drain(Deadline deadline) {
  const auto drained = [&] {
    return thread_->with_links([](NetworkLinks& links) { return links.drained(); });
  };
  while (!drained()) {
    if (failure().has_value() || std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

executor::SendEnd DeviceNetwork::send_end(int channel, int peer) {
  return thread_->with_links(
      [&](NetworkLinks& links) { return links.sender(channel, peer).end(); });
}

executor::ReceiveEnd DeviceNetwork::receive_end(int channel, int peer) {
  return thread_->with_links(
      [&](NetworkLinks& links) { return links.receiver(channel, peer).end(); });
}

}  // namespace ropewalk::link
