#include "handshake/message_words.h"

#include <atomic>

namespace ropewalk::handshake {

std::optional<MessageWords::Met> MessageWords::meet(MessageDirection direction, MessageEnd end,
                                                    std::uint64_t number,
                                                    const MessageBuffer& own) const noexcept {
  constexpr std::uint64_t kStates = 4;  // nobody was here, the sender, the receiver
  const std::uint64_t free = number / kMostAhead * kStates;
  auto& meeting =
      *reinterpret_cast<Meeting*>(line(direction, 2 * kWordsOfEnd + number % kMostAhead));
  const std::atomic_ref turn(meeting.turn);
  std::uint64_t found = turn.load();
  if (found < free) return std::nullopt;
  if (found == free) {
    meeting.buffers[static_cast<std::size_t>(end)] = own;
    const std::uint64_t mine = free + 1 + static_cast<std::uint64_t>(end);
    if (turn.compare_exchange_strong(found, mine)) return Met{true, {}};
  }
  const Met met{false, meeting.buffers[static_cast<std::size_t>(other(end))]};
  turn.store(free + kStates);
  return met;
}

}  // namespace ropewalk::handshake
