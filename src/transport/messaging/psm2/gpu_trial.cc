#include "transport/messaging/psm2/gpu_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>

#include "core/error.h"
#include "core/random.h"
#include "transport/messaging/gpus.h"
#include "transport/messaging/psm2/connection.h"

namespace ropewalk::transport::psm2 {
namespace {

class GpuTrial {
 public:
  GpuTrial(Endpoint& port, window::Gpu& gpu)
      : port_(port), memory_(gpu, *std::max_element(kPatternBytes.begin(), kPatternBytes.end())) {
    std::uint16_t random = 0;
    fill_random(std::as_writable_bytes(std::span(&random, 1)));
    fill_random(std::as_writable_bytes(std::span(&nonce_, 1)));
    const Spin lock(port_.mutex);
    identity_ = port_.take_number() << 16U | random;
  }
  ~GpuTrial() {
    const Spin lock(port_.mutex);
    port_.drop_messages_to(identity_);
    port_.give_number(identity_ >> 16U);
  }
  GpuTrial(const GpuTrial&) = delete;
  GpuTrial& operator=(const GpuTrial&) = delete;

  void run() {
    self_ = reach_itself();
    for (const std::size_t bytes : kPatternBytes) {
      memory_.draw_on_host(bytes);
      move("to it", {memory_.sent(), 0}, {memory_.on_gpu(), abi::kFlagGdrCopyOnly}, bytes);
      if (!memory_.is_on_gpu(0)) throw came_wrong("to it", bytes);
      memory_.draw_on_gpu(bytes);
      move("from it", {memory_.on_gpu(), abi::kFlagGdrCopyOnly}, {memory_.seen(), 0}, bytes);
      if (!memory_.is_seen()) throw came_wrong("from it", bytes);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kPatience = std::chrono::seconds(2);
  struct End {
    std::byte* data;
    std::uint32_t flags;
  };

  static Error came_wrong(const char* what, std::size_t bytes) {
    return {Errc::kSystem, "a message of {} bytes {} reports success, but arrived changed", bytes,
            what};
  }
  [[nodiscard]] Error failed(const char* what, std::size_t bytes, const char* call,
                             abi::Error error) const {
    return {Errc::kSystem, "a message of {} bytes {}: {}: {}", bytes, what,
            call,          port_.library().words(error)};
  }

  // A helper thread connects.
  abi::Address* reach_itself() {
    const Clock::time_point since = Clock::now();
    {
      const Spin lock(port_.mutex);
      port_.reach(port_.id());
    }
    for (;; std::this_thread::sleep_for(std::chrono::microseconds(100))) {
      const Spin lock(port_.mutex);
      const Endpoint::Peer& self = port_.peer(port_.id());
      if (self.reach == Endpoint::Reach::kConnected) return self.address;
      if (self.reach == Endpoint::Reach::kFailed) {
        throw Error(Errc::kSystem, "the endpoint does not reach itself: {}", self.why_failed);
      }
      if (Clock::now() - since > kPatience) {
        throw Error(Errc::kTimeout, "{}", "the endpoint does not reach itself: it is waiting");
      }
    }
  }

  // As a connection sends and receives.
  void move(const char* what, End from, End to, std::size_t bytes) {
    const abi::Tag tag{{messaging::kPatternTag, identity_, nonce_}};
    abi::QueueRequest* receive = nullptr;
    abi::QueueRequest* send = nullptr;
    {
      const Spin lock(port_.mutex);
      if (port_.retired()) throw Error(Errc::kPeerLost, "{}", "the endpoint is no longer used");
      abi::Error error =
          port_.start_receive(tag, {{kWhole, kWhole, kWhole}}, to.flags, to.data, bytes, receive);
      if (error != abi::kOk) throw failed(what, bytes, "psm2_mq_irecv2", error);
      const bool copied = bytes <= kEagerBytes && from.flags == 0;
      if (copied) {
        error = port_.send(self_, tag, from.data, bytes);
      } else {
        error = port_.start_send(self_, from.flags, tag, from.data, bytes, send);
      }
      if (error != abi::kOk) {
        port_.withdraw(receive);
        throw failed(what, bytes, copied ? "psm2_mq_send2" : "psm2_mq_isend2", error);
      }
    }
    finish(what, bytes, receive, send);
  }

  void finish(const char* what, std::size_t bytes, abi::QueueRequest* receive,
              abi::QueueRequest* send) {
    const Clock::time_point since = Clock::now();
    abi::Status received{};
    abi::Status sent{};
    for (;; std::this_thread::yield()) {
      const Spin lock(port_.mutex);
      port_.poll();
      if (receive != nullptr && port_.ended(receive, received)) receive = nullptr;
      if (send != nullptr && port_.ended(send, sent)) send = nullptr;
      if (receive == nullptr && send == nullptr) break;
      const bool late = Clock::now() - since > kPatience;
      if (!late && !port_.retired()) continue;
      // Where libpsm2 keeps one of the two, it has the memory still.
      const bool withdrawn = receive == nullptr || port_.withdraw(receive);
      if (!withdrawn || send != nullptr) {
        port_.retire(fmt::format("a message of {} bytes for a trial does not end", bytes));
      }
      throw Error(Errc::kTimeout, "a message of {} bytes {} does not end", bytes, what);
    }
    if (sent.error != abi::kOk) throw failed(what, bytes, "psm2_mq_isend2", sent.error);
    if (received.error != abi::kOk) throw failed(what, bytes, "psm2_mq_irecv2", received.error);
    if (received.received_bytes != bytes) throw came_wrong(what, bytes);
  }

  Endpoint& port_;
  messaging::TrialMemory memory_;
  std::uint32_t identity_ = 0;  // as a receiving end's
  std::uint32_t nonce_ = 0;
  abi::Address* self_ = nullptr;
};

}  // namespace

std::string try_gpu(Endpoint& port, window::Gpu& gpu) {
  try {
    GpuTrial(port, gpu).run();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace ropewalk::transport::psm2
