// The sending end of a connection over a fabric; how messages travel is in connection.h.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/messaging/ofi/connection.h"

namespace ropewalk::transport::ofi {

class SendRequest;

class Sender final : public SendConnection, private Connection {
 public:
  Sender(std::shared_ptr<Endpoint> endpoint, SideChannel side, std::string peer, Verify verify,
         tcp::Linger& linger);
  ~Sender() override;
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  [[nodiscard]] bool ready() override;
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  std::unique_ptr<Registration> register_dma_buf(void* data, std::size_t bytes,
                                                 const DmaBuf& buffer) override;
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* registration) override;
  /// A checksum covers one contiguous buffer, and a provider that needs all memory registered would
  /// have the data registered for this message alone.
  [[nodiscard]] bool splits_messages() const override {
    return verify_ != Verify::kAll && !fabric_.needs_local();
  }
  std::unique_ptr<Request> send_split(std::span<const std::byte> head, const void* data,
                                      std::size_t bytes, std::uint32_t tag) override;
  void more_follow(bool follow) override { more_follow_ = follow; }
  [[nodiscard]] std::string describe() const override;

 private:
  friend class SendRequest;
  friend class CopiedSend;
  struct PostedReceive {  // of the peer
    std::uint64_t bytes;
    std::uint64_t value;  // the buffer's address, or the tag to send with
    std::uint64_t key;
    std::uint32_t ticket;  // for the word of a write; 0: none
  };

  std::unique_ptr<SendRequest> start(std::span<const std::byte> head, const void* data,
                                     std::size_t bytes, std::uint32_t tag,
                                     Registration* registration) RW_REQUIRES(fabric_.mutex);
  bool start_eager(SendRequest& request) RW_REQUIRES(fabric_.mutex);
  /// As start(), for a small message that is over when it has been copied: most are.
  /// @return null: start() decides
  std::unique_ptr<Request> send_copied(std::span<const std::byte> head, const void* data,
                                       std::size_t bytes, std::uint32_t tag)
      RW_REQUIRES(fabric_.mutex);
  /// Adds a small message to those that leave together, if there is room among them.
  bool join(std::span<const std::byte> head, const void* data, std::size_t bytes, std::uint32_t tag)
      RW_REQUIRES(fabric_.mutex);
  /// @return whether none is left here
  bool send_joined() RW_REQUIRES(fabric_.mutex);
  [[nodiscard]] Header eager_header(std::uint32_t tag, std::uint32_t index,
                                    std::size_t bytes) const;
  /// A small message has been given to the provider.
  void count_eager(const Header& header, Endpoint::Sent sent, bool over);
  /// It needs no receive that the sender knows.
  void take_credits(std::uint32_t tag, std::uint32_t index, std::size_t bytes);
  /// Index of the tag's next message.
  std::uint32_t& next_of(std::uint32_t tag);
  void start_large(SendRequest& request) RW_REQUIRES(fabric_.mutex);
  /// A receive was announced or granted.
  void take_receive(std::uint32_t tag, std::uint32_t index, const PostedReceive& receive)
      RW_REQUIRES(fabric_.mutex);
  void match(SendRequest& request, const PostedReceive& receive) RW_REQUIRES(fabric_.mutex);
  /// @return whether the provider took the next piece, or there is none
  bool post_piece(SendRequest& request) RW_REQUIRES(fabric_.mutex);
  void copy_ended(const std::string& error) RW_NO_THREAD_ANALYSIS;
  void piece_ended(SendRequest& request, const std::string& error) RW_NO_THREAD_ANALYSIS;
  /// Whether a write of `piece_bytes` of it tells the receiver all that kDone would.
  [[nodiscard]] bool tells_itself(const SendRequest& request, std::size_t piece_bytes) const;
  void tell_done(SendRequest& request) RW_REQUIRES(fabric_.mutex);
  /// The receiver knows of it, or will before anything that is sent later.
  void set_told(SendRequest& request);
  /// 0 unless VERIFY=all.
  [[nodiscard]] std::uint64_t checksum_of(const SendRequest& request) const;
  void abandon(SendRequest& request) RW_REQUIRES(fabric_.mutex);
  void fail_if_peer_ended(const SendRequest& request) RW_REQUIRES(fabric_.mutex);

  void handle(const Header& header,
              std::span<const std::byte> payload) override RW_NO_THREAD_ANALYSIS;
  void on_greeted() override RW_NO_THREAD_ANALYSIS;
  void on_note(const SideChannel::Received& note) override;
  void attend() override RW_NO_THREAD_ANALYSIS;
  void on_failed() override;
  /// Tells the receiver, once the provider has nothing more of this end's, that no further message
  /// is written: a list of 64-bit numbers, first that of the messages written whole (those behind
  /// which kDone was sent), then key_of() each that was begun and not ended.
  void tell_stopped();

  void begin_trials() RW_REQUIRES(fabric_.mutex);
  /// Finishes it if nothing of it is left to do.
  void judge(SendRequest& request);

  std::atomic<bool> verified_ = false;
  bool patterns_right_ = false;  // says the receiver
  bool stopped_told_ = false;
  std::uint64_t written_ = 0;             // messages whose kDone was sent
  std::vector<std::uint64_t> unwritten_;  // keys of those whose writing has begun, and not ended
  std::uint64_t messages_ = 0;
  std::uint64_t credits_ = kEagerCredits;
  std::uint64_t unconfirmed_ = 0;  // bytes of small messages since the last that had a completion
  Operation copied_;               // of all these messages
  bool more_follow_ = false;
  std::vector<std::byte> joined_;           // small messages that have not left, as in a kJoined
  std::atomic<bool> holds_joined_ = false;  // there are such
  std::size_t active_ = 0;
  std::size_t under_way_ = 0;                              // pieces that the provider has
  std::unordered_map<std::uint32_t, std::uint32_t> next_;  // index of each tag's next message
  std::uint32_t* last_next_ = nullptr;                     // the last one asked for, of last_tag_
  std::uint32_t last_tag_ = 0;
  std::unordered_map<std::uint64_t, PostedReceive> announced_;  // for messages to come
  std::vector<SendRequest*> waiting_;                           // for their receives
  std::deque<SendRequest*> to_post_;  // matched, not yet given to the provider
  std::vector<std::byte> pattern_;
  std::vector<std::unique_ptr<SendRequest>> trials_;
};

}  // namespace ropewalk::transport::ofi
