#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "transport/rails/receiver.h"

namespace ropewalk::transport::rails {
namespace {

// As many as a sender has outstanding, so that a piece never waits in its provider.
constexpr std::size_t kSlots = 16;
constexpr std::size_t kSlotBytes = kHeadBytes + kPieceBytes;
// Of what is said, with the provider at once.
constexpr std::size_t kMostSaying = 8;

// A mapping of its own: malloc() would keep what closed rails had, 1 MiB of each.
std::byte* map_slots() {
  void* const memory = mmap(nullptr, kSlots * kSlotBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw system_error(errno, "mmap for the receives of a rail");
  return static_cast<std::byte*>(memory);
}

}  // namespace

void ArrivingRail::Unmap::operator()(std::byte* memory) const noexcept {
  munmap(memory, kSlots * kSlotBytes);
}

ArrivingRail::ArrivingRail(const Device& device, std::unique_ptr<ReceiveConnection> forth)
    : name(device.name()), device_(device), memory_(map_slots()), forth_(std::move(forth)) {
  for (std::size_t slot = 0; slot < kSlots; ++slot) slots_.push_back({slot, nullptr});
}

void ArrivingRail::post() {
  for (Slot& slot : slots_) {
    if (slot.request != nullptr) continue;
    const ReceiveBuffer buffer{memory_.get() + slot.index * kSlotBytes, kSlotBytes, kTag, nullptr};
    slot.request = forth_->receive({&buffer, 1});
    if (slot.request == nullptr) return;
  }
}

std::optional<ArrivingRail::Came> ArrivingRail::next() {
  if (!forth_->ready()) return std::nullopt;
  if (slots_.back().request == nullptr) post();
  Slot& first = slots_.front();
  if (first.request == nullptr) return std::nullopt;
  const std::optional<std::size_t> got = first.request->test();
  if (!got) return std::nullopt;
  const std::span<const std::byte> message(memory_.get() + first.index * kSlotBytes, *got);
  const std::optional<Head> head = open_head(message);
  if (!head) throw Error(Errc::kPeerLost, "{}", "a message was changed in transit");
  return Came{*head, message.subspan(kHeadBytes)};
}

void ArrivingRail::release() {
  Slot slot = std::move(slots_.front());
  slots_.pop_front();
  slot.request.reset();
  slots_.push_back(std::move(slot));
  ++count;
}

bool ArrivingRail::answer(const Handle& back) {
  if (back_ == nullptr) {
    if (connector_ == nullptr) connector_ = device_.transport->connect(device_.number, back);
    back_ = connector_->poll();
    if (back_ == nullptr) return false;
    connector_.reset();
  }
  return back_->ready();
}

void ArrivingRail::say(Kind kind, Head head, std::span<const std::byte> following) {
  head.kind = kind;
  seal(head, following, true);
  Said said;
  said.message.resize(kHeadBytes + following.size());
  std::memcpy(said.message.data(), &head, kHeadBytes);
  if (!following.empty()) {
    std::memcpy(said.message.data() + kHeadBytes, following.data(), following.size());
  }
  said_.push_back(std::move(said));
}

bool ArrivingRail::flush() {
  if (back_ == nullptr || !back_->ready()) return said_.empty();
  std::size_t saying = 0;
  while (!said_.empty()) {
    Said& first = said_.front();
    if (first.request == nullptr || !first.request->test()) break;
    said_.pop_front();
  }
  for (Said& said : said_) {
    if (++saying > kMostSaying) break;
    if (said.request == nullptr) {
      said.request = back_->send(said.message.data(), said.message.size(), kTag, nullptr);
      if (said.request == nullptr) break;
    }
  }
  while (!said_.empty() && said_.front().request != nullptr && said_.front().request->test()) {
    said_.pop_front();
  }
  return said_.empty();
}

}  // namespace ropewalk::transport::rails
