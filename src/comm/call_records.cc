#include "comm/call_records.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "core/error.h"

namespace ropewalk::comm {

CallRecords::CallRecords(std::size_t capacity, bool all) : capacity_(capacity), all_(all) {
  RW_ASSERT(capacity == 0 || std::has_single_bit(capacity));
  const Lock lock(mutex_);
  labels_.emplace_back();  // none yet
  if (capacity == 0) return;
  blocks_.push_back(std::make_unique<Slot[]>(capacity));
  newest_ = blocks_.back().get();
}

std::uint16_t CallRecords::label_of(std::string_view algorithm) {
  const Lock lock(mutex_);
  auto found = std::find(labels_.begin(), labels_.end(), algorithm);
  // Schedules of a user may have any number of names.
  if (found == labels_.end() && labels_.size() < UINT16_MAX) {
    labels_.emplace_back(algorithm);
    found = labels_.end() - 1;
  }
  return found == labels_.end() ? std::uint16_t{0}
                                : static_cast<std::uint16_t>(found - labels_.begin());
}

void CallRecords::add_block() noexcept {
  const Id begun = last_.load(std::memory_order_relaxed);
  if (begun == 0) return;  // the first block is empty yet
  const Lock lock(mutex_);
  try {
    blocks_.push_back(std::make_unique<Slot[]>(capacity_));
  } catch (const std::bad_alloc&) {
    // The oldest make room. Slots of that block are free: nothing is as old and not complete, or
    // it loses its times.
    std::rotate(blocks_.begin(), blocks_.begin() + 1, blocks_.end());
    first_of_blocks_ += capacity_;
  }
  newest_ = blocks_.back().get();
}

CallRecords::Slot* CallRecords::block_of(Id id) noexcept {
  const Lock lock(mutex_);
  const std::size_t block = id < first_of_blocks_ ? 0 : (id - first_of_blocks_) / capacity_;
  return blocks_[std::min(block, blocks_.size() - 1)].get();
}

bool CallRecords::read_slot(const Slot& slot, Record& record) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  record.id = slot.id.load(std::memory_order_acquire);
  if (record.id == 0) return false;
  record.call = slot.call.load(kRelaxed);
  record.count = slot.count.load(kRelaxed);
  const std::uint64_t scheduled = slot.scheduled.load(kRelaxed);
  const std::uint64_t started = slot.started.load(kRelaxed);
  const std::uint64_t completed = slot.completed.load(kRelaxed);
  const int root_or_peer = slot.root_or_peer.load(kRelaxed);
  const std::uint16_t label = slot.label.load(kRelaxed);
  const unsigned operation = slot.operation.load(kRelaxed);
  const std::uint8_t type = slot.type.load(kRelaxed);
  const std::uint8_t op = slot.op.load(kRelaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.id.load(kRelaxed) != record.id) return false;  // another one's by now

  const unsigned kind = operation & ~unsigned{kOnDevice};
  record.on_device = (operation & kOnDevice) != 0;
  const bool barrier = type == static_cast<std::uint8_t>(CarriedType::kNothing);
  if (!barrier) {
    record.type = type < kFirstCarriedType ? name(static_cast<DataType>(type))
                                           : name(static_cast<CarriedType>(type));
  }
  if (kind == kSend || kind == kReceive) {
    record.operation = kind == kSend ? "send" : "receive";
    record.peer = root_or_peer;
  } else {
    const auto collective = static_cast<Collective>(kind);
    record.operation = barrier ? std::string_view("barrier") : name(collective);
    if (has_root(collective)) record.root = root_or_peer;
    if (reduces(collective) && !barrier) record.op = name(static_cast<RedOp>(op));
  }
  record.algorithm = labels_[label];
  record.scheduled_ns = scale_.realtime_ns(scheduled);
  if (completed != 0) {
    record.state = State::kCompleted;
    record.completed_ns = scale_.realtime_ns(completed);
  } else if (started != 0) {
    record.state = State::kStarted;
  }
  if (started != 0) record.started_ns = scale_.realtime_ns(started);
  return true;
}

std::vector<CallRecords::Record> CallRecords::read(std::size_t newest) const {
  const Lock lock(mutex_);
  scale_.update();
  std::vector<Record> records;
  const Id last = last_.load(std::memory_order_acquire);
  const Id kept = std::min<Id>(last, blocks_.size() * capacity_);
  const Id wanted = last - std::min<Id>(kept, newest) + 1;
  for (Id id = all_ ? std::max(wanted, first_of_blocks_) : wanted; id <= last; ++id) {
    const Id in_blocks = all_ ? id - first_of_blocks_ : (id - 1) & (capacity_ - 1);
    const Slot& slot = blocks_[in_blocks / capacity_][in_blocks & (capacity_ - 1)];
    Record record;
    // A slot may have another record by now, or none.
    if (read_slot(slot, record) && record.id == id) records.push_back(std::move(record));
  }
  return records;
}

}  // namespace ropewalk::comm
