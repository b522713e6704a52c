#include "transport/faulty.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/units.h"

namespace ropewalk::transport {
namespace {

using Clock = std::chrono::steady_clock;

// How long a request that is to be overtaken waits for one to do it.
constexpr auto kOvertakeTime = std::chrono::milliseconds(1);

double parse_share(std::string_view name, std::string_view text) {
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || end != text.data() + text.size() || !(share >= 0 && share <= 1)) {
    throw Error(Errc::kInvalidArgument, "FAULTY: {}={} is not a number between 0 and 1", name,
                text);
  }
  return share;
}

// splitmix64: few lines, and good enough for any seed.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() noexcept {
    std::uint64_t mixed = state_ += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return mixed ^ mixed >> 31;
  }
  double share() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

// Of one connection; its requests refer to it.
struct Line {
  Faults faults;
  std::uint64_t stream = 0;    // seed of this connection and direction
  std::uint64_t started = 0;   // requests
  std::uint64_t finished = 0;  // the largest number of a request that was reported finished
  bool broken = false;
};

class FaultyRequest final : public Request {
 public:
  FaultyRequest(std::unique_ptr<Request> inner, Line& line)
      : inner_(std::move(inner)), line_(line), number_(++line.started) {
    Dice dice(line.stream + number_ * 0x632be59bd9b4e019);
    dropped_ = dice.share() < line.faults.drop;
    failing_ = dice.share() < line.faults.fail;
    overtaken_ = dice.share() < line.faults.reorder;
    delay_ = std::chrono::nanoseconds(
        std::llround(dice.share() * static_cast<double>(line.faults.delay.count())));
  }

  std::optional<std::size_t> test() override {
    if (reported_) return result_;
    if (line_.broken || failing_) {
      line_.broken = true;
      throw Error(Errc::kPeerLost, "injected fault: request {} fails", number_);
    }
    if (!result_) {
      result_ = inner_->test();
      if (!result_) return std::nullopt;
      finished_at_ = Clock::now();
    }
    if (dropped_) return std::nullopt;
    const auto waited = Clock::now() - finished_at_;
    if (waited < delay_) return std::nullopt;
    if (overtaken_ && line_.finished < number_ && waited < delay_ + kOvertakeTime) {
      return std::nullopt;
    }
    line_.finished = std::max(line_.finished, number_);
    reported_ = true;
    return result_;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return inner_->sizes(); }
  void place_rest(std::size_t offset, void* data, std::size_t bytes) override {
    inner_->place_rest(offset, data, bytes);
  }
  [[nodiscard]] bool placed() const override { return inner_->placed(); }

 private:
  std::unique_ptr<Request> inner_;
  Line& line_;
  const std::uint64_t number_;
  bool dropped_ = false;
  bool failing_ = false;
  bool overtaken_ = false;
  std::chrono::nanoseconds delay_{0};
  std::optional<std::size_t> result_;
  bool reported_ = false;
  Clock::time_point finished_at_;
};

std::unique_ptr<Request> wrap(std::unique_ptr<Request> inner, Line& line) {
  if (!inner) return nullptr;
  return std::make_unique<FaultyRequest>(std::move(inner), line);
}

void throw_if_broken(const Line& line) {
  if (line.broken) {
    throw Error(Errc::kPeerLost, "{}", "an injected fault broke this connection");
  }
}

class FaultySender final : public SendConnection {
 public:
  FaultySender(std::unique_ptr<SendConnection> inner, const Line& line)
      : inner_(std::move(inner)), line_(line) {}
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return inner_->register_memory(data, bytes, kind);
  }
  std::unique_ptr<Registration> register_dma_buf(void* data, std::size_t bytes,
                                                 const DmaBuf& buffer) override {
    return inner_->register_dma_buf(data, bytes, buffer);
  }
  bool ready() override {
    throw_if_broken(line_);
    return inner_->ready();
  }
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* registration) override {
    throw_if_broken(line_);
    return wrap(inner_->send(data, bytes, tag, registration), line_);
  }
  void more_follow(bool follow) override { inner_->more_follow(follow); }
  [[nodiscard]] bool splits_messages() const override { return inner_->splits_messages(); }
  std::unique_ptr<Request> send_split(std::span<const std::byte> head, const void* data,
                                      std::size_t bytes, std::uint32_t tag) override {
    throw_if_broken(line_);
    return wrap(inner_->send_split(head, data, bytes, tag), line_);
  }

 private:
  std::unique_ptr<SendConnection> inner_;
  Line line_;
};

class FaultyReceiver final : public ReceiveConnection {
 public:
  FaultyReceiver(std::unique_ptr<ReceiveConnection> inner, const Line& line)
      : inner_(std::move(inner)), line_(line) {}
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return inner_->register_memory(data, bytes, kind);
  }
  std::unique_ptr<Registration> register_dma_buf(void* data, std::size_t bytes,
                                                 const DmaBuf& buffer) override {
    return inner_->register_dma_buf(data, bytes, buffer);
  }
  bool ready() override {
    throw_if_broken(line_);
    return inner_->ready();
  }
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override {
    throw_if_broken(line_);
    return wrap(inner_->receive(buffers), line_);
  }
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> buffers) override {
    return inner_->flush(buffers);
  }

 private:
  std::unique_ptr<ReceiveConnection> inner_;
  Line line_;
};

// Numbers the connections of a transport.
class Lines {
 public:
  explicit Lines(const Faults& faults) : faults_(faults) {}
  Line next(bool sending) {
    std::atomic<std::uint64_t>& count = sending ? senders_ : receivers_;
    Line line;
    line.faults = faults_;
    line.stream = Dice(faults_.seed * 2 + (sending ? 1 : 0)).next() + Dice(++count).next();
    return line;
  }

 private:
  const Faults faults_;
  std::atomic<std::uint64_t> senders_ = 0;
  std::atomic<std::uint64_t> receivers_ = 0;
};

class FaultyListener final : public Listener {
 public:
  FaultyListener(std::unique_ptr<Listener> inner, Lines& lines)
      : inner_(std::move(inner)), lines_(lines) {}
  [[nodiscard]] const Handle& handle() const override { return inner_->handle(); }
  std::unique_ptr<ReceiveConnection> accept() override {
    auto made = inner_->accept();
    if (!made) return nullptr;
    return std::make_unique<FaultyReceiver>(std::move(made), lines_.next(false));
  }

 private:
  std::unique_ptr<Listener> inner_;
  Lines& lines_;
};

class FaultyConnector final : public Connector {
 public:
  FaultyConnector(std::unique_ptr<Connector> inner, Lines& lines)
      : inner_(std::move(inner)), lines_(lines) {}
  std::unique_ptr<SendConnection> poll() override {
    auto made = inner_->poll();
    if (!made) return nullptr;
    return std::make_unique<FaultySender>(std::move(made), lines_.next(true));
  }

 private:
  std::unique_ptr<Connector> inner_;
  Lines& lines_;
};

class Faulty final : public Transport {
 public:
  Faulty(std::unique_ptr<Transport> inner, const Faults& faults)
      : inner_(std::move(inner)), lines_(faults) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] int num_devices() const override { return inner_->num_devices(); }
  [[nodiscard]] std::string why_no_devices() const override { return inner_->why_no_devices(); }
  [[nodiscard]] DeviceProperties properties(int device) const override {
    return inner_->properties(device);
  }
  std::unique_ptr<Listener> listen(int device) override {
    return std::make_unique<FaultyListener>(inner_->listen(device), lines_);
  }
  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    return std::make_unique<FaultyConnector>(inner_->connect(device, handle), lines_);
  }
  void settle() override { inner_->settle(); }

 private:
  std::unique_ptr<Transport> inner_;
  Lines lines_;
};

}  // namespace

Faults parse_faults(std::string_view text) {
  Faults faults;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view entry = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) {
      throw Error(Errc::kInvalidArgument, "FAULTY: '{}' is not name=value", entry);
    }
    const std::string_view name = entry.substr(0, equals);
    const std::string_view value = entry.substr(equals + 1);
    if (name == "delay") {
      faults.delay = parse_duration(value);
    } else if (name == "reorder") {
      faults.reorder = parse_share(name, value);
    } else if (name == "fail") {
      faults.fail = parse_share(name, value);
    } else if (name == "drop") {
      faults.drop = parse_share(name, value);
    } else if (name == "seed") {
      faults.seed = static_cast<std::uint64_t>(parse_integer(value));
    } else {
      throw Error(Errc::kInvalidArgument,
                  "FAULTY: '{}' is not a fault (delay, reorder, fail, drop, seed)", name);
    }
  }
  return faults;
}

std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> inner, const Faults& faults) {
  return std::make_unique<Faulty>(std::move(inner), faults);
}

}  // namespace ropewalk::transport
