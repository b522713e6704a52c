#include "handshake/message_watch.h"

#include "executor/block/host_stop.h"

namespace ropewalk::handshake {
namespace {

// As HandshakeWatch.
constexpr std::chrono::milliseconds kMessagePeriod{5};
constexpr std::chrono::microseconds kMessageReleasePause{50};

}  // namespace

MessageWatch::MessageWatch(const MessageWords& words, executor::Control& control, int rank)
    : words_(words),
      control_(control),
      rank_(rank),
      seen_(static_cast<std::size_t>(words.ranks())),
      thread_([this] { run(); }) {}

MessageWatch::~MessageWatch() {
  ends_ = true;
  thread_.join();
}

void MessageWatch::run() {
  while (!ends_) {
    if (look(Clock::now())) {
      std::this_thread::sleep_for(kMessageReleasePause);
    } else {
      std::this_thread::sleep_for(kMessagePeriod);
    }
  }
}

bool MessageWatch::look(Clock::time_point now) {
  bool again = false;
  for (int peer = 0; peer < words_.ranks(); ++peer) {
    if (peer == rank_) continue;
    for (const MessageEnd end : {MessageEnd::kSends, MessageEnd::kReceives}) {
      again = look(peer, end, now) || again;
    }
  }
  return again;
}

bool MessageWatch::look(int peer, MessageEnd end, Clock::time_point now) {
  const MessageDirection direction =
      end == MessageEnd::kSends ? MessageDirection{rank_, peer} : MessageDirection{peer, rank_};
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
  const std::chrono::nanoseconds limit{timeout_ns_.load()};
  if (limit.count() > 0 && now - seen.since >= limit) {
    executor::StopRecord record;
    record.reason = static_cast<std::uint32_t>(executor::StopReason::kMessageTimeout);
    record.peer = peer;
    executor::stop_once(control_, record);
  }
  return false;
}

}  // namespace ropewalk::handshake
