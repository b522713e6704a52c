#include "capi/mp/stream_queue.h"

#include <atomic>

#include "capi/mp/failure.h"
#include "ropewalk/compat/mp.h"

namespace ropewalk::mp {

bool word_is(const std::uint32_t* word, std::uint32_t value, int condition) {
  // An atomic_ref of something that may be written needs a pointer without const.
  const std::uint32_t now =
      std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
  switch (condition) {
    case MP_WAIT_EQ: return now == value;
    case MP_WAIT_AND: return (now & value) != 0;
    default: return static_cast<std::int32_t>(now - value) >= 0;
  }
}

void StreamQueue::trigger() {
  check(rwSignal(self_, slot_, 1, words_, stream_, nullptr));
  ++triggers_;
  ++held_;
  operations_.push_back({StreamStep::kTriggered, nullptr, triggers_, nullptr, 0, 0});
}

void StreamQueue::append(std::span<const StreamOperation> operations, bool blocks) {
  if (words_ != nullptr) trigger();
  operations_.insert(operations_.end(), operations.begin(), operations.end());
  if (words_ != nullptr && blocks) {
    check(rwWaitSignal(self_, slot_ + 1, 1, words_, stream_, nullptr));
    ++held_;
    operations_.push_back({StreamStep::kRelease, nullptr, 0, nullptr, 0, 0});
    trigger();
  }
  for (const StreamOperation& operation : operations) {
    if (operation.step == StreamStep::kPost) operation.request->state = State::kQueued;
    if (operation.step != StreamStep::kWait) continue;
    operation.request->told_to_wait = true;
    ++operation.request->waiting_streams;
    operations_.push_back({StreamStep::kPassed, operation.request, 0, nullptr, 0, 0});
  }
}

bool StreamQueue::run(const StreamOperation& operation,
                      const std::function<void(mp_request&)>& post) {
  switch (operation.step) {
    case StreamStep::kTriggered: {
      std::uint64_t raised = 0;
      check(rwSignalCount(self_, slot_, words_, &raised));
      if (raised < operation.count) return false;
      --held_;
      return true;
    }
    case StreamStep::kRelease:
      check(rwSignal(self_, slot_ + 1, 1, words_, nullptr, nullptr));
      --held_;
      return true;
    case StreamStep::kPost: post(*operation.request); return true;
    case StreamStep::kWait: return operation.request->ended();
    case StreamStep::kPassed: --operation.request->waiting_streams; return true;
    case StreamStep::kWaitWord:
      return word_is(operation.word, operation.value, operation.condition);
    case StreamStep::kWriteWord:
      std::atomic_ref(*operation.word).store(operation.value, std::memory_order_release);
      return true;
  }
  return true;
}

bool StreamQueue::poll(const std::function<void(mp_request&)>& post) {
  bool moved = false;
  while (!operations_.empty() && run(operations_.front(), post)) {
    operations_.pop_front();
    moved = true;
  }
  return moved;
}

void StreamQueue::fail(const std::string& text) {
  for (const StreamOperation& operation : operations_) {
    if (operation.step == StreamStep::kPost) operation.request->end(text);
    if (operation.step == StreamStep::kPassed) --operation.request->waiting_streams;
    // May itself fail: then Ropewalk has ended the stream's wait.
    if (operation.step == StreamStep::kRelease) {
      (void)rwSignal(self_, slot_ + 1, 1, words_, nullptr, nullptr);
    }
  }
  operations_.clear();
  held_ = 0;
}

}  // namespace ropewalk::mp
