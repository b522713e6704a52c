// Messages that the sender writes straight into registered memory; see sender_direct.cc.
#include <chrono>
#include <thread>

#include "transport/window/receiver.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window {
namespace {

// A sender that is being driven ends its copies sooner; memory that others hold stays theirs then.
constexpr auto kEndTime = std::chrono::milliseconds(20);

}  // namespace

void WindowReceiver::state_target(Posted& posted, Entry& entry) {
  DirectWrites* const direct = mailbox_.path().direct_writes();
  const ReceiveBuffer& buffer = posted.buffer;
  if (direct == nullptr || buffer.registration == nullptr || buffer.bytes == 0 ||
      (posted.location == 0 && buffer.bytes < direct->smallest_direct())) {
    return;
  }
  const Target target = direct->target_of(buffer.data, buffer.bytes, *buffer.registration);
  posted.target = target.region != 0;
  entry.payload[1] = target.region;
  entry.payload[2] = target.offset;
}

void WindowReceiver::on_direct(const Entry& entry, Posted& posted) {
  if (!posted.target || posted.started || entry.bytes == 0) return senseless();
  if (entry.payload[3] != 0 && sum_of(posted, 0, entry.bytes) != entry.payload[3]) {
    return mailbox_.fail(
        Errc::kPeerLost,
        fmt::format("a message of {} bytes was written into registered memory with a wrong "
                    "checksum",
                    entry.bytes));
  }
  posted.arrived = entry.bytes;
  finish(posted);
}

void WindowReceiver::end_direct_writes(const Posted& posted) {
  Path& path = mailbox_.path();
  path.put_word(kAbandonedWord, 1);
  path.order_puts_before_reads();
  const auto end = std::chrono::steady_clock::now() + kEndTime;
  while (path.read_word(kWritingWord) != 0) {
    if (std::chrono::steady_clock::now() > end || path.peer_lost()) {
      path.direct_writes()->revoke(*posted.buffer.registration);
      return;
    }
    std::this_thread::yield();
  }
}

void WindowReceiver::on_try(const Entry& entry) {
  DirectWrites* const direct = mailbox_.path().direct_writes();
  if (direct == nullptr) return senseless();
  const Target target = direct->trial_target(entry.id);
  Entry answer;
  answer.command = Command::kTarget;
  answer.id = entry.id;
  answer.payload = {0, target.region, target.offset, 0};
  mailbox_.write(answer);
}

void WindowReceiver::on_tried(const Entry& entry) {
  DirectWrites* const direct = mailbox_.path().direct_writes();
  if (direct == nullptr || entry.bytes > kPatternBytes) return senseless();
  const std::string failure =
      try_pattern(entry, [&](std::span<std::byte> seen) { direct->fetch_trial(entry.id, seen); });
  if (!failure.empty()) direct->tried(entry.id, failure);
  answer(entry, failure.empty());
}

}  // namespace ropewalk::transport::window
