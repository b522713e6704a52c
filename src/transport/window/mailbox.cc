#include "transport/window/mailbox.h"

#include <cstring>
#include <utility>

#include "core/log.h"

namespace ropewalk::transport::window {
namespace {

// Looking costs a system call, so it is done once in so many idle polls.
constexpr unsigned kIdlePolls = 256;

std::size_t slot_offset(std::uint64_t number) {
  return kRingOffset + static_cast<std::size_t>(number % kRingEntries) * kEntryBytes;
}

}  // namespace

Mailbox::Mailbox(std::unique_ptr<Path> path, std::string name)
    : path_(std::move(path)), name_(std::move(name)) {}

Mailbox::~Mailbox() {
  if (!failed()) path_->disconnect();
}

void Mailbox::write(const Entry& entry) {
  const std::size_t offset = slot_offset(written_);
  path_->put(offset, &entry, sizeof entry);
  path_->put_word(offset + sizeof entry, ++written_);
}

std::optional<Entry> Mailbox::read() {
  const std::size_t offset = slot_offset(read_);
  if (path_->read_word(offset + sizeof(Entry)) != read_ + 1) return std::nullopt;
  Entry entry;
  std::memcpy(&entry, path_->window() + offset, sizeof entry);
  ++read_;
  idle_ = 0;
  return entry;
}

bool Mailbox::idle_and_lost() {
  if (!lost_.empty()) return true;
  if (++idle_ % kIdlePolls != 0) return false;
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
