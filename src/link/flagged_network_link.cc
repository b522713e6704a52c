#include "link/flagged_network_link.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "core/error.h"
#include "link/naming_peer.h"

namespace ropewalk::link {
namespace {

using executor::CallTag;
using executor::kBoardTags;
using executor::kFlaggedSlots;
using executor::kMostPosts;
using executor::Post;
using executor::Protocol;

constexpr std::uint32_t kMessageTag = 1;
constexpr std::size_t kLineBytes = 16;
constexpr std::size_t kWordBytes = 8;
constexpr std::size_t kSlotBytes = executor::flagged_bytes(Protocol::kLl, kFlaggedSlotBytes);

struct FlaggedTrailer {
  CallTag call;
  std::uint64_t round = 0;
  std::uint32_t chunks = 0;
  std::uint32_t ends_round = 0;
};
static_assert(kFlaggedSlotBytes + kMostPosts * (kWordBytes + 4) + sizeof(FlaggedTrailer) <=
              kFlaggedMessageBytes);

// Of both ends: the count of consumed rounds, the posts, the slots, the messages.
constexpr std::size_t kPostsAt = 64;
constexpr std::size_t kSlotsAt = 4096;
static_assert(kPostsAt + executor::kPostsBytes <= kSlotsAt);
constexpr std::size_t kMessagesAt = kSlotsAt + kFlaggedSlots * kSlotBytes;
constexpr std::size_t kMemoryBytes = kMessagesAt + kFlaggedMessages * kFlaggedMessageBytes;

// Chunks are whole words.
constexpr std::size_t kMostWordsBytes = kFlaggedSlotBytes + kMostPosts * kWordBytes;

std::size_t lines_of(std::size_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes; }

std::uint64_t* halves(std::byte* line) { return reinterpret_cast<std::uint64_t*>(line); }

// A tag is stored by a block at once, and read by it at once; here in two halves, of which the
// second has the call's number.
CallTag load_tag(const CallTag* from) {
  auto* const halves = reinterpret_cast<std::uint64_t*>(const_cast<CallTag*>(from));
  std::array<std::uint64_t, 2> read{};
  do {
    read[1] = std::atomic_ref(halves[1]).load(std::memory_order_acquire);
    read[0] = std::atomic_ref(halves[0]).load(std::memory_order_acquire);
  } while (std::atomic_ref(halves[1]).load(std::memory_order_acquire) != read[1]);
  return std::bit_cast<CallTag>(read);
}
void store_tag(CallTag* to, const CallTag& tag) {
  auto* const halves = reinterpret_cast<std::uint64_t*>(to);
  const auto both = std::bit_cast<std::array<std::uint64_t, 2>>(tag);
  std::atomic_ref(halves[0]).store(both[0], std::memory_order_release);
  std::atomic_ref(halves[1]).store(both[1], std::memory_order_release);
}

template <typename End>
std::byte* lay(End& end, std::byte* memory) {
  end.consumed_at = reinterpret_cast<std::uint64_t*>(memory);
  end.memory = memory + kSlotsAt;
  end.shape.headers = end.shape.slots = kFlaggedSlots;
  end.shape.slot_bytes = kFlaggedSlotBytes;
  return end.memory;
}

std::byte* slot_of(std::byte* slots, std::uint64_t round) {
  return slots + (round - 1) % kFlaggedSlots * kSlotBytes;
}

}  // namespace

std::size_t flagged_end_bytes() noexcept { return kMemoryBytes; }

// ---- sending ------------------------------------------------------------------------------

FlaggedSender::FlaggedSender(int peer, const FifoMaker& make_memory, const FlaggedTags& tags)
    : NetworkSender(make_memory(kMemoryBytes), kMemoryBytes, peer, true),
      tags_(tags),
      slots_(lay(end_, memory_.get())) {
  end_.posts = reinterpret_cast<std::uint64_t*>(memory_.get() + kPostsAt);
}

std::byte* FlaggedSender::message(std::uint64_t number) const noexcept {
  return memory_.get() + kMessagesAt + number % kFlaggedMessages * kFlaggedMessageBytes;
}

Post FlaggedSender::post() const {
  return Post::of(
      std::atomic_ref(end_.posts[Post::index(round_, chunk_)]).load(std::memory_order_acquire));
}

void FlaggedSender::gather() {
  const std::uint32_t flag = executor::flag_of(static_cast<std::uint32_t>(round_));
  std::byte* const words = message(started_ + 1);
  while (!ends_round_) {
    const Post post = this->post();
    if (post.flag != flag) return;
    const std::size_t lines = lines_of(post.bytes);
    if (post.offset + lines * kLineBytes > kSlotBytes ||
        taken_ + lines * kWordBytes > kMostWordsBytes) {
      throw Error(Errc::kInternal, "a block posted {} bytes at {}", post.bytes, post.offset);
    }
    std::byte* const from = slot_of(slots_, round_) + post.offset;
    for (std::size_t l = 0; l < lines; ++l) {
      std::uint64_t* const line = halves(from + l * kLineBytes);
      const std::uint64_t low = std::atomic_ref(line[0]).load(std::memory_order_acquire);
      const std::uint64_t high = std::atomic_ref(line[1]).load(std::memory_order_acquire);
      if (low >> 32U != flag || high >> 32U != flag) return;
      const std::uint64_t word = (low & 0xffffffffU) | high << 32U;
      std::memcpy(words + taken_ + l * kWordBytes, &word, kWordBytes);
    }
    taken_ += lines * kWordBytes;
    table_.push_back(static_cast<std::uint16_t>(post.bytes));
    table_.push_back(static_cast<std::uint16_t>(post.offset / kLineBytes));
    ends_round_ = post.last;
    ++chunk_;
  }
}

void FlaggedSender::close_message() {
  FlaggedTrailer trailer;
  if (tags_.own != nullptr) trailer.call = load_tag(tags_.own);
  trailer.round = round_;
  trailer.chunks = static_cast<std::uint32_t>(table_.size() / 2);
  trailer.ends_round = ends_round_ ? 1 : 0;
  std::byte* const to = message(started_ + 1) + taken_;
  const std::size_t table_bytes = table_.size() * sizeof(std::uint16_t);
  std::memcpy(to, table_.data(), table_bytes);
  std::memcpy(to + table_bytes, &trailer, sizeof trailer);
  message_bytes_ = taken_ + table_bytes + sizeof trailer;
  if (counter_ != nullptr) counter_->add_shared(taken_);
  taken_ = 0;
  table_.clear();
  if (!std::exchange(ends_round_, false)) return;
  chunk_ = 0;
  // The block may write the slot again.
  std::atomic_ref(*end_.consumed_at).store(round_++, std::memory_order_release);
}

bool FlaggedSender::drained() {
  return requests_.empty() && message_bytes_ == 0 && chunk_ == 0 &&
         post().flag != executor::flag_of(static_cast<std::uint32_t>(round_));
}

bool FlaggedSender::poll() {
  return naming_peer(end_.peer, "sending to", [this] {
    bool moved = false;
    while (requests_.size() < kFlaggedMessages) {
      if (message_bytes_ == 0) {
        gather();
        if (table_.empty()) break;
        close_message();
      }
      std::unique_ptr<transport::Request> request = connection_->send(
          message(started_ + 1), message_bytes_, kMessageTag, registration_.get());
      if (request == nullptr) break;
      requests_.push_back(std::move(request));
      ++started_;
      message_bytes_ = 0;
      moved = true;
    }
    while (!requests_.empty() && requests_.front()->test().has_value()) {
      requests_.pop_front();
      moved = true;
    }
    return moved;
  });
}

// ---- receiving ----------------------------------------------------------------------------

FlaggedReceiver::FlaggedReceiver(int peer, const FifoMaker& make_memory, const FlaggedTags& tags)
    : NetworkReceiver(make_memory(kMemoryBytes), kMemoryBytes, peer, true),
      tags_(tags),
      slots_(lay(end_, memory_.get())) {}

std::byte* FlaggedReceiver::message(std::uint64_t number) const noexcept {
  return memory_.get() + kMessagesAt + number % kFlaggedMessages * kFlaggedMessageBytes;
}

void FlaggedReceiver::lay_out() {
  const std::size_t bytes = std::exchange(arrived_, 0);
  const std::byte* const from = message(laid_ + 1);
  FlaggedTrailer trailer;
  bool valid = bytes >= sizeof trailer;
  if (valid) std::memcpy(&trailer, from + bytes - sizeof trailer, sizeof trailer);
  const std::size_t table_bytes = std::size_t{trailer.chunks} * 2 * sizeof(std::uint16_t);
  valid = valid && trailer.round == round_ && trailer.chunks <= kMostPosts &&
          bytes - sizeof trailer >= table_bytes;
  const std::size_t words_bytes = valid ? bytes - sizeof trailer - table_bytes : 0;
  const std::uint32_t flag = executor::flag_of(static_cast<std::uint32_t>(round_));
  std::size_t read = 0;
  for (std::size_t chunk = 0; valid && chunk < trailer.chunks; ++chunk) {
    std::array<std::uint16_t, 2> entry{};
    std::memcpy(entry.data(), from + words_bytes + chunk * sizeof entry, sizeof entry);
    const std::size_t lines = lines_of(entry[0]);
    const std::size_t offset = entry[1] * kLineBytes;
    valid = offset + lines * kLineBytes <= kSlotBytes && read + lines * kWordBytes <= words_bytes;
    if (!valid) break;
    std::byte* const to = slot_of(slots_, round_) + offset;
    for (std::size_t l = 0; l < lines; ++l, read += kWordBytes) {
      std::uint64_t word = 0;
      std::memcpy(&word, from + read, kWordBytes);
      std::uint64_t* const line = halves(to + l * kLineBytes);
      const std::uint64_t flagged = std::uint64_t{flag} << 32U;
      std::atomic_ref(line[0]).store((word & 0xffffffffU) | flagged, std::memory_order_release);
      std::atomic_ref(line[1]).store(word >> 32U | flagged, std::memory_order_release);
    }
  }
  if (!valid || read != words_bytes) {
    throw Error(Errc::kPeerLost, "a malformed message of {} bytes arrived in round {}", bytes,
                round_);
  }
  if (trailer.ends_round != 0) ++round_;
  if (tags_.of_others == nullptr || trailer.call.count == 0) return;
  // Data without an end of its own may be taken for another call's.
  const CallTag own = load_tag(tags_.own);
  if (own.count != 0 && own.call == trailer.call.call && own != trailer.call) {
    throw Error(Errc::kInvalidUsage, "it calls another operation ({})", own.call);
  }
  CallTag* const board = tags_.of_others + static_cast<std::size_t>(end_.peer) * kBoardTags;
  store_tag(board + trailer.call.call % kBoardTags, trailer.call);
}

bool FlaggedReceiver::poll() {
  return naming_peer(end_.peer, "receiving from", [this] {
    bool moved = false;
    while (started_ - laid_ < kFlaggedMessages) {
      const std::array<transport::ReceiveBuffer, 1> buffer = {
          {{message(started_ + 1), kFlaggedMessageBytes, kMessageTag, registration_.get()}}};
      std::unique_ptr<transport::Request> request = connection_->receive(buffer);
      if (request == nullptr) break;
      requests_.push_back(std::move(request));
      ++started_;
      moved = true;
    }
    const std::uint64_t consumed =
        std::atomic_ref(*end_.consumed_at).load(std::memory_order_acquire);
    while (!requests_.empty()) {
      if (arrived_ == 0) {
        const std::optional<std::size_t> bytes = requests_.front()->test();
        if (!bytes.has_value()) break;
        arrived_ = *bytes;
      }
      // What was in the slot before must have been read.
      if (round_ > consumed + kFlaggedSlots) break;
      lay_out();
      requests_.pop_front();
      ++laid_;
      moved = true;
    }
    return moved;
  });
}

}  // namespace ropewalk::link
