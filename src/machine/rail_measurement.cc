#include "machine/rail_measurement.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::machine {
namespace {

using SteadyClock = std::chrono::steady_clock;
using Requests = std::deque<std::unique_ptr<transport::Request>>;

constexpr std::uint32_t kHandleTag = 0x4e000000;
constexpr std::uint32_t kDoneTag = 0x4e010000;
constexpr std::uint32_t kFailedTag = 0x4e020000;
constexpr std::uint32_t kTag = 1;

constexpr std::size_t kMessageBytes = std::size_t{64} << 10;
constexpr std::size_t kUnderWay = 4;
constexpr auto kConnectTime = std::chrono::seconds(2);
// Once all others are done: what reaches the other host connects in milliseconds.
constexpr auto kConnectTimeOfLast = std::chrono::milliseconds(500);
constexpr auto kBurstTime = std::chrono::milliseconds(10);
constexpr auto kSpanTime = std::chrono::milliseconds(40);
constexpr int kLeastMessages = 4;
constexpr int kMostSpans = 8;
constexpr int kMostSpansOfOne = 3;
// Two spans after each other that differ by less show what the network sustains.
constexpr double kSteady = 0.05;

double seconds(SteadyClock::duration time) { return std::chrono::duration<double>(time).count(); }

// The end that receives and measures.
class Receiver {
 public:
  Receiver(bootstrap::Bootstrap& bootstrap, transport::Transport& transport, int device, int peer,
           std::uint32_t rail, int most_spans)
      : bootstrap_(bootstrap),
        peer_(peer),
        rail_(rail),
        most_spans_(most_spans),
        begun_(SteadyClock::now()),
        memory_(kUnderWay * kMessageBytes) {
    guarded([&] {
      listener_ = transport.listen(device);
      bootstrap.send(peer, kHandleTag | rail, listener_->handle());
    });
  }

  [[nodiscard]] bool done() const noexcept { return done_; }
  [[nodiscard]] double rate() const noexcept { return rate_; }

  // Nothing arrived yet.
  [[nodiscard]] bool silent() const noexcept { return messages_ == 0; }

  /// @param alone  all other rails are done, or silent
  bool poll(bool alone) {
    if (done_) return false;
    bool moved = false;
    guarded([&] {
      if (bootstrap_.try_recv(peer_, kFailedTag | rail_).has_value()) {
        throw Error(Errc::kPeerLost, "rank {} cannot reach this host over it", peer_);
      }
      if (connection_ == nullptr) {
        connection_ = listener_->accept();
        if (connection_ != nullptr) {
          registration_ = connection_->register_memory(memory_.data(), memory_.size(),
                                                       transport::MemoryKind::kHost);
        }
      }
      if (connection_ != nullptr) moved = receive();
      const SteadyClock::duration silence = SteadyClock::now() - begun_;
      if (messages_ == 0 &&
          silence > (alone ? kConnectTimeOfLast : SteadyClock::duration(kConnectTime))) {
        throw Error(Errc::kTimeout, "nothing arrived in {:.1f} s", seconds(silence));
      }
    });
    return moved;
  }

 private:
  template <typename Body>
  void guarded(Body&& body) {
    try {
      body();
    } catch (const Error& error) {
      log::info(log::kNet, "measuring a rail: {}", error.what());
      done_ = true;
    }
  }

  bool receive() {
    while (requests_.size() < kUnderWay) {
      std::byte* const data = memory_.data() + (posted_ % kUnderWay) * kMessageBytes;
      const transport::ReceiveBuffer buffer{data, kMessageBytes, kTag, registration_.get()};
      std::unique_ptr<transport::Request> request = connection_->receive(std::span(&buffer, 1));
      if (request == nullptr) break;
      requests_.push_back(std::move(request));
      ++posted_;
    }
    bool moved = false;
    while (!requests_.empty() && !done_ && requests_.front()->test().has_value()) {
      requests_.pop_front();
      arrived();
      moved = true;
    }
    return moved;
  }

  void arrived() {
    const SteadyClock::time_point now = SteadyClock::now();
    if (messages_++ == 0) first_ = now;
    if (now - first_ < kBurstTime) return;
    if (in_span_++ < 0) {
      since_ = now;
      return;
    }
    if (in_span_ < kLeastMessages || now - since_ < kSpanTime) return;
    const double rate = in_span_ * static_cast<double>(kMessageBytes) / seconds(now - since_);
    const bool steady = spans_ > 0 && std::abs(rate - last_rate_) <= kSteady * last_rate_;
    rate_ = spans_ == 0 ? rate : (rate + last_rate_) / 2;
    last_rate_ = rate;
    since_ = now;
    in_span_ = 0;
    done_ = steady || ++spans_ == most_spans_;
  }

  bootstrap::Bootstrap& bootstrap_;
  const int peer_;
  const std::uint32_t rail_;
  const int most_spans_;
  const SteadyClock::time_point begun_;
  std::vector<std::byte> memory_;
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<transport::ReceiveConnection> connection_;
  std::unique_ptr<transport::Registration> registration_;
  Requests requests_;
  std::uint64_t posted_ = 0;
  int messages_ = 0;
  int in_span_ = -1;  // messages since `since_`
  int spans_ = 0;
  SteadyClock::time_point first_;
  SteadyClock::time_point since_;
  double last_rate_ = 0;
  double rate_ = 0;
  bool done_ = false;
};

// The end that sends until the other one reports that it is done.
class Sender {
 public:
  Sender(bootstrap::Bootstrap& bootstrap, transport::Transport& transport, int device, int peer,
         std::uint32_t rail)
      : bootstrap_(bootstrap),
        transport_(transport),
        device_(device),
        peer_(peer),
        rail_(rail),
        memory_(kMessageBytes) {}

  [[nodiscard]] bool done() const noexcept { return done_; }

  bool poll() {
    if (done_) return false;
    if (bootstrap_.try_recv(peer_, kDoneTag | rail_).has_value()) {
      done_ = true;
      return true;
    }
    if (broken_) return false;
    try {
      return advance();
    } catch (const Error& error) {
      log::info(log::kNet, "measuring a rail: {}", error.what());
      broken_ = true;
      bootstrap_.send(peer_, kFailedTag | rail_, {});
      return false;
    }
  }

 private:
  bool advance() {
    if (connector_ == nullptr) {
      const std::optional<std::vector<std::byte>> bytes =
          bootstrap_.try_recv(peer_, kHandleTag | rail_);
      if (!bytes.has_value()) return false;
      transport::Handle handle{};
      std::copy_n(bytes->begin(), std::min(bytes->size(), handle.size()), handle.begin());
      connector_ = transport_.connect(device_, handle);
    }
    if (connection_ == nullptr) {
      connection_ = connector_->poll();
      if (connection_ == nullptr) return false;
      registration_ = connection_->register_memory(memory_.data(), memory_.size(),
                                                   transport::MemoryKind::kHost);
    }
    if (!connection_->ready()) return false;
    bool moved = false;
    while (requests_.size() < kUnderWay) {
      std::unique_ptr<transport::Request> request =
          connection_->send(memory_.data(), memory_.size(), kTag, registration_.get());
      if (request == nullptr) break;
      requests_.push_back(std::move(request));
      moved = true;
    }
    while (!requests_.empty() && requests_.front()->test().has_value()) {
      requests_.pop_front();
      moved = true;
    }
    return moved;
  }

  bootstrap::Bootstrap& bootstrap_;
  transport::Transport& transport_;
  const int device_;
  const int peer_;
  const std::uint32_t rail_;
  std::vector<std::byte> memory_;
  std::unique_ptr<transport::Connector> connector_;
  std::unique_ptr<transport::SendConnection> connection_;
  std::unique_ptr<transport::Registration> registration_;
  Requests requests_;
  bool broken_ = false;
  bool done_ = false;
};

}  // namespace

std::vector<int> first_ranks(std::span<const int> host_of_rank) {
  std::vector<int> first;
  std::set<int> seen;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    if (seen.insert(host_of_rank[rank]).second) first.push_back(static_cast<int>(rank));
  }
  return first;
}

std::vector<double> measure_rails(bootstrap::Bootstrap& bootstrap, transport::Transport& transport,
                                  const link::Rails& rails, std::span<const int> leaders,
                                  Deadline deadline, const std::function<void()>& waiting) {
  const int self = bootstrap.rank();
  const auto found = std::ranges::find(leaders, self);
  if (found == leaders.end() || leaders.size() < 2) return {};
  const auto at = static_cast<std::size_t>(found - leaders.begin());
  const int next = leaders[(at + 1) % leaders.size()];
  const int previous = leaders[(at + leaders.size() - 1) % leaders.size()];
  // Receivers are destroyed first, so that their senders' messages in flight are dropped.
  std::deque<Sender> senders;
  std::deque<Receiver> receivers;
  // Rates of several are compared with each other; how long all calls take is known well enough.
  const int most_spans = rails.count() > 1 ? kMostSpans : kMostSpansOfOne;
  for (int rail = 0; rail < rails.count(); ++rail) {
    const auto number = static_cast<std::uint32_t>(rail);
    receivers.emplace_back(bootstrap, transport, rails.device(self, previous, rail), previous,
                           number, most_spans);
    senders.emplace_back(bootstrap, transport, rails.device(self, next, rail), next, number);
  }
  std::set<std::size_t> told;
  const auto all_done = [&] {
    return told.size() == receivers.size() && std::ranges::all_of(senders, &Sender::done);
  };
  while (!all_done()) {
    bool moved = false;
    for (Sender& sender : senders) moved |= sender.poll();
    const bool some_carry = std::ranges::any_of(
        receivers, [](const Receiver& each) { return each.done() && !each.silent(); });
    const bool rest_is_silent =
        some_carry && std::ranges::all_of(receivers, [](const Receiver& each) {
          return each.done() || each.silent();
        });
    for (std::size_t rail = 0; rail < receivers.size(); ++rail) {
      moved |= receivers[rail].poll(rest_is_silent);
      if (!receivers[rail].done() || !told.insert(rail).second) continue;
      bootstrap.send(previous, kDoneTag | static_cast<std::uint32_t>(rail), {});
    }
    waiting();
    if (SteadyClock::now() > deadline) {
      throw Error(Errc::kTimeout, "rank {} measures its NICs, and ranks {} and {} are not done",
                  self, previous, next);
    }
    if (!moved) std::this_thread::yield();
  }
  std::vector<double> rates;
  for (const Receiver& receiver : receivers) rates.push_back(receiver.rate());
  return rates;
}

}  // namespace ropewalk::machine
