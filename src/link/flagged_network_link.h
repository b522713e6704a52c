// Network links of protocol ll, between blocks of GPUs: their data carries its flags.
//
// A block writes lines into slots of the host's memory and posts how many bytes to wait for
// (executor/block/posts.h): no fence, and nothing that it would have to read over PCIe. The
// sender's thread takes the words out of the lines as their flags come, and sends the chunks that
// are whole as one message: a later chunk of a round may depend on what the peer answers. The
// receiver's thread lays the words out in lines of its own slots, with the same flags, as both ends
// count the same rounds; the block there waits for data and flag in one flight. (NCCL's LL over a
// network sends the lines; without the flags a message has half the bytes, and a transport may
// write it in any order.)
//
// A message: the words of some chunks of a round, each chunk in whole words; then two numbers of
// two bytes for each chunk, its bytes and where its lines are in the slot; then a FlaggedTrailer.
//
// Threads: one at a time, besides the block's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/block/launch.h"
#include "executor/block/posts.h"
#include "link/network_link.h"

namespace ropewalk::link {

/// Bytes of data that a round may send over a link.
inline constexpr std::size_t kFlaggedSlotBytes = 8192;
/// Of the longest message: a whole round.
inline constexpr std::size_t kFlaggedMessageBytes = 9216;
/// Messages of a link that may be in flight.
inline constexpr std::uint32_t kFlaggedMessages = 8;

/// The tags of calls, which travel beside the data (executor/block/launch.h); pinned. Null: none.
struct FlaggedTags {
  const executor::CallTag* own = nullptr;  ///< of this rank's last collective
  executor::CallTag* of_others = nullptr;  ///< [rank][kBoardTags]
};

/// What an end of such a link asks its FifoMaker for.
[[nodiscard]] std::size_t flagged_end_bytes() noexcept;

class FlaggedSender final : public NetworkSender {
 public:
  /// @throws Error as `make_memory`
  FlaggedSender(int peer, const FifoMaker& make_memory, const FlaggedTags& tags);
  bool poll() override;
  [[nodiscard]] bool drained() override;

 private:
  // Takes the chunks of the round at work that have come whole.
  void gather();
  [[nodiscard]] executor::Post post() const;
  void close_message();
  [[nodiscard]] std::byte* message(std::uint64_t number) const noexcept;

  FlaggedTags tags_;
  std::byte* slots_;
  std::uint64_t round_ = 1;  // at work
  std::uint32_t chunk_ = 0;  // the next of it
  // The message at work, number started_ + 1.
  std::size_t taken_ = 0;  // bytes of words
  std::vector<std::uint16_t> table_;
  bool ends_round_ = false;
  std::size_t message_bytes_ = 0;  // once it is whole; else 0
};

class FlaggedReceiver final : public NetworkReceiver {
 public:
  /// @throws Error as `make_memory`
  FlaggedReceiver(int peer, const FifoMaker& make_memory, const FlaggedTags& tags);
  bool poll() override;

 private:
  // Lays out the message at hand. @throws Error kPeerLost where it is none
  void lay_out();
  [[nodiscard]] std::byte* message(std::uint64_t number) const noexcept;

  FlaggedTags tags_;
  std::byte* slots_;
  std::uint64_t round_ = 1;  // at work
  std::uint64_t laid_ = 0;   // messages
  std::size_t arrived_ = 0;  // bytes of message laid_ + 1; 0: not there
};

}  // namespace ropewalk::link
