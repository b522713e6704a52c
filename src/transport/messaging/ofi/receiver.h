// The receiving end of a connection over a fabric; how messages travel is in connection.h.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/messaging/ofi/connection.h"
#include "transport/receive_request.h"

namespace ropewalk::transport::ofi {

class Receiver final : public ReceiveConnection, private Connection {
 public:
  Receiver(std::shared_ptr<Endpoint> endpoint, SideChannel side, std::string peer, Verify verify,
           tcp::Linger& linger);
  ~Receiver() override;
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  [[nodiscard]] bool ready() override;
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  std::unique_ptr<Registration> register_dma_buf(void* data, std::size_t bytes,
                                                 const DmaBuf& buffer) override;
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override;
  /// Reads from each GPU's buffers over the NIC, behind which what it wrote is in the GPU's memory.
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> buffers) override;
  [[nodiscard]] std::string describe() const override;

 private:
  friend class ReceiveRequest<Receiver>;
  friend class FlushRequest;
  struct Posted {
    ReceiveBuffer buffer;
    std::uint32_t index = 0;
    std::size_t bytes = 0;  // of the message, once known
    std::atomic<bool> finished = false;
    bool announced = false;      // the peer may write to it, now or when it is told of it
    bool known_to_peer = false;  // was told to the peer
    std::uint32_t ticket = 0;    // 0: none
    std::uint64_t address = 0;   // and key: of its buffer, as the peer needs them
    std::uint64_t key = 0;
    bool wanted = false;  // granted, or to be granted as soon as the provider takes the receive
    Region region;        // for this message alone
    void* descriptor = nullptr;
    // Of a tagged receive; or of what gets a small message into GPU memory, or flushes that.
    Operation operation;
    FabricRegistration* gpu = nullptr;  // of a buffer in GPU memory
    std::uint64_t checksum = 0;         // of a message there, or of a tagged one; 0: none
    bool settling = false;              // its message has come, and is not in its buffer yet
    Receiver* receiver = nullptr;
  };
  struct Requested {
    std::uint64_t bytes;
    std::uint64_t checksum;  // 0: none
  };
  // What the NIC has not been able to take yet for a buffer in GPU memory: a small message, or with
  // no data a flush before the message's checksum is compared.
  struct ForGpu {
    Posted* posted;
    std::vector<std::byte> data;
  };
  struct Trials {
    std::vector<std::byte> memory;
    std::array<Posted, kPatternBytes.size()> posted;
  };
  using Index = std::unordered_map<std::uint32_t, std::uint32_t>;

  void post(Posted& posted);
  void withdraw(Posted& posted);
  void progress();
  void throw_if_failed();

  void post_locked(Posted& posted) RW_REQUIRES(fabric_.mutex);
  void withdraw_locked(Posted& posted) RW_REQUIRES(fabric_.mutex);
  /// What was to be announced is told by send_announcements().
  void announce(Posted& posted) RW_REQUIRES(fabric_.mutex);
  /// @param all  also if the sender knows enough receives
  void send_announcements(bool all) RW_REQUIRES(fabric_.mutex);
  void withdraw_announcement(Posted& posted) RW_REQUIRES(fabric_.mutex);
  void match_request(Posted& posted, const Requested& message) RW_REQUIRES(fabric_.mutex);
  bool grant(Posted& posted) RW_REQUIRES(fabric_.mutex);
  void tagged_ended(Posted& posted, const std::string& error) RW_NO_THREAD_ANALYSIS;
  void take_eager(Posted& posted, const std::byte* data, std::uint64_t bytes,
                  std::uint64_t checksum) RW_REQUIRES(fabric_.mutex);
  /// A small message came, perhaps before its receive.
  /// @return false: the receiver holds more of these than it may
  bool take_small(std::uint32_t tag, std::uint32_t index, std::span<const std::byte> data,
                  std::uint64_t checksum) RW_REQUIRES(fabric_.mutex);
  /// @return false: what came is not a list of small messages
  bool take_joined_messages(std::span<const std::byte> all) RW_REQUIRES(fabric_.mutex);
  void finish(Posted& posted, std::uint64_t bytes, std::uint64_t checksum)
      RW_REQUIRES(fabric_.mutex);
  /// Whether it is announced before the sender asks for it.
  [[nodiscard]] static bool is_announced_early(const Posted& posted);
  void put_on_gpu(Posted& posted, std::span<const std::byte> data, std::uint64_t checksum)
      RW_REQUIRES(fabric_.mutex);
  void check_on_gpu(Posted& posted, std::uint64_t bytes, std::uint64_t checksum)
      RW_REQUIRES(fabric_.mutex);
  /// Starts the operation after which what has come is in the GPU's memory; kEnded is told.
  /// @param data to be written there; none for a flush
  template <void (Receiver::*kEnded)(Posted&, const std::string&)>
  void settle(Posted& posted, std::span<const std::byte> data) RW_REQUIRES(fabric_.mutex);
  void start_all_for_gpu() RW_REQUIRES(fabric_.mutex);
  /// @return false: the provider takes nothing now
  bool start_for_gpu(const ForGpu& work) RW_REQUIRES(fabric_.mutex);
  void set_settling(Posted& posted, bool now);
  void put_ended(Posted& posted, const std::string& error) RW_NO_THREAD_ANALYSIS;
  void on_gpu_checked(Posted& posted, const std::string& error) RW_NO_THREAD_ANALYSIS;
  void end(Posted& posted) RW_REQUIRES(fabric_.mutex);
  void fail_checksum(std::uint64_t bytes) RW_REQUIRES(fabric_.mutex);
  void return_credits(std::uint64_t bytes) RW_REQUIRES(fabric_.mutex);
  void judge_trials() RW_REQUIRES(fabric_.mutex);
  /// The next receives of these tags have their messages here.
  [[nodiscard]] bool held(std::span<const ReceiveBuffer> buffers) const;
  /// The sender has ended, and nothing of its is to come any more.
  [[nodiscard]] bool exhausted();
  Posted* find(std::uint32_t tag, std::uint32_t index);
  [[nodiscard]] std::uint32_t next_of(const Index& counters, std::uint32_t tag) const;

  void handle(const Header& header,
              std::span<const std::byte> payload) override RW_NO_THREAD_ANALYSIS;
  void on_written(std::uint32_t ticket, std::uint64_t bytes) override RW_NO_THREAD_ANALYSIS;
  void on_greeted() override RW_NO_THREAD_ANALYSIS;
  void on_note(const SideChannel::Received& note) override;
  void attend() override RW_NO_THREAD_ANALYSIS;
  void on_failed() override {}

  struct Early {  // an eager message that came before its receive
    std::vector<std::byte> data;
    std::uint64_t checksum;
  };
  bool ready_ = false;
  /// The sender had begun to write it when it stopped, and had not ended.
  [[nodiscard]] bool half_written(const Posted& posted) const;
  /// The sender has stopped, and nothing that it wrote to this memory can be in flight.
  [[nodiscard]] bool left_alone(const Posted& posted) const;
  bool stopped_ = false;                  // the sender writes no more
  std::optional<std::uint64_t> total_;    // messages that the sender has sent until its end
  std::optional<std::uint64_t> written_;  // those of them that it has written, until it stopped
  std::vector<std::uint64_t> unwritten_;  // whose writing it had begun, then
  std::uint64_t arrived_ = 0;
  std::uint64_t written_arrived_ = 0;  // those of them that it has written
  Clock::time_point last_arrival_{};
  std::uint64_t owed_credits_ = 0;
  unsigned small_in_row_ = 0;  // messages that did not need the announcement of their receive
  std::size_t active_ = 0;
  Index next_;                        // of each tag's next receive
  std::vector<Posted*> posted_;       // not finished, in order
  std::vector<Posted*> to_announce_;  // in order
  std::size_t known_to_peer_ = 0;     // of those in posted_
  std::vector<Posted*> to_grant_;     // whose tagged receive was refused
  std::deque<ForGpu> for_gpu_;
  std::size_t settling_ = 0;
  std::unordered_map<std::uint64_t, Early> early_;
  std::unordered_map<std::uint64_t, Requested> requests_;  // before their receives
  std::unique_ptr<Trials> trials_;
};

}  // namespace ropewalk::transport::ofi
