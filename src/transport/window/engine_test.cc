// The window engine when a method of its driver is broken: on the shared-memory driver, with
// injected faults.
#include "transport/window/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/shared_memory.h"
#include "transport/window/mailbox.h"
#include "transport/window/shm/rendezvous.h"
#include "transport/window/shm/shm.h"

namespace ropewalk::transport::window {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(30);

// Faults of a bad bridge.
struct Mischief {
  bool writes_change_data = false;
  bool pulls_change_data = false;
  bool pulls_fail = false;
  bool words_change = false;    // of entries that carry VERIFY
  std::size_t good_writes = 0;  // this number of writes is right before the faults begin
  std::size_t good_pulls = 0;
  int slow = 0;         // copies are done after this number of polls
  bool uneven = false;  // some of them earlier than others that began before
  int queues = 1;
  std::size_t writes = 0;  // counted
  std::size_t pulls = 0;
  std::function<void(Entry&)> forge;       // changes what is written into a mailbox
  std::optional<std::string> stores_lost;  // in flight; is reported once
  // Words that are put and read, and their order; by the end that does so.
  struct Step {
    const Path* end;
    std::string what;
  };
  std::vector<Step> steps;
  bool records_steps = false;
};

class BadPath final : public Path {
 public:
  BadPath(std::unique_ptr<Path> inner, Mischief& mischief)
      : inner_(std::move(inner)), mischief_(mischief) {}
  bool ready() override { return inner_->ready(); }
  [[nodiscard]] const Capabilities& capabilities() const override {
    capabilities_ = inner_->capabilities();
    capabilities_.queues = mischief_.queues;
    return capabilities_;
  }
  [[nodiscard]] std::byte* window() const override { return inner_->window(); }
  void put(std::size_t offset, const void* data, std::size_t bytes) override {
    if (mischief_.words_change && bytes == sizeof(Entry)) {
      Entry entry;
      std::memcpy(&entry, data, sizeof entry);
      entry.payload[3] ^= 1;
      inner_->put(offset, &entry, sizeof entry);
      mischief_.words_change = false;
      return;
    }
    if (mischief_.forge && bytes == sizeof(Entry)) {
      Entry entry;
      std::memcpy(&entry, data, sizeof entry);
      mischief_.forge(entry);
      inner_->put(offset, &entry, sizeof entry);
      return;
    }
    inner_->put(offset, data, bytes);
  }
  void put_word(std::size_t offset, std::uint64_t value) override {
    inner_->put_word(offset, value);
    if (offset < kRingOffset) note("put", offset, value);
  }
  [[nodiscard]] std::uint64_t read_word(std::size_t offset) const override {
    const std::uint64_t value = inner_->read_word(offset);
    if (offset < kRingOffset) note("read", offset, value);
    return value;
  }
  void order_puts_before_reads() override {
    inner_->order_puts_before_reads();
    if (mischief_.records_steps) mischief_.steps.push_back({this, "order"});
  }
  std::optional<std::string> stores_lost() override {
    return std::exchange(mischief_.stores_lost, std::nullopt);
  }
  std::uint64_t address_of(const void* data, Registration* registration) const override {
    return inner_->address_of(data, registration);
  }
  // A slow copy is made when it is done, as a copy engine may.
  void start_write(int queue, std::size_t offset, const void* source, std::size_t bytes) override {
    const bool change = mischief_.writes_change_data && mischief_.writes >= mischief_.good_writes;
    ++mischief_.writes;
    start(queue, [=, this] {
      std::vector<std::byte> copy(bytes);
      std::memcpy(copy.data(), source, bytes);
      if (change) copy.back() ^= std::byte{4};
      inner_->start_write(queue, offset, copy.data(), bytes);
    });
  }
  void start_pull(int queue, void* destination, std::uint64_t source, std::size_t bytes) override {
    if (mischief_.pulls_fail) throw Error(Errc::kSystem, "{}", "a pull failed on purpose");
    const bool change = mischief_.pulls_change_data && mischief_.pulls >= mischief_.good_pulls;
    ++mischief_.pulls;
    start(queue, [=, this] {
      inner_->start_pull(queue, destination, source, bytes);
      if (change) static_cast<std::byte*>(destination)[bytes - 1] ^= std::byte{1};
    });
  }
  bool copy_done(int queue) override {
    Job& job = jobs_[static_cast<std::size_t>(queue)];
    if (job.polls_left-- > 0) return false;
    if (job.copy) std::exchange(job.copy, nullptr)();
    return true;
  }
  std::optional<std::string> peer_lost() override { return inner_->peer_lost(); }
  void disconnect() noexcept override { inner_->disconnect(); }

 private:
  struct Job {
    int polls_left = 0;
    std::function<void()> copy;
  };
  void start(int queue, std::function<void()> copy) {
    Job& job = jobs_[static_cast<std::size_t>(queue)];
    if (job.copy) throw std::logic_error("a copy was started on a busy queue");
    job.polls_left = mischief_.uneven ? static_cast<int>(++started_ * 7 % 11) : mischief_.slow;
    job.copy = std::move(copy);
  }
  void note(const char* verb, std::size_t word, std::uint64_t value) const {
    if (!mischief_.records_steps) return;
    mischief_.steps.push_back({this, fmt::format("{} {} {}", verb, word, value)});
  }
  std::unique_ptr<Path> inner_;
  Mischief& mischief_;
  mutable Capabilities capabilities_;
  unsigned started_ = 0;
  std::array<Job, 8> jobs_;
};

class BadDriver final : public Driver {
 public:
  BadDriver(std::unique_ptr<Driver> inner, Mischief& mischief)
      : inner_(std::move(inner)), mischief_(mischief) {}
  [[nodiscard]] std::string name() const override { return "bad"; }
  [[nodiscard]] int num_devices() const override { return inner_->num_devices(); }
  [[nodiscard]] DeviceProperties properties(int device) const override {
    return inner_->properties(device);
  }
  std::unique_ptr<Registration> register_memory(int device, void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return inner_->register_memory(device, data, bytes, kind);
  }
  std::unique_ptr<Acceptor> open_acceptor(int device, WindowSizes sizes) override {
    class BadAcceptor final : public Acceptor {
     public:
      BadAcceptor(std::unique_ptr<Acceptor> acceptor, Mischief& bad)
          : acceptor_(std::move(acceptor)), bad_(bad) {}
      [[nodiscard]] const Handle& handle() const override { return acceptor_->handle(); }
      std::unique_ptr<Path> accept() override {
        auto path = acceptor_->accept();
        if (!path) return nullptr;
        return std::make_unique<BadPath>(std::move(path), bad_);
      }

     private:
      std::unique_ptr<Acceptor> acceptor_;
      Mischief& bad_;
    };
    return std::make_unique<BadAcceptor>(inner_->open_acceptor(device, sizes), mischief_);
  }
  std::unique_ptr<Path> connect(int device, const Handle& handle, WindowSizes sizes) override {
    return std::make_unique<BadPath>(inner_->connect(device, handle, sizes), mischief_);
  }

 private:
  std::unique_ptr<Driver> inner_;
  Mischief& mischief_;
};

class Engine : public ::testing::Test {
 protected:
  using Settings = std::initializer_list<std::pair<const char*, const char*>>;
  std::unique_ptr<Transport> made(Settings settings) {
    Config config;
    for (const auto& [name, value] : settings) config.set(name, value, "test");
    return make_transport(std::make_unique<BadDriver>(make_shm_driver(config), mischief_), config);
  }
  void open(Settings settings = {}) { open(settings, settings); }
  void open(Settings senders, Settings receivers) {
    sender_.reset();
    receiver_.reset();
    listener_.reset();
    transport_ = made(receivers);
    senders_transport_ = made(senders);
    listener_ = transport_->listen(0);
    const auto connector = senders_transport_->connect(0, listener_->handle());
    sender_ = connector->poll();
    const Clock::time_point deadline = Clock::now() + kPatience;
    while (!(receiver_ = listener_->accept())) {
      if (Clock::now() > deadline) throw std::runtime_error("hangs");
    }
  }
  // @return whether the received data equals the sent data
  bool exchange(std::size_t bytes) {
    std::vector<char> out(bytes);
    for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(i * 7 + i / 251);
    std::vector<char> in(bytes);
    const ReceiveBuffer buffer{in.data(), in.size(), 0, nullptr};
    const auto receive = receiver_->receive({&buffer, 1});
    std::unique_ptr<Request> send;
    const Clock::time_point deadline = Clock::now() + kPatience;
    for (bool sent = false, received = false; !sent || !received;) {
      if (Clock::now() > deadline) throw std::runtime_error("hangs");
      if (!send) send = sender_->send(out.data(), bytes, 0, nullptr);
      received = receive->test().has_value();
      sent = send && send->test();
    }
    return in == out;
  }
  std::string failure(std::size_t bytes) {
    try {
      exchange(bytes);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  Mischief mischief_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Transport> senders_transport_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<SendConnection> sender_;
  std::unique_ptr<ReceiveConnection> receiver_;
};

constexpr std::size_t kLargeMessage = 3'000'001;

TEST_F(Engine, UsesTheBestMethod) {
  open();
  EXPECT_TRUE(exchange(30));
  EXPECT_TRUE(exchange(1000));
  EXPECT_TRUE(exchange(kLargeMessage));
  EXPECT_GT(mischief_.pulls, 1U);   // the pattern, and then pieces
  EXPECT_EQ(mischief_.writes, 3U);  // two patterns and a small message
}

TEST_F(Engine, ReplacesAPullThatChangesData) {
  mischief_.pulls_change_data = true;
  open();
  EXPECT_TRUE(exchange(kLargeMessage));
  EXPECT_EQ(mischief_.pulls, 1U);
}

TEST_F(Engine, ReplacesAPullThatFails) {
  mischief_.pulls_fail = true;
  open();
  EXPECT_TRUE(exchange(kLargeMessage));
}

TEST_F(Engine, ReplacesABounceRingThatChangesData) {
  mischief_.writes_change_data = true;
  open();
  EXPECT_TRUE(exchange(1000));
  EXPECT_TRUE(exchange(kLargeMessage));
  EXPECT_EQ(mischief_.writes, 2U);  // the patterns, nothing after
}

TEST_F(Engine, FailsByNameWhenNothingWorks) {
  mischief_.writes_change_data = true;
  mischief_.pulls_change_data = true;
  open();
  const std::string words = failure(10);
  EXPECT_NE(words.find("verification failed: bounce ring"), std::string::npos) << words;
}

TEST_F(Engine, FailsByNameWhenSingleCopyIsDemanded) {
  mischief_.pulls_change_data = true;
  open({{"SINGLE_COPY", "on"}});
  const std::string words = failure(10);
  EXPECT_NE(words.find("SINGLE_COPY is on"), std::string::npos) << words;
}

TEST_F(Engine, NoticesACorruptedMailbox) {
  open();
  mischief_.words_change = true;  // the sender's first entry is VERIFY, the receiver's a request
  std::vector<char> in(10);
  const ReceiveBuffer buffer{in.data(), in.size(), 0, nullptr};
  std::string words;
  try {
    // The sender's VERIFY goes first.
    for (int i = 0; i < 100; ++i) (void)sender_->send("x", 1, 0, nullptr);
    const auto receive = receiver_->receive({&buffer, 1});
    for (int i = 0; i < 100; ++i) {
      (void)receive->test();
      (void)sender_->send("x", 1, 0, nullptr);
    }
  } catch (const Error& error) {
    words = error.what();
  }
  EXPECT_NE(words.find("the mailbox is corrupted"), std::string::npos) << words;
}

TEST_F(Engine, ChecksumsFindFaultsThatThePatternDidNot) {
  mischief_.pulls_change_data = true;
  mischief_.good_pulls = 1;
  open({{"VERIFY", "all"}});
  std::string words = failure(kLargeMessage);
  EXPECT_NE(words.find("wrong checksum"), std::string::npos) << words;

  mischief_ = Mischief();
  mischief_.writes_change_data = true;
  mischief_.good_writes = 2;
  open({{"VERIFY", "all"}});
  words = failure(1000);
  EXPECT_NE(words.find("wrong checksum"), std::string::npos) << words;
}

TEST_F(Engine, WithoutVerificationNothingIsFound) {
  mischief_.pulls_change_data = true;
  open({{"VERIFY", "off"}});
  EXPECT_FALSE(exchange(kLargeMessage));  // this is what the setting gives up
}

// One end may have found a path to be broken that the other one uses unverified: no message is
// sent.
TEST_F(Engine, EndsThatVerifyDifferentlyFailByTheSettingsName) {
  const std::array<const char*, 3> levels = {"off", "connect", "all"};
  for (const char* sending : levels) {
    for (const char* receiving : levels) {
      SCOPED_TRACE(fmt::format("{} to {}", sending, receiving));
      open({{"VERIFY", sending}}, {{"VERIFY", receiving}});
      std::vector<std::string> said(2);
      const auto turn = [](auto& end, std::string& words) {
        try {
          return !words.empty() || end->ready();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Errc::kInvalidUsage);
          words = error.what();
          return true;
        }
      };
      const Clock::time_point deadline = Clock::now() + kPatience;
      for (bool sender = false, receiver = false; !sender || !receiver;) {
        ASSERT_LT(Clock::now(), deadline);
        receiver = turn(receiver_, said[1]);
        sender = turn(sender_, said[0]);
      }
      if (std::string_view(sending) == receiving) {
        EXPECT_EQ(said[0] + said[1], "");
        continue;
      }
      EXPECT_NE(said[0].find(fmt::format("setting VERIFY differs: this end has {}, the receiving "
                                         "end {}",
                                         sending, receiving)),
                std::string::npos)
          << said[0];
      EXPECT_NE(said[1].find(fmt::format("setting VERIFY differs: this end has {}, the sending end "
                                         "{}",
                                         receiving, sending)),
                std::string::npos)
          << said[1];
    }
  }
}

TEST_F(Engine, CopyQueuesMayBeSlowAndMany) {
  for (const char* single_copy : {"auto", "off"}) {
    mischief_ = Mischief();
    mischief_.slow = 3;
    mischief_.queues = 4;
    open({{"SINGLE_COPY", single_copy}, {"VERIFY", "all"}});
    for (const std::size_t bytes : {0UL, 33UL, 65'537UL, kLargeMessage}) {
      EXPECT_TRUE(exchange(bytes)) << bytes;
    }
  }
}

TEST_F(Engine, CopyQueuesMayOvertakeEachOther) {
  mischief_.uneven = true;
  mischief_.queues = 4;
  open({{"SINGLE_COPY", "off"}, {"VERIFY", "all"}});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(exchange(kLargeMessage)) << i;
}

// Nothing comes after it that could notice what it lost.
TEST_F(Engine, ALastSendOverALossyLinkFails) {
  for (const std::size_t bytes : {0UL, 20UL, 1000UL, 200'000UL}) {
    SCOPED_TRACE(bytes);
    open({{"SINGLE_COPY", "off"}, {"VERIFY", "all"}});
    EXPECT_TRUE(exchange(bytes));
    mischief_.stores_lost = "stores were lost on purpose";
    const std::string words = failure(bytes);
    EXPECT_NE(words.find("stores were lost on purpose"), std::string::npos) << words;

    // Without checksums this is not noticed.
    open({{"SINGLE_COPY", "off"}, {"VERIFY", "connect"}});
    mischief_.stores_lost = "stores were lost on purpose";
    EXPECT_TRUE(exchange(bytes));
    mischief_.stores_lost.reset();
  }
}

struct Forgery {
  const char* what;
  std::size_t piece;  // that is changed: the first or the second one
  void (*change)(Entry&);
};

// A peer that writes anything into the mailbox makes this end neither read beyond its window nor
// write beyond the receive's buffer.
TEST_F(Engine, PiecesThatAreNotInTheRingOrTheMessageAreRefused) {
  constexpr std::size_t kBytes = kBouncePieceBytes + 30'000;
  const std::vector<Forgery> forgeries = {
      {"an empty piece", 0, [](Entry& entry) { entry.payload[1] = 0; }},
      {"a piece that is too long", 0, [](Entry& entry) { ++entry.payload[1]; }},
      {"a piece of any length", 0, [](Entry& entry) { entry.payload[1] = ~std::uint64_t{0}; }},
      {"a line beyond the ring's end", 0,
       [](Entry& entry) { entry.payload[2] = kBounceBytes - kBouncePieceBytes + 64; }},
      {"a byte beyond the ring's end", 0,
       [](Entry& entry) { entry.payload[2] = kBounceBytes - kBouncePieceBytes + 1; }},
      {"all but a byte beyond the ring's end", 0,
       [](Entry& entry) { entry.payload[2] = kBounceBytes - 1; }},
      {"the ring's end in a later round", 0,
       [](Entry& entry) { entry.payload[2] = 9 * kBounceBytes - 64; }},
      {"the end of all positions", 0, [](Entry& entry) { entry.payload[2] = ~std::uint64_t{0}; }},
      {"a byte beyond the message", 1, [](Entry& entry) { ++entry.payload[0]; }},
      {"an offset behind the message", 0, [](Entry& entry) { entry.payload[0] = entry.bytes + 1; }},
      {"an offset that wraps around", 0,
       [](Entry& entry) { entry.payload[0] = ~std::uint64_t{0} - 100; }},
      {"more than is left of the message", 1,
       [](Entry& entry) {
         entry.payload[0] = 0;
         entry.payload[1] = kBouncePieceBytes;
       }},
      {"another length of the message", 1, [](Entry& entry) { --entry.bytes; }},
      {"a message that is longer than its buffer", 0,
       [](Entry& entry) { entry.bytes = kBytes + 1; }},
      {"a receive that is not", 0, [](Entry& entry) { entry.id += 7; }},
  };
  for (const Forgery& forgery : forgeries) {
    SCOPED_TRACE(forgery.what);
    mischief_ = Mischief();
    open({{"SINGLE_COPY", "off"}});
    std::size_t piece = 0;
    mischief_.forge = [&](Entry& entry) {
      if (entry.command == Command::kSendPiece && piece++ == forgery.piece) forgery.change(entry);
    };
    std::vector<char> out(kBytes, 'o');
    std::vector<char> in(kBytes + 4096, 'x');  // guarded
    const ReceiveBuffer buffer{in.data(), kBytes, 0, nullptr};
    const auto receive = receiver_->receive({&buffer, 1});
    std::unique_ptr<Request> send;
    std::string words;
    const Clock::time_point deadline = Clock::now() + kPatience;
    try {
      while (!receive->test()) {
        ASSERT_LT(Clock::now(), deadline);
        if (!send) send = sender_->send(out.data(), kBytes, 0, nullptr);
        if (send) (void)send->test();
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kPeerLost);
      words = error.what();
    }
    EXPECT_NE(words.find("an invalid mailbox entry"), std::string::npos) << words;
    EXPECT_EQ(std::count(in.begin() + kBytes, in.end(), 'x'), 4096);
  }
}

// A piece that ends where the ring ends is in it.
TEST_F(Engine, PiecesMayFillTheRing) {
  open({{"SINGLE_COPY", "off"}});
  std::size_t at_end = 0;
  mischief_.forge = [&](Entry& entry) {
    if (entry.command != Command::kSendPiece) return;
    at_end += entry.payload[2] % kBounceBytes + entry.payload[1] == kBounceBytes ? 1 : 0;
  };
  EXPECT_TRUE(exchange(3 * kBounceBytes));
  EXPECT_GT(at_end, 0U);
}

// Each end sets one word, then reads the other's; without an order between the two both could read
// what was before, and memory would be read after it was given up. (That a path's order is one:
// shm_test.cc.)
TEST_F(Engine, PullsAndTheirEndArePutInOrderBeforeTheOtherIsRead) {
  // What an end does next after it set a word that was not set.
  // @return how often it did so
  const auto expect_next = [&](std::size_t set, std::size_t read) {
    const std::vector<std::string> wanted = {"order", fmt::format("read {} 0", read)};
    std::size_t found = 0;
    std::string last;
    for (std::size_t i = 0; i < mischief_.steps.size(); ++i) {
      const Mischief::Step& step = mischief_.steps[i];
      if (!step.what.starts_with(fmt::format("put {} ", set))) continue;
      if (std::exchange(last, step.what) == step.what || step.what.back() != '1') continue;
      ++found;
      std::vector<std::string> next;
      for (std::size_t k = i + 1; k < mischief_.steps.size() && next.size() < 2; ++k) {
        if (mischief_.steps[k].end == step.end) next.push_back(mischief_.steps[k].what);
      }
      EXPECT_EQ(next, wanted);
    }
    return found;
  };
  open();
  EXPECT_TRUE(exchange(10));
  mischief_.records_steps = true;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(exchange(kLargeMessage));
  EXPECT_GE(expect_next(kPullingWord, kAbandonedWord), 3U);

  // A send is cancelled that the receiver has not begun to pull.
  mischief_.steps.clear();
  std::vector<char> out(kLargeMessage);
  std::vector<char> in(kLargeMessage);
  const ReceiveBuffer buffer{in.data(), in.size(), 0, nullptr};
  const auto receive = receiver_->receive({&buffer, 1});
  std::unique_ptr<Request> send;
  while (!send) send = sender_->send(out.data(), kLargeMessage, 0, nullptr);
  send.reset();
  EXPECT_EQ(expect_next(kAbandonedWord, kPullingWord), 1U);
  EXPECT_THROW((void)receive->test(), Error);
  EXPECT_EQ(std::count(in.begin(), in.end(), 0), static_cast<std::ptrdiff_t>(kLargeMessage));
}

TEST_F(Engine, SlowCopiesEndBeforeTheirMemoryGoes) {
  mischief_.slow = 100;
  mischief_.queues = 2;
  for (const char* single_copy : {"auto", "off"}) {
    open({{"SINGLE_COPY", single_copy}});
    EXPECT_TRUE(exchange(10));
    auto out = std::make_unique<std::vector<char>>(kLargeMessage);
    auto in = std::make_unique<std::vector<char>>(kLargeMessage);
    const ReceiveBuffer buffer{in->data(), in->size(), 0, nullptr};
    auto receive = receiver_->receive({&buffer, 1});
    std::unique_ptr<Request> send;
    while (!send) send = sender_->send(out->data(), kLargeMessage, 0, nullptr);
    for (int i = 0; i < 20; ++i) {
      (void)receive->test();
      (void)send->test();
    }
    // Now copies are in progress. The sanitizers detect any access after this.
    receive.reset();
    in.reset();
    send.reset();
    out.reset();
    sender_.reset();
    receiver_.reset();
  }
}

// A connection without the handle's secret is refused, and valid ones are still accepted.
TEST(ShmListener, StrangersDisturbNobody) {
  Config config;
  const auto transport = make_shm_transport(config);
  const auto listener = transport->listen(0);
  const ListenerAddress address = *decode_listener_address(listener->handle());
  std::vector<FileDescriptor> strangers;
  const SharedMemory window = SharedMemory::create(4096, ShmBacking::kAuto);
  for (int i = 0; i < 30; ++i) {
    strangers.push_back(call(address));
    if (i % 3 == 1) send_greeting(strangers.back().get(), make_greeting({}, {}), window.fd());
    // The right secret with a window that is too small is refused as well.
    if (i % 3 == 2) {
      send_greeting(strangers.back().get(), make_greeting(address.secret, {}), window.fd());
    }
  }
  const auto connector = transport->connect(0, listener->handle());
  const auto sender = connector->poll();
  std::unique_ptr<ReceiveConnection> receiver;
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (!receiver && Clock::now() < deadline) receiver = listener->accept();
  ASSERT_NE(receiver, nullptr);
  char in = 0;
  const ReceiveBuffer buffer{&in, 1, 0, nullptr};
  const auto receive = receiver->receive({&buffer, 1});
  std::unique_ptr<Request> send;
  while (!receive->test() && Clock::now() < deadline) {
    if (!send) send = sender->send("x", 1, 0, nullptr);
  }
  EXPECT_EQ(in, 'x');
}

}  // namespace
}  // namespace ropewalk::transport::window
