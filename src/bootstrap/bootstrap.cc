#include "bootstrap/bootstrap.h"

#include <algorithm>
#include <cstring>

#include "bootstrap/bootstrap_rank.h"
#include "bootstrap/packed_records.h"
#include "core/error.h"

namespace ropewalk::bootstrap {
namespace {

// Binomial tree on ranks counted from the root: the parent of r is r without its lowest set bit,
// and the subtree of r is the ranks r to r + lowest set bit (or the end).
int parent(int relative) { return relative & (relative - 1); }

int subtree_end(int relative, int size) {
  const int width = relative == 0 ? size : relative & -relative;
  return std::min(size, relative + width);
}

/// Children, nearest first: their subtrees are small, and done first.
std::vector<int> children(int relative, int size) {
  std::vector<int> found;
  const int limit = relative == 0 ? size : relative & -relative;
  for (int bit = 1; bit < limit && relative + bit < size; bit <<= 1)
    found.push_back(relative + bit);
  return found;
}

}  // namespace

std::unique_ptr<Bootstrap> Bootstrap::join(const UniqueId& id, int rank, int size,
                                           const Config& config, Deadline deadline) {
  return join(id, rank, size, config, deadline, Context::process());
}

std::unique_ptr<Bootstrap> Bootstrap::join(const UniqueId& id, int rank, int size,
                                           const Config& config, Deadline deadline,
                                           Context& context) {
  RankOptions options;
  options.id = decode_unique_id(id);
  options.rank = rank;
  options.size = size;
  options.interfaces = config.text(Setting::kSocketIfname);
  options.peer_loss_time = config.duration(Setting::kPeerLossTime);
  if (options.peer_loss_time <= std::chrono::nanoseconds::zero()) {
    throw Error(Errc::kInvalidArgument, "setting ROPEWALK_PEER_LOSS_TIME: it must not be zero");
  }
  options.join_deadline = deadline;
  std::shared_ptr<Service> service = context.service();
  auto joined = std::make_shared<BootstrapRank>(*service, std::move(options));
  joined->join();
  return std::unique_ptr<Bootstrap>(new Bootstrap(std::move(joined), std::move(service)));
}

Bootstrap::Bootstrap(std::shared_ptr<BootstrapRank> its_rank, std::shared_ptr<Service> service)
    : service_(std::move(service)), rank_(std::move(its_rank)) {}

Bootstrap::~Bootstrap() {
  rank_->watch(nullptr);
  rank_->abort("destroyed without leaving");  // does nothing after leave() or abort()
  // So that the news are out when the process ends next.
  rank_->wait_closed();
}

int Bootstrap::rank() const noexcept { return rank_->rank(); }
int Bootstrap::size() const noexcept { return rank_->size(); }

const SocketAddress& Bootstrap::address(int peer) const {
  if (peer < 0 || peer >= size()) {
    throw Error(Errc::kInvalidArgument, "address of rank {} of {}", peer, size());
  }
  return rank_->address(peer);
}

// Why a tree, and not the ring that is there. All-gather of 64 bytes each among 256 ranks as
// threads of one process, 2 cores (busy with other work as well), connections made before:
//   ring 450 ms (65,280 messages), Bruck 55 to 120 ms (2,048), binomial tree 17 to 28 ms (510)
// With as many ranks on so few cores every message is a wake-up, and their number decides. The tree
// also needs the fewest connections: 255, half of which the ring has; Bruck's 8 for each rank took
// 230 ms to make.
void Bootstrap::exchange_up(std::span<std::byte> all, std::size_t bytes_each, std::uint32_t tag,
                            Deadline deadline) {
  const int relative = rank();
  for (const int child : children(relative, size())) {
    const std::vector<std::byte> part =
        rank_->receive(child, MessageChannel::kCollectives, tag, deadline, "all_gather");
    const auto ranks = static_cast<std::size_t>(subtree_end(child, size()) - child);
    if (part.size() != ranks * bytes_each) {
      throw Error(Errc::kInvalidArgument,
                  "all_gather: rank {} gave {} bytes for {} ranks, rank {} {} bytes for each",
                  child, part.size(), ranks, relative, bytes_each);
    }
    std::copy(
        part.begin(), part.end(),
        all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(child) * bytes_each));
  }
  if (relative == 0) return;
  const auto begin = static_cast<std::size_t>(relative) * bytes_each;
  const auto end = static_cast<std::size_t>(subtree_end(relative, size())) * bytes_each;
  rank_->send(parent(relative), MessageChannel::kCollectives, tag, all.subspan(begin, end - begin));
}

std::vector<std::byte> Bootstrap::receive_down(int root, std::uint32_t tag, Deadline deadline) {
  const int from = (parent((rank() - root + size()) % size()) + root) % size();
  return rank_->receive(from, MessageChannel::kCollectives, tag, deadline, "broadcast");
}

void Bootstrap::send_down(std::span<const std::byte> data, int root, std::uint32_t tag) {
  const int relative = (rank() - root + size()) % size();
  const auto rank_at = [&](int other) { return (other + root) % size(); };
  std::vector<int> below = children(relative, size());
  // The largest subtree first: it has most hops to go.
  std::reverse(below.begin(), below.end());
  for (const int child : below) {
    rank_->send(rank_at(child), MessageChannel::kCollectives, tag, data);
  }
}

void Bootstrap::all_gather(std::span<std::byte> all, std::size_t bytes_each, Deadline deadline) {
  const auto ranks = static_cast<std::size_t>(size());
  if (bytes_each + kMostPackedMore > kMaxMessageBytes / ranks || all.size() != ranks * bytes_each) {
    throw Error(Errc::kInvalidArgument,
                "all_gather of {} bytes of each of {} ranks into {} bytes; at most {} in all",
                bytes_each, ranks, all.size(), kMaxMessageBytes - ranks * kMostPackedMore);
  }
  const std::uint32_t tag = next_collective_;
  next_collective_ += 2;
  exchange_up(all, bytes_each, tag, deadline);
  if (rank() == 0) {
    if (size() > 1) send_down(pack_records(all, bytes_each), 0, tag + 1);
    return;
  }
  const std::vector<std::byte> packed = receive_down(0, tag + 1, deadline);
  send_down(packed, 0, tag + 1);
  if (!unpack_records(packed, all, bytes_each)) {
    throw Error(
        Errc::kInvalidArgument,
        "all_gather: rank {} gave {} bytes, rank 0 another number, or its message is damaged",
        rank(), bytes_each);
  }
}

void Bootstrap::broadcast(std::span<std::byte> data, int root, Deadline deadline) {
  if (root < 0 || root >= size()) {
    throw Error(Errc::kInvalidArgument, "broadcast from rank {} of {}", root, size());
  }
  const std::uint32_t tag = next_collective_;
  next_collective_ += 2;
  if (rank() != root) {
    const std::vector<std::byte> all = receive_down(root, tag, deadline);
    if (all.size() != data.size()) {
      throw Error(Errc::kInvalidArgument, "broadcast: rank {} has {} bytes, rank {} {}", root,
                  all.size(), rank(), data.size());
    }
    std::copy(all.begin(), all.end(), data.begin());
  }
  send_down(data, root, tag);
}

void Bootstrap::barrier(Deadline deadline) { all_gather({}, 0, deadline); }

void Bootstrap::send(int peer, std::uint32_t tag, std::span<const std::byte> data) {
  rank_->send(peer, MessageChannel::kMessages, tag, data);
}

std::vector<std::byte> Bootstrap::recv(int peer, std::uint32_t tag, Deadline deadline) {
  return rank_->receive(peer, MessageChannel::kMessages, tag, deadline, "bootstrap recv");
}

std::optional<std::vector<std::byte>> Bootstrap::try_recv(int peer, std::uint32_t tag) {
  return rank_->try_receive(peer, MessageChannel::kMessages, tag, "bootstrap recv");
}

void Bootstrap::on_message(std::uint32_t tag, MessageHandler handler) {
  rank_->on_message(tag, std::move(handler));
}

void Bootstrap::recv(int peer, std::uint32_t tag, std::span<std::byte> data, Deadline deadline) {
  const std::vector<std::byte> message = recv(peer, tag, deadline);
  if (message.size() != data.size()) {
    throw Error(Errc::kInternal, "bootstrap recv from rank {}, tag {}: {} bytes instead of {}",
                peer, tag, message.size(), data.size());
  }
  std::copy(message.begin(), message.end(), data.begin());
}

void Bootstrap::watch(Observer* observer) { rank_->watch(observer); }

void Bootstrap::leave() {
  rank_->leave();
  rank_->wait_closed();
}

void Bootstrap::abort(std::string_view reason) { rank_->abort(reason); }

}  // namespace ropewalk::bootstrap
