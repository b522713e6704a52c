#include "handshake/message_watch.h"

#include <atomic>

#include "executor/block/host_stop.h"

namespace ropewalk::handshake {
MessageWatch::MessageWatch(const MessageWords& words, executor::Control& control, int rank)
    : words_(words),
      control_(control),
      rank_(rank),
      seen_(static_cast<std::size_t>(words.ranks())),
      thread_([this](Clock::time_point now, std::chrono::nanoseconds limit) {
        return look(now, limit);
      }) {}

bool MessageWatch::look(Clock::time_point now, std::chrono::nanoseconds limit) {
  bool again = false;
  for (int peer = 0; peer < words_.ranks(); ++peer) {
    if (peer == rank_) continue;
    for (const MessageEnd end : {MessageEnd::kSends, MessageEnd::kReceives}) {
      again = look(peer, end, now, limit) || again;
    }
  }
  return again;
}

bool MessageWatch::look(int peer, MessageEnd end, Clock::time_point now,
                        std::chrono::nanoseconds limit) {
  const MessageDirection direction = direction_of(rank_, peer, end);
  const std::uint64_t began = MessageWords::load(words_.began(direction, end));
  if (began == 0) return false;
  const bool copies = (began & 1) != 0;
  const std::uint64_t number = began >> 1U;
  const bool done = MessageWords::load(words_.done(direction, end)) >= number;
  const bool waits = copies ? MessageWords::load(words_.ready(direction, end)) < number
                            : !done || MessageWords::load(words_.spoiled(direction, end)) != 0;
  Seen& seen = seen_[static_cast<std::size_t>(peer)][static_cast<std::size_t>(end)];
  if (std::atomic_ref(control_.abort).load() != 0) {
    if (waits && copies) {
      // The copy behind it runs, whose other end has not asked for it yet.
      MessageWords::store(words_.spoiled(direction, other(end)), 1);
      MessageWords::store(words_.ready(direction, end), number);
    } else if (waits) {
      MessageWords::store(words_.done(direction, end), number);
      MessageWords::store(words_.spoiled(direction, end), 0);
    }
    // Behind it may come more that has to end as well.
    return waits || !done;
  }
  if (!waits || seen.began != began) {
    seen = {began, now};
    return false;
  }
  if (limit.count() > 0 && now - seen.since >= limit) {
    executor::StopRecord record;
    record.reason = static_cast<std::uint32_t>(executor::StopReason::kMessageTimeout);
    record.peer = peer;
    executor::stop_once(control_, record);
  }
  return false;
}

}  // namespace ropewalk::handshake
