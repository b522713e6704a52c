#include "transport/window/mailbox.h"

#include <bit>
#include <cstring>
#include <utility>

#include "core/log.h"

namespace ropewalk::transport::window {
namespace {

// Looking costs a system call.
constexpr std::chrono::milliseconds kLookPeriod{1};

// Stores in flight arrive much sooner.
constexpr auto kTornTime = std::chrono::seconds(2);

std::size_t slot_offset(std::uint64_t number) {
  return kRingOffset + static_cast<std::size_t>(number % kRingEntries) * kEntryBytes;
}

}  // namespace

Mailbox::Mailbox(std::unique_ptr<Path> path, std::string name)
    : path_(std::move(path)), name_(std::move(name)), looks_(kLookPeriod) {}

Mailbox::~Mailbox() {
  if (!failed()) path_->disconnect();
}

void Mailbox::write(const Entry& entry) {
  const std::size_t offset = slot_offset(written_);
  path_->put(offset, &entry, sizeof entry);
  path_->put_word(offset + sizeof entry, last_word(entry, ++written_));
}

std::optional<Entry> Mailbox::read() {
  const std::size_t offset = slot_offset(read_);
  const std::uint64_t word = path_->read_word(offset + sizeof(Entry));
  if (static_cast<std::uint32_t>(word) != static_cast<std::uint32_t>(read_ + 1)) {
    return std::nullopt;
  }
  Entry entry;
  std::memcpy(&entry, path_->window() + offset, sizeof entry);
  if (path_->capabilities().puts_may_tear && !whole(entry, word)) return std::nullopt;
  ++read_;
  looks_.hold_off();
  return entry;
}

// The number of the entry, and where stores may arrive in another order, a checksum of it.
std::uint64_t Mailbox::last_word(const Entry& entry, std::uint64_t number) const {
  number = static_cast<std::uint32_t>(number);
  if (!path_->capabilities().puts_may_tear) return number;
  std::array<std::uint64_t, sizeof(Entry) / sizeof(std::uint64_t)> words;
  std::memcpy(words.data(), &entry, sizeof entry);
  std::uint64_t sum = number;
  for (const std::uint64_t word : words) sum = (std::rotl(sum, 23) ^ word) * 0x9e3779b97f4a7c15;
  return (sum & ~std::uint64_t{0xffffffff}) | number;
}

bool Mailbox::whole(const Entry& entry, std::uint64_t word) {
  if (word == last_word(entry, read_ + 1)) {
    torn_since_.reset();
    return true;
  }
  const auto now = std::chrono::steady_clock::now();
  if (!torn_since_) torn_since_ = now;
  if (now - *torn_since_ > kTornTime) {
    throw Error(Errc::kPeerLost, "{}",
                "the mailbox is corrupted: the rest of an entry does not arrive, stores were lost");
  }
  return false;
}

bool Mailbox::idle_and_lost() {
  if (!lost_.empty()) return true;
  if (!looks_.due()) return false;
  if (std::optional<std::string> reason = path_->peer_lost()) lost_ = std::move(*reason);
  return !lost_.empty();
}

void Mailbox::fail(Errc code, const std::string& reason) {
  if (error_) return;
  error_ = Error(code, "{}: {}", name_, reason);
  path_->disconnect();
}

void Mailbox::throw_if_failed() const {
  if (error_) throw Error(*error_);
}

}  // namespace ropewalk::transport::window
