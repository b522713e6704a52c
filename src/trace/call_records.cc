#include "trace/call_records.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "core/error.h"

namespace ropewalk::trace {

namespace {

// Of an element that travels; `type` as records keep it.
std::size_t bytes_of_type(std::uint8_t type) {
  return size_of(type < kFirstCarriedType ? static_cast<DataType>(type)
                                          : carrier_of(static_cast<CarriedType>(type)).type);
}

}  // namespace

CallRecords::CallRecords(std::size_t capacity, bool all) : capacity_(capacity), all_(all) {
  RW_ASSERT(capacity == 0 || std::has_single_bit(capacity));
  const Lock lock(mutex_);
  labels_.push_back(&label_numbers_.emplace(Label{}, 0).first->first);
  streams_.push_back(nullptr);
  if (capacity == 0) return;
  blocks_.push_back(std::make_unique<Slot[]>(capacity));
  newest_ = blocks_.back().get();
}

std::uint16_t CallRecords::label_of(std::string_view algorithm, std::string_view protocol,
                                    std::optional<std::vector<SentBytes>> sent) {
  const Lock lock(mutex_);
  Label label{std::string(algorithm), std::string(protocol), std::move(sent)};
  auto found = label_numbers_.find(label);
  if (found != label_numbers_.end()) return found->second;
  const std::size_t peers = label.sent.has_value() ? label.sent->size() : 0;
  if (label.sent.has_value() &&
      (labels_.size() >= kMostLabelsWithSent || num_sent_ + peers > kMostSent)) {
    label.sent.reset();
    found = label_numbers_.find(label);
    if (found != label_numbers_.end()) return found->second;
  }
  // Schedules of a user may have any number of names.
  if (labels_.size() >= kMostLabels) return 0;
  if (label.sent.has_value()) num_sent_ += peers;
  const auto number = static_cast<std::uint16_t>(labels_.size());
  labels_.push_back(&label_numbers_.emplace(std::move(label), number).first->first);
  return number;
}

std::uint16_t CallRecords::number_of(const void* stream) noexcept {
  const Lock lock(mutex_);
  auto found = std::find(streams_.begin(), streams_.end(), stream);
  if (found == streams_.end() && streams_.size() < UINT16_MAX) {
    try {
      streams_.push_back(stream);
      found = streams_.end() - 1;
    } catch (const std::bad_alloc&) {
      found = streams_.end();
    }
  }
  // Where there is no room for more it counts as the default one.
  const auto number = static_cast<std::uint16_t>(
      found == streams_.end() ? std::ptrdiff_t{0} : found - streams_.begin());
  last_stream_ = stream;
  last_stream_number_ = number;
  return number;
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

void CallRecords::set_device_times(const DeviceTimes* times) {
  const Lock lock(mutex_);
  device_times_.store(times, std::memory_order_release);
}

void CallRecords::keep_times() noexcept {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const DeviceTimes* times = device_times_.load(kRelaxed);
  if (times == nullptr) return;
  const Id last = last_.load(kRelaxed);
  if (!all_ && last - times_kept_ > capacity_) times_kept_ = last - capacity_;
  for (; times_kept_ < last; ++times_kept_) {
    Slot* slot = find(times_kept_ + 1);
    if (slot == nullptr) continue;
    const std::uint64_t kinds = slot->kinds.load(kRelaxed);
    const std::uint64_t packed = slot->started.load(kRelaxed);
    if ((kinds & kOnDevice) == 0 || packed == 0) continue;
    const StampRange range = StampRange::unpacked(packed);
    if (!times->about_to_be_reused(range)) return;
    const StampedTimes stamped = times->read(range);
    // As in add(): who reads meanwhile takes it for none.
    const Id id = times_kept_ + 1;
    slot->id.store(0, kRelaxed);
    std::atomic_thread_fence(std::memory_order_release);
    slot->started.store(stamped.begin, kRelaxed);
    slot->completed.store(stamped.end, kRelaxed);
    slot->kinds.store(kinds | kTimesKept, kRelaxed);
    slot->id.store(id, std::memory_order_release);
  }
}

void CallRecords::forget_times(Id begin, Id end) noexcept {
  for (Id id = begin; id < end; ++id) {
    if (Slot* slot = find(id)) slot->started.store(0, std::memory_order_relaxed);
  }
}

bool CallRecords::read_slot(const Slot& slot, Record& record, StampedTimes& stamped) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  record.id = slot.id.load(std::memory_order_acquire);
  if (record.id == 0) return false;
  record.call = slot.call.load(kRelaxed);
  record.count = slot.count.load(kRelaxed);
  const std::uint64_t scheduled = slot.scheduled.load(kRelaxed);
  std::uint64_t started = slot.started.load(kRelaxed);
  const std::uint64_t completed = slot.completed.load(kRelaxed);
  const std::uint64_t label_and_root = slot.label_and_root.load(kRelaxed);
  const std::uint64_t kinds = slot.kinds.load(kRelaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.id.load(kRelaxed) != record.id) return false;  // another one's by now

  const auto root_or_peer = static_cast<std::int32_t>(label_and_root >> kRootShift);
  const auto label = static_cast<std::uint32_t>(label_and_root);
  const auto operation = static_cast<std::uint8_t>(kinds);
  const auto type = static_cast<std::uint8_t>(kinds >> kTypeShift);
  const auto op = static_cast<std::uint8_t>(kinds >> kOpShift);
  const auto stream = static_cast<std::uint16_t>(kinds >> kStreamShift);
  const unsigned kind = operation & ~(unsigned{kOnDevice} | kTimesKept);
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
  const Label& how = *labels_[label & kLabel];
  record.algorithm = how.algorithm;
  record.protocol = how.protocol;
  record.sent = how.sent;
  if (kind == kReceive || record.count == 0) record.sent.emplace();
  if (kind == kSend) record.sent = {{record.peer, record.count * bytes_of_type(type)}};
  record.chunk_bytes = std::size_t{label >> kLabelBits} * kChunkUnit;
  record.scheduled_ns = scale_.realtime_ns(scheduled);
  if (record.on_device) {
    record.stream = streams_[stream];
    if ((operation & kTimesKept) != 0) {
      stamped = {started, completed};
      record.timed = started != 0;
    } else {
      const DeviceTimes* times = device_times_.load(std::memory_order_acquire);
      record.timed = times != nullptr && started != 0;
      if (record.timed) stamped = times->read(StampRange::unpacked(started));
    }
    return true;
  }
  if (completed != 0) {
    record.state = State::kCompleted;
    record.completed_ns = scale_.realtime_ns(completed);
    // Behind the last reading, which may be followed by a pause.
    const bool spared = completed == started && record.id > clock_.read_at();
    record.timed = started != 0 && !spared;
    if (started == 0) started = completed;
  } else if (started != 0) {
    record.state = State::kStarted;
  }
  if (started != 0) record.started_ns = scale_.realtime_ns(started);
  return true;
}

void CallRecords::set_times(std::vector<Record>& records,
                            const std::vector<StampedTimes>& stamped) const {
  std::vector<ClockedTimes> all;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (stamped[i].begin != 0) all.push_back({records[i].scheduled_ns, stamped[i]});
  }
  if (all.empty()) return;
  DeviceClock::Reading first{all.front().stamped.begin, all.front().scheduled_ns};
  DeviceClock::Reading last = first;
  const DeviceTimes* times = device_times_.load(std::memory_order_acquire);
  if (const auto readings = times != nullptr ? times->readings() : std::nullopt) {
    first = {readings->first.device_ns, scale_.realtime_ns(readings->first.ticks)};
    last = {readings->second.device_ns, scale_.realtime_ns(readings->second.ticks)};
  }
  const DeviceClock clock(first, last, all, scale_.realtime_ns(ticks()));
  for (std::size_t i = 0; i < records.size(); ++i) {
    Record& record = records[i];
    if (stamped[i].begin == 0) continue;
    record.state = State::kStarted;
    record.started_ns = clock.realtime_ns(stamped[i].begin, record.scheduled_ns);
    if (stamped[i].end == 0) continue;
    record.state = State::kCompleted;
    record.completed_ns = clock.realtime_ns(stamped[i].end, record.scheduled_ns);
  }
}

std::map<std::string, std::uint64_t> CallRecords::counts() const {
  std::map<std::string, std::uint64_t> counts;
  for (std::size_t kind = 0; kind < counts_.size(); ++kind) {
    const std::uint64_t count = counts_[kind].load(std::memory_order_relaxed);
    if (count == 0) continue;
    const std::string_view its = kind == kSend      ? "send"
                                 : kind == kReceive ? "receive"
                                 : kind == kBarrier ? "barrier"
                                                    : name(static_cast<Collective>(kind));
    counts[std::string(its)] = count;
  }
  return counts;
}

std::vector<CallRecords::Record> CallRecords::read(std::size_t newest) const {
  const Lock lock(mutex_);
  scale_.update();
  std::vector<Record> records;
  std::vector<StampedTimes> stamped;
  const Id last = last_.load(std::memory_order_acquire);
  const Id kept = std::min<Id>(last, blocks_.size() * capacity_);
  const Id wanted = last - std::min<Id>(kept, newest) + 1;
  for (Id id = all_ ? std::max(wanted, first_of_blocks_) : wanted; id <= last; ++id) {
    const Id in_blocks = all_ ? id - first_of_blocks_ : (id - 1) & (capacity_ - 1);
    const Slot& slot = blocks_[in_blocks / capacity_][in_blocks & (capacity_ - 1)];
    Record record;
    StampedTimes its;
    // A slot may have another record by now, or none.
    if (!read_slot(slot, record, its) || record.id != id) continue;
    records.push_back(std::move(record));
    stamped.push_back(its);
  }
  set_times(records, stamped);
  return records;
}

}  // namespace ropewalk::trace
