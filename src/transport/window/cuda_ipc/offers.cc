#include "transport/window/cuda_ipc/offers.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/unix_socket.h"

namespace ropewalk::transport::window {
namespace {

constexpr std::array<char, 8> kMagic = {'R', 'W', 'C', 'U', 'D', 'A', 'o', '1'};
constexpr std::array<char, 8> kAnswerMagic = {'R', 'W', 'C', 'U', 'D', 'A', 'a', '1'};
constexpr std::size_t kMaxOffers = 65536;

// A part of an offer, or the withdrawal of one.
struct Packet {
  std::array<char, 8> magic = kMagic;
  std::uint32_t withdrawn = 0;
  std::uint16_t virtual_memory = 0;
  std::uint16_t constant = 0;
  std::uint64_t key = 0;
  std::uint64_t address = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t segment = 0;
  std::uint64_t num_segments = 0;
  std::uint64_t segment_bytes = 0;
  CuUuid gpu;
  CuIpcHandle handle;
};
static_assert(std::is_trivially_copyable_v<Packet>);

// The answers.
struct AnswerPacket {
  std::array<char, 8> magic = kAnswerMagic;
  Answer answer{};
  std::uint32_t unused = 0;
  std::uint64_t key = 0;
};
static_assert(std::is_trivially_copyable_v<AnswerPacket>);

enum class Sent { kYes, kNoRoom, kLost };

Sent send_packet(int socket, const Packet& packet, int descriptor) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(&packet, 1));
  if (descriptor >= 0) {
    if (send_with_descriptor(socket, bytes, descriptor)) return Sent::kYes;
  } else if (::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
             static_cast<ssize_t>(bytes.size())) {
    return Sent::kYes;
  }
  // ETOOMANYREFS: too many descriptors are in flight, in all of this user's sockets.
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS ||
                 errno == ETOOMANYREFS
             ? Sent::kNoRoom
             : Sent::kLost;
}

}  // namespace

std::optional<std::string> OfferLine::offer(const DeviceMemory& memory) {
  const Lock lock(mutex_);
  if (offered_.contains(memory.key)) return "";
  if (!memory.why_not_offered.empty()) return memory.why_not_offered;
  if (!flush()) return std::nullopt;
  if (partly_ != memory.key) {
    partly_ = memory.key;
    sent_ = 0;
  }
  for (; sent_ < memory.segments.size(); ++sent_) {
    const Segment& segment = memory.segments[sent_];
    Packet packet;
    packet.virtual_memory = memory.virtual_memory ? 1 : 0;
    packet.constant = memory.constant ? 1 : 0;
    packet.key = memory.key;
    packet.address = memory.data;
    packet.offset = memory.data - memory.segments[0].base;
    packet.bytes = memory.bytes;
    packet.segment = sent_;
    packet.num_segments = memory.segments.size();
    packet.segment_bytes = segment.bytes;
    packet.gpu = memory.gpu->uuid();
    packet.handle = segment.handle;
    const Sent sent = send_packet(socket_, packet, segment.descriptor.get());
    if (sent == Sent::kNoRoom) return std::nullopt;
    if (sent == Sent::kLost) {
      return system_error(errno, "offering device memory to the receiver").what();
    }
  }
  offered_.insert(memory.key);
  return "";
}

void send_answer(int socket, Answer answer, std::uint64_t key) {
  AnswerPacket packet;
  packet.answer = answer;
  packet.key = key;
  (void)::send(socket, &packet, sizeof packet, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void OfferLine::read_answers() {
  AnswerPacket packet;
  while (::recv(socket_, &packet, sizeof packet, MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof packet)) {
    if (packet.magic != kAnswerMagic) continue;
    answers_ = true;
    if (packet.answer == Answer::kOpened && offered_.contains(packet.key)) {
      opened_.insert(packet.key);
    }
  }
}

void OfferLine::await(std::span<const std::uint64_t> keys, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    pollfd entry{-1, POLLIN, 0};
    {
      const Lock lock(mutex_);
      if (socket_ < 0) return;
      read_answers();
      const auto open = [&](std::uint64_t key)
                            RW_REQUIRES(mutex_) { return opened_.contains(key); };
      if (!answers_ || std::all_of(keys.begin(), keys.end(), open)) return;
      entry.fd = socket_;
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) <= 0) break;
    if ((entry.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) return;
  }
  log::info(log::kNet, "cuda_ipc: the receiver has not opened GPU memory within {} ms",
            patience.count());
}

void OfferLine::withdraw(std::uint64_t key) {
  const Lock lock(mutex_);
  opened_.erase(key);
  if (socket_ < 0 || (offered_.erase(key) == 0 && partly_ != key)) return;
  withdrawn_.push_back(key);
  flush();
}

void OfferLine::close() {
  const Lock lock(mutex_);
  socket_ = -1;
}

// @return whether all withdrawals were sent
bool OfferLine::flush() {
  while (!withdrawn_.empty()) {
    Packet packet;
    packet.withdrawn = 1;
    packet.key = withdrawn_.front();
    if (send_packet(socket_, packet, -1) == Sent::kNoRoom) return false;
    withdrawn_.pop_front();
  }
  return true;
}

OfferReader::Came OfferReader::read(int socket) {
  Came came;
  for (;;) {
    Packet packet;
    std::optional<WithDescriptor> got;
    try {
      got = receive_with_descriptor(socket, std::as_writable_bytes(std::span(&packet, 1)));
    } catch (const Error&) {
      break;  // the peer's end is noticed elsewhere
    }
    if (!got || got->bytes == 0) break;
    if (got->bytes != sizeof packet || got->truncated || packet.magic != kMagic) {
      log::warn("{}", "an offer of device memory is invalid");
      continue;
    }
    if (packet.withdrawn != 0) {
      offers_.erase(packet.key);
      std::erase(came.offered, packet.key);
      came.withdrawn.push_back(packet.key);
      continue;
    }
    std::shared_ptr<OfferedMemory>& offer = offers_[packet.key];
    if (packet.segment == 0) {
      offer = std::make_shared<OfferedMemory>();
      offer->gpu = packet.gpu;
      offer->virtual_memory = packet.virtual_memory != 0;
      offer->constant = packet.constant != 0;
      offer->address = packet.address;
      offer->offset = packet.offset;
      offer->bytes = packet.bytes;
      offer->num_segments = packet.num_segments;
    }
    const bool right = offer && packet.num_segments <= kMaxSegments &&
                       offers_.size() <= kMaxOffers && packet.segment == offer->segments.size() &&
                       packet.segment < offer->num_segments &&
                       (packet.virtual_memory == 0 || got->descriptor);
    if (!right) {
      offers_.erase(packet.key);
      log::warn("{}", "an offer of device memory is invalid");
      continue;
    }
    Segment segment;
    segment.bytes = packet.segment_bytes;
    segment.handle = packet.handle;
    segment.descriptor = std::move(got->descriptor);
    offer->segments.push_back(std::move(segment));
    if (offer->segments.size() == offer->num_segments) came.offered.push_back(packet.key);
  }
  return came;
}

std::vector<std::uint64_t> OfferReader::keys() const {
  std::vector<std::uint64_t> keys;
  for (const auto& [key, offer] : offers_) {
    if (find(key)) keys.push_back(key);
  }
  return keys;
}

std::shared_ptr<const OfferedMemory> OfferReader::find(std::uint64_t key) const {
  const auto found = offers_.find(key);
  if (found == offers_.end() || found->second->segments.size() != found->second->num_segments) {
    return nullptr;
  }
  return found->second;
}

}  // namespace ropewalk::transport::window
