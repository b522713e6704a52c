#include "handshake/copied_messages.h"

#include <thread>

#include "core/error.h"
#include "executor/block/host_stop.h"

namespace ropewalk::handshake {

namespace gpus = transport::window;

CopiedMessages::CopiedMessages(const gpus::CudaApi& cuda, const MessageWords& words,
                               executor::Control& control, int rank)
    : cuda_(cuda),
      words_(words),
      control_(control),
      rank_(rank),
      lanes_(static_cast<std::size_t>(words.ranks())),
      operations_(cuda, words),
      watch_(words, control, rank) {
  RW_ASSERT(words.ranks() <= kMostRanks);
  for (int peer = 0; peer < words.ranks(); ++peer) {
    if (peer == rank_) continue;
    for (const MessageEnd end : {MessageEnd::kSends, MessageEnd::kReceives}) {
      cuda_.check(cuda_.stream_create(&lane(peer, end).stream, gpus::kCuStreamNonBlocking, 0),
                  "cuStreamCreateWithPriority (for messages by copy engines)");
    }
  }
}

CopiedMessages::~CopiedMessages() {
  for (const std::array<Lane, 2>& of_peer : lanes_) {
    for (const Lane& one : of_peer) {
      if (one.stream != nullptr) cuda_.warn(cuda_.stream_destroy(one.stream), "cuStreamDestroy");
    }
  }
}

void CopiedMessages::set_timeout(std::chrono::nanoseconds limit) noexcept {
  timeout_ = limit;
  watch_.set_timeout(limit);
}

std::optional<CopiedMessage> CopiedMessages::meet(int peer, MessageEnd end,
                                                  const MessageBuffer& buffer,
                                                  std::uint64_t address) {
  CopiedMessage message;
  message.peer = peer;
  message.end = end;
  message.number = lane(peer, end).next;
  message.own = address;
  const auto since = std::chrono::steady_clock::now();
  std::optional<MessageWords::Met> met;
  while (!(met = words_.meet(direction_of(rank_, peer, end), end, message.number, buffer))
              .has_value()) {
    if (std::atomic_ref(control_.abort).load() != 0) {
      throw Error(Errc::kAborted, "rank {} stops, {} messages ahead of rank {}", rank_,
                  MessageWords::kMostAhead, peer);
    }
    if (timeout_.count() > 0 && std::chrono::steady_clock::now() - since > timeout_) {
      throw Error(Errc::kTimeout,
                  "rank {} is {} messages ahead of rank {}, which has not called for them within "
                  "ROPEWALK_TIMEOUT",
                  rank_, MessageWords::kMostAhead, peer);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  ++lane(peer, end).next;
  if (met->first) return buffer.window != 0 ? std::optional(message) : std::nullopt;
  message.copies = true;
  message.theirs = met->theirs;
  if (message.theirs.bytes != buffer.bytes) {
    // The peer waits, which learns of it as of any rank that stops.
    executor::StopRecord record;
    record.reason = static_cast<std::uint32_t>(executor::StopReason::kWrongSize);
    record.peer = peer;
    record.got = message.theirs.bytes;
    record.expected = buffer.bytes;
    executor::stop_once(control_, record);
    const bool sends = end == MessageEnd::kSends;
    throw Error(Errc::kInvalidUsage, "rank {} {} {} bytes {} rank {}, which {} {}", rank_,
                sends ? "sends" : "receives", buffer.bytes, sends ? "to" : "from", peer,
                sends ? "receives" : "sends", message.theirs.bytes);
  }
  return message.theirs.window != 0 ? std::optional(message) : std::nullopt;
}

void CopiedMessages::copy(const CopiedMessage& message) {
  const MessageDirection on = direction_of(rank_, message.peer, message.end);
  const gpus::CuStream stream = lane(message.peer, message.end).stream;
  operations_.wait_for_least(words_.began(on, message.end), 2 * (message.number + 1));
  operations_.wait_for_least(words_.ready(on, message.end), message.number + 1);
  operations_.submit(stream, "cuStreamBatchMemOp (before a message's copy)");
  const bool sends = message.end == MessageEnd::kSends;
  cuda_.check(cuda_.copy(sends ? message.peers : message.own, sends ? message.own : message.peers,
                         message.theirs.bytes, stream),
              "cuMemcpyAsync (a message between two GPUs)");
  operations_.write(words_.done(on, other(message.end)), message.number + 1);
  operations_.write(words_.done(on, message.end), message.number + 1);
  operations_.submit(stream, "cuStreamBatchMemOp (behind a message's copy)");
}

void CopiedMessages::begin(const std::vector<CopiedMessage>& messages, gpus::CuStream stream) {
  for (const CopiedMessage& message : messages) {
    const MessageDirection on = direction_of(rank_, message.peer, message.end);
    if (!message.copies)
      operations_.write(words_.ready(on, other(message.end)), message.number + 1);
    operations_.write(words_.began(on, message.end),
                      2 * (message.number + 1) + (message.copies ? 1 : 0));
  }
  operations_.submit(stream, "cuStreamBatchMemOp (where messages begin)");
  for (const CopiedMessage& message : messages) {
    if (message.copies) copy(message);
  }
}

void CopiedMessages::end(const std::vector<CopiedMessage>& messages, gpus::CuStream stream) {
  for (const CopiedMessage& message : messages) {
    const MessageDirection on = direction_of(rank_, message.peer, message.end);
    operations_.wait_for_least(words_.done(on, message.end), message.number + 1);
    if (!message.copies) operations_.wait_for(words_.spoiled(on, message.end), 0);
  }
  operations_.submit(stream, "cuStreamBatchMemOp (where messages end)");
}

}  // namespace ropewalk::handshake
