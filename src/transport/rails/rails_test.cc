// Rails that are cut, silent, wrong, slow, and come back.
#include "transport/rails/rails.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/settings.h"
#include "core/testing/share.h"
#include "transport/faulty.h"
#include "transport/messaging/ofi/testing/providers.h"
#include "transport/rails/pairing.h"
#include "transport/rails/testing/cuttable.h"
#include "transport/rails/testing/exchange.h"
#include "transport/rails/testing/two_hosts.h"
#include "transport/rails/wire.h"
#include "transport/registry.h"

namespace ropewalk::transport::rails {
namespace {

using namespace std::chrono_literals;
using testing::Cable;
using testing::Cut;
using testing::Joined;
using testing::receive_stream;
using testing::Received;
using testing::send_stream;
using testing::StreamShape;
using testing::wait_for;

// ---- what goes over the wire ---------------------------------------------------------------

TEST(RailsWire, WhatIsToldIsRead) {
  Snapshot snapshot;
  snapshot.credits = 77;
  snapshot.rails = {{0, 3, 99}, {5, 1, 1ULL << 40}};
  snapshot.granted = {4, 1ULL << 50};
  const auto read = decode_snapshot(encode(snapshot));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->credits, 77U);
  EXPECT_EQ(read->rails, snapshot.rails);
  EXPECT_EQ(read->granted, snapshot.granted);

  Hello hello;
  hello.rail = 3;
  hello.incarnation = 9;
  hello.back.fill(std::byte{5});
  const auto greeted = decode_hello(encode(hello));
  ASSERT_TRUE(greeted);
  EXPECT_EQ(greeted->incarnation, 9U);
  EXPECT_EQ(greeted->back, hello.back);

  std::vector<DeviceFacts> devices(2);
  devices[0].name = "eth0";
  devices[1].handle[40] = std::byte{1};
  const auto told = decode_devices(encode(devices));
  ASSERT_TRUE(told);
  EXPECT_EQ((*told)[0].name, "eth0");
  EXPECT_EQ((*told)[1].handle, devices[1].handle);
}

TEST(RailsWire, WhatIsShortOrChangedIsRefused) {
  const std::vector<std::byte> hello = encode(Hello{});
  const std::vector<std::byte> snapshot = encode(Snapshot{1, {{0, 1, 2}}, {3}});
  for (std::size_t cut = 0; cut < hello.size(); ++cut) {
    EXPECT_FALSE(decode_hello(std::span(hello).first(cut)));
  }
  for (std::size_t cut = 0; cut < snapshot.size(); ++cut) {
    EXPECT_FALSE(decode_snapshot(std::span(snapshot).first(cut)));
  }
  std::vector<std::byte> message(kHeadBytes + 100, std::byte{1});
  Head head;
  head.kind = Kind::kPiece;
  seal(head, std::span(message).subspan(kHeadBytes), true);
  std::memcpy(message.data(), &head, sizeof head);
  ASSERT_TRUE(open_head(message));
  for (std::size_t at = 0; at < message.size(); ++at) {
    message[at] ^= std::byte{16};
    EXPECT_FALSE(open_head(message)) << at;
    message[at] ^= std::byte{16};
  }
  EXPECT_FALSE(open_head(std::span(message).first(kHeadBytes + 99)));
}

TEST(RailsWire, AHandleKeepsWhatFits) {
  std::vector<Offer> offers(4);
  for (std::size_t i = 0; i < offers.size(); ++i) {
    offers[i].device = static_cast<std::uint8_t>(i);
    offers[i].provider = provider_code("tcp");
    for (std::size_t at = 0; at < 36; ++at) offers[i].handle[at] = static_cast<std::byte>(i + 1);
  }
  const Handle handle = encode_offers(offers, kHandleBytes);
  const auto read = decode_offers(handle);
  ASSERT_TRUE(read);
  ASSERT_EQ(read->size(), 2U);
  EXPECT_EQ((*read)[1].handle, offers[1].handle);
  const auto shorter = decode_offers(shortened(handle, 60));
  ASSERT_TRUE(shorter);
  EXPECT_EQ(shorter->size(), 1U);
}

TEST(RailsPairing, DevicesOfOneFabricFirstAndAllOfThem) {
  const std::vector<Pairable> two = {{6, 1, 100}, {6, 2, 100}};
  const std::vector<Pairable> crossed = {{6, 2, 100}, {6, 1, 100}};
  EXPECT_EQ(pair_up(two, crossed, 16, false), (std::vector<PairedDevices>{{0, 1}, {1, 0}}));
  // Two ports face one.
  const std::vector<Pairable> one = {{6, 0, 200}};
  EXPECT_EQ(pair_up(two, one, 16, false), (std::vector<PairedDevices>{{0, 0}, {1, 0}}));
  EXPECT_EQ(pair_up(two, one, 16, true), (std::vector<PairedDevices>{{0, 0}}));
  // Other providers reach nobody.
  const std::vector<Pairable> mixed = {{1, 0, 900}, {6, 0, 100}};
  EXPECT_EQ(pair_up(mixed, one, 16, false), (std::vector<PairedDevices>{{1, 0}}));
  EXPECT_TRUE(pair_up(std::vector<Pairable>{{1, 0, 1}}, one, 16, false).empty());
}

// ---- cables --------------------------------------------------------------------------------

Config config_of(const std::string& verify = "connect", const std::string& loss = "20s") {
  Config config;
  config.set("SOCKET_IFNAME", "=lo", "test");
  config.set("TCP_STREAMS", "1", "test");
  config.set("VERIFY", verify, "test");
  config.set("PEER_LOSS_TIME", loss, "test");
  return config;
}

// From `from` to the other one, of one process.
Joined join(std::array<std::unique_ptr<Transport>, 2>& ends, std::size_t from = 0) {
  const auto listener = ends[1 - from]->listen(0);
  Joined joined;
  const auto connector = ends[from]->connect(0, listener->handle());
  wait_for({}, "connecting", [&] {
    if (joined.sender == nullptr) joined.sender = connector->poll();
    if (joined.receiver == nullptr) joined.receiver = listener->accept();
    return joined.sender != nullptr && joined.receiver != nullptr && joined.sender->ready();
  });
  return joined;
}

// Two ends of one process whose rails are cables.
class Cables {
 public:
  explicit Cables(std::vector<std::string> providers, const Config& config = config_of())
      : cables_(providers.size()) {
    for (std::unique_ptr<Transport>& end : ends_) {
      std::vector<std::unique_ptr<Transport>> transports;
      for (std::size_t i = 0; i < providers.size(); ++i) {
        transports.push_back(std::make_unique<testing::Cuttable>(
            make_plain_transport(providers[i], config), cables_[i]));
      }
      end = make_over(std::move(transports), config);
    }
  }
  Cable& operator[](std::size_t i) { return cables_[i]; }
  // From `from` to the other one.
  Joined join(std::size_t from = 0) { return rails::join(ends_, from); }

 private:
  std::deque<Cable> cables_;
  std::array<std::unique_ptr<Transport>, 2> ends_;
};

std::size_t rails_up(const SendConnection& sender) {
  const std::vector<RailReport> all = report(sender);
  return static_cast<std::size_t>(std::ranges::count_if(all, &RailReport::up));
}

void wait_until_up(const SendConnection& sender, std::size_t count) {
  wait_for({}, "rails coming up", [&] {
    std::this_thread::sleep_for(1ms);
    return rails_up(sender) == count;
  });
}

// A thread that says what went wrong.
std::thread guarded(std::atomic<int>& failures, std::function<void()> body) {
  return std::thread([&failures, body = std::move(body)] {
    try {
      body();
    } catch (const std::exception& error) {
      ++failures;
      std::fprintf(stderr, "%s\n", error.what());
    }
  });
}

// Sockets are made in the host of the thread that makes them.
Received stream_through(Joined& joined, const StreamShape& shape, std::uint64_t messages,
                        const testing::TwoHosts* hosts = nullptr) {
  std::atomic<int> failures = 0;
  Received received;
  std::thread sending = guarded(failures, [&] {
    if (hosts != nullptr) hosts->enter(0);
    std::uint64_t sent = 0;
    send_stream(*joined.sender, shape, [&] { return sent++ + shape.under_way == messages; });
  });
  std::thread receiving = guarded(failures, [&] {
    if (hosts != nullptr) hosts->enter(1);
    received = receive_stream(*joined.receiver, shape);
  });
  sending.join();
  receiving.join();
  EXPECT_EQ(failures, 0);
  return received;
}

TEST(Rails, BothCarryAndTellWhat) {
  Cables cables({"tcp", "tcp"});
  Joined joined = cables.join();
  wait_until_up(*joined.sender, 2);
  const Received received = stream_through(joined, StreamShape{}, 300);
  EXPECT_EQ(received.messages, 300U);
  EXPECT_EQ(received.wrong + received.late, 0U);
  std::uint64_t bytes = 0;
  for (const RailReport& rail : report(*joined.receiver)) {
    EXPECT_EQ(rail.name, "tcp lo");
    EXPECT_GT(rail.bytes, 0U);
    bytes += rail.bytes - rail.again;
  }
  EXPECT_EQ(bytes, received.bytes + 8);
  EXPECT_NE(joined.sender->describe().find("tcp lo: up"), std::string::npos);
}

TEST(Rails, ARailThatIsSilentOrBreaksIsLostAndComesBack) {
  for (const Cut cut : {Cut::kSilent, Cut::kError}) {
    Cables cables({"tcp", "shm"});
    Joined joined = cables.join();
    wait_until_up(*joined.sender, 2);
    for (const std::size_t rail : {0UL, 1UL}) {
      cables[rail].cut = cut;
      for (int i = 0; i < 100 && rails_up(*joined.sender) == 2; ++i) {
        const Received meanwhile = stream_through(joined, StreamShape{}, 100);
        EXPECT_EQ(meanwhile.messages, 100U);
        EXPECT_EQ(meanwhile.wrong + meanwhile.late, 0U);
      }
      const RailReport lost = report(*joined.sender)[rail];
      EXPECT_FALSE(lost.up);
      EXPECT_GE(lost.losses, 1U);
      // Or why it has not come back.
      const bool says =
          lost.why.find(cut == Cut::kSilent ? "silent" : "cut") != std::string::npos ||
          lost.why.find("no answer in") != std::string::npos;
      EXPECT_TRUE(says) << lost.why;
      cables[rail].cut = Cut::kNone;
      wait_until_up(*joined.sender, 2);
      EXPECT_EQ(stream_through(joined, StreamShape{}, 100).wrong, 0U);
    }
  }
}

// The lines of the log up to level INFO since it was made. One at a time.
class HeardLog {
 public:
  HeardLog() {
    const std::lock_guard lock(mutex());
    lines().clear();
    log::set_sink([](log::Level, std::uint32_t, const char* line) {
      const std::lock_guard hold(mutex());
      lines().emplace_back(line);
    });
  }
  ~HeardLog() { log::set_sink(nullptr); }
  HeardLog(const HeardLog&) = delete;
  HeardLog& operator=(const HeardLog&) = delete;

  [[nodiscard]] bool has(const std::string& words) const {
    const std::lock_guard lock(mutex());
    return std::ranges::any_of(
        lines(), [&](const std::string& line) { return line.find(words) != std::string::npos; });
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::vector<std::string>& lines() {
    static std::vector<std::string> all;
    return all;
  }
};

TEST(Rails, TheLogNamesARailThatIsUsedLostAndBackAndWhy) {
  for (const Cut cut : {Cut::kSilent, Cut::kError}) {
    const HeardLog log;
    {
      Cables cables({"tcp", "shm"});
      Joined joined = cables.join();
      wait_until_up(*joined.sender, 2);
      const std::string name = report(*joined.sender)[1].name;
      EXPECT_TRUE(log.has("rails: " + name + " is used"));
      EXPECT_FALSE(log.has(" is lost"));
      cables[1].cut = cut;
      wait_for({}, "the loss", [&] {
        EXPECT_EQ(stream_through(joined, StreamShape{}, 20).wrong, 0U);
        return rails_up(*joined.sender) == 1;
      });
      // Perhaps the receiver found it first.
      EXPECT_TRUE(log.has("rails: " + name + " is lost: "));
      EXPECT_FALSE(log.has("rails: tcp lo is lost"));
      cables[1].cut = Cut::kNone;
      wait_until_up(*joined.sender, 2);
      EXPECT_TRUE(log.has("rails: " + name + " is back and verified"));
    }
    EXPECT_TRUE(log.has("rails: a sending connection was closed: tcp lo: up"));
    EXPECT_TRUE(log.has("lost 1 times"));
  }
}

// A rail over another provider beside one of sockets: both carry, and either may be lost. The PCIe
// bridges are those that the contract suite makes for the whole program.
TEST(Rails, OfSeveralProvidersCarryTogether) {
  struct Beside {
    std::string provider;
    std::vector<std::pair<std::string, std::string>> settings;
    bool is_cut = true;
  };
  std::vector<Beside> tried = {{"sisci", {{"SISCI_LIBRARY", RW_SOFTWARE_SISCI}}}};
  for (const std::string_view provider : compiled_providers()) {
    if (provider == "ofi") {
      tried.push_back({"ofi", {{"OFI_PROVIDER", ofi::sockets_provider()}}});
      // libfabric 1.17's shm ends a process both of whose endpoints it serves when one is closed
      // with messages under way.
      tried.push_back({"ofi", {{"OFI_PROVIDER", "shm"}}, false});
    } else if (provider == "psm2") {
      tried.push_back({"psm2", {{"PSM2_DEVICE", "shm"}}});
    }
  }
  for (const Beside& beside : tried) {
    Config config = config_of();
    for (const auto& [name, value] : beside.settings) config.set(name, value, "test");
    if (make_plain_transport(beside.provider, config)->num_devices() == 0) {
      std::printf("%s has no device here\n", beside.provider.c_str());
      continue;
    }
    SCOPED_TRACE(beside.provider + " " + beside.settings.front().second);
    Cables cables({beside.provider, "tcp"}, config);
    Joined joined = cables.join();
    wait_until_up(*joined.sender, 2);
    EXPECT_EQ(stream_through(joined, StreamShape{}, 200).wrong, 0U);
    for (const RailReport& rail : report(*joined.receiver)) EXPECT_GT(rail.bytes, 0U) << rail.name;
    for (std::size_t rail = 0; rail < 2 && beside.is_cut; ++rail) {
      for (const Cut cut : {Cut::kSilent, Cut::kError}) {
        const std::jthread cutter([&] {
          std::this_thread::sleep_for(2ms);  // so that messages are under way
          cables[rail].cut = cut;
        });
        wait_for({}, "the loss", [&] {
          const Received meanwhile = stream_through(joined, StreamShape{}, 50);
          EXPECT_EQ(meanwhile.messages, 50U);
          EXPECT_EQ(meanwhile.wrong + meanwhile.late, 0U);
          return rails_up(*joined.sender) == 1;
        });
        cables[rail].cut = Cut::kNone;
        wait_until_up(*joined.sender, 2);
      }
    }
    EXPECT_EQ(stream_through(joined, StreamShape{}, 50).wrong, 0U);
  }
}

TEST(Rails, ShortMessagesOfFinishedSendsGoAgain) {
  Cables cables({"tcp", "tcp"});
  Joined joined = cables.join();
  wait_until_up(*joined.sender, 2);
  // Both are silent while it is sent; then one of them is dead. Nobody drives the sender.
  cables[0].cut = Cut::kSilent;
  cables[1].cut = Cut::kSilent;
  std::uint64_t out = 0x1234;
  auto send = joined.sender->send(&out, sizeof out, 1, nullptr);
  ASSERT_NE(send, nullptr);
  EXPECT_TRUE(send->test());
  out = 0;
  std::this_thread::sleep_for(20ms);
  cables[0].cut = Cut::kError;
  cables[1].cut = Cut::kNone;
  std::uint64_t in = 0;
  const ReceiveBuffer buffer{&in, sizeof in, 1, nullptr};
  auto receive = joined.receiver->receive({&buffer, 1});
  ASSERT_NE(receive, nullptr);
  wait_for({}, "the message", [&] { return receive->test().has_value(); });
  EXPECT_EQ(in, 0x1234U);
}

// All has been delivered, and so the receiver has told by the other rail; a provider that waits for
// an answer still reads the memory.
TEST(Rails, ARailThatFallsSilentWhenAllHasArrivedIsLost) {
  Cables cables({"tcp", "tcp"});
  Joined joined = cables.join();
  wait_until_up(*joined.sender, 2);
  cables[1].holds_sends = true;
  std::vector<std::byte> out(1'000'000, std::byte{7});
  std::vector<std::byte> in(out.size());
  const ReceiveBuffer buffer{in.data(), in.size(), 1, nullptr};
  const auto receive = joined.receiver->receive({&buffer, 1});
  const auto send = joined.sender->send(out.data(), out.size(), 1, nullptr);
  ASSERT_TRUE(receive && send);
  wait_for({}, "the message", [&] {
    (void)send->test();
    return receive->test().has_value();
  });
  EXPECT_EQ(in, out);
  wait_for({}, "the record of arrival", [&] {
    (void)send->test();
    return joined.sender->describe().find("0 of 1 messages not yet") != std::string::npos;
  });
  cables[1].cut = Cut::kSilent;
  wait_for({}, "the loss", [&] { return send->test().has_value(); });
  EXPECT_GE(report(*joined.sender)[1].losses, 1U);
}

// A sender may be behind: it has not heard yet that all has arrived when the receiver goes, with
// further receives posted.
TEST(Rails, WhatHasArrivedIsSentAlsoWhenTheReceiverGoes) {
  std::atomic<int> failures = 0;
  for (int round = 0; round < 150; ++round) {
    Cables cables({"tcp", "tcp"});
    Joined joined = cables.join();
    wait_until_up(*joined.sender, 2);
    std::vector<std::byte> out(300'000);
    std::vector<std::byte> in(out.size());
    std::thread sending = guarded(failures, [&] {
      std::unique_ptr<Request> send;
      wait_for({}, "a send", [&] {
        if (!send) send = joined.sender->send(out.data(), out.size(), 1, nullptr);
        return send && send->test();
      });
    });
    std::thread receiving = guarded(failures, [&] {
      const ReceiveBuffer buffer{in.data(), in.size(), 1, nullptr};
      const auto receive = joined.receiver->receive({&buffer, 1});
      const auto never = joined.receiver->receive({&buffer, 1});
      wait_for({}, "a receive", [&] { return receive->test().has_value(); });
    });
    sending.join();
    receiving.join();
  }
  EXPECT_EQ(failures, 0);
}

TEST(Rails, LossOfAllIsAnErrorThatNamesThem) {
  Cables cables({"tcp", "tcp"}, config_of("connect", "300ms"));
  Joined joined = cables.join();
  wait_until_up(*joined.sender, 2);
  std::vector<std::byte> memory(1'000'000);
  auto send = joined.sender->send(memory.data(), memory.size(), 1, nullptr);
  const ReceiveBuffer buffer{memory.data(), memory.size(), 2, nullptr};
  auto receive = joined.receiver->receive({&buffer, 1});
  cables[0].cut = Cut::kError;
  cables[1].cut = Cut::kError;
  const auto words = [](Request& request) {
    try {
      wait_for({}, "an error", [&] { return request.test().has_value(); });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kPeerLost);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  for (Request* request : {send.get(), receive.get()}) {
    const std::string said = words(*request);
    EXPECT_NE(said.find("no rail is left: tcp lo: not up"), std::string::npos) << said;
    EXPECT_NE(said.find("the cable is cut"), std::string::npos) << said;
  }
}

TEST(Rails, ARailThatChangesDataIsLostAndTheDataRight) {
  Cables cables({"tcp", "tcp"}, config_of("all"));
  Joined joined = cables.join();
  wait_until_up(*joined.sender, 2);
  cables[1].corrupt = 3;
  Received received;
  for (int i = 0; i < 50 && cables[1].corrupt > 0; ++i) {
    received = stream_through(joined, StreamShape{}, 100);
    EXPECT_EQ(received.wrong + received.late, 0U);
  }
  EXPECT_EQ(cables[1].corrupt, 0U);
  EXPECT_GE(report(*joined.sender)[1].losses, 1U);
}

TEST(Rails, APatternThatComesWrongKeepsARailOut) {
  Cables cables({"tcp", "tcp"});
  cables[1].corrupt = 1'000'000;
  Joined joined = cables.join();
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(rails_up(*joined.sender), 1U);
  const Received received = stream_through(joined, StreamShape{}, 50);
  EXPECT_EQ(received.wrong + received.late, 0U);
  wait_for({}, "the reason", [&] {
    return report(*joined.sender)[1].why.find("changed") != std::string::npos ||
           report(*joined.sender)[1].why.find("pattern") != std::string::npos;
  });
  cables[1].corrupt = 0;
  wait_until_up(*joined.sender, 2);
}

// Of any connection, at one end only: the other may see nothing of it.
TEST(Rails, RequestsThatFailOrNeverFinishLoseNoMessage) {
  StreamShape shape;
  shape.most_bytes = shape.least_bytes = 9000;
  shape.under_way = 8;
  for (const char* faults : {"fail=0.004,seed=1", "fail=0.004,seed=2", "fail=0.01,seed=3",
                             "drop=0.002,seed=4", "drop=0.004,seed=5"}) {
    std::array<std::unique_ptr<Transport>, 2> ends;
    for (std::unique_ptr<Transport>& end : ends) {
      std::vector<std::unique_ptr<Transport>> transports;
      for (const char* provider : {"tcp", "shm"}) {
        transports.push_back(
            make_faulty(make_plain_transport(provider, config_of()), parse_faults(faults)));
      }
      end = make_over(std::move(transports), config_of());
    }
    Joined joined = join(ends);
    const Received received = stream_through(joined, shape, 500);
    EXPECT_EQ(received.messages, 500U) << faults;
    EXPECT_EQ(received.wrong + received.late, 0U) << faults;
    std::uint64_t losses = 0;
    for (const RailReport& rail : report(*joined.sender)) losses += rail.losses;
    EXPECT_GT(losses, 0U) << faults;
  }
}

// Cuts at random moments, of one rail or the other, short and long, while messages go in both
// directions.
TEST(Rails, CutsAtRandomMomentsLoseNothing) {
  Cables cables({"tcp", "shm"});
  std::array<Joined, 2> pairs = {cables.join(0), cables.join(1)};
  std::atomic<bool> stop = false;
  std::array<std::uint64_t, 2> sent{};
  std::array<Received, 2> received{};
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (std::size_t direction = 0; direction < 2; ++direction) {
    StreamShape shape;
    shape.seed = direction + 1;
    threads.push_back(guarded(failures, [&, direction, shape] {
      sent[direction] = send_stream(*pairs[direction].sender, shape, [&] { return stop.load(); });
    }));
    threads.push_back(guarded(failures, [&, direction, shape] {
      received[direction] = receive_stream(*pairs[direction].receiver, shape);
    }));
  }
  std::mt19937 random(7);
  const int share = std::min(4, ropewalk::testing::share());
  const auto until = testing::Clock::now() + 7000ms / share;
  int cuts = 0;
  while (testing::Clock::now() < until && failures == 0) {
    Cable& cable = cables[random() % 2];
    cable.cut = random() % 2 == 0 ? Cut::kSilent : Cut::kError;
    ++cuts;
    // Most are flaps, some outlast the probes.
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 4 == 0 ? 400 : random() % 30));
    cable.cut = Cut::kNone;
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 80));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_GT(cuts, 10 / share);
  for (std::size_t direction = 0; direction < 2; ++direction) {
    EXPECT_GT(sent[direction], 0U);
    EXPECT_EQ(received[direction].messages, sent[direction]);
    EXPECT_EQ(received[direction].wrong, 0U);
    EXPECT_EQ(received[direction].late, 0U);
  }
}

// ---- two hosts -----------------------------------------------------------------------------

Joined join_hosts(const testing::TwoHosts& hosts, std::array<std::unique_ptr<Transport>, 2>& ends,
                  const Config& config) {
  Joined joined;
  std::exception_ptr failure;
  // The threads that look after the transports are started in their hosts.
  std::unique_ptr<Listener> listener;
  const auto on = [&](int host, auto&& body) {
    std::thread([&] {
      try {
        hosts.enter(host);
        body();
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
    if (failure) std::rethrow_exception(failure);
  };
  on(1, [&] {
    ends[1] = rails::make_transport(config);
    listener = ends[1]->listen(0);
  });
  on(0, [&] {
    ends[0] = rails::make_transport(config);
    joined.sender = ends[0]->connect(0, listener->handle())->poll();
    wait_for({}, "connecting", [&] {
      if (joined.receiver == nullptr) joined.receiver = listener->accept();
      return joined.receiver != nullptr && joined.sender->ready();
    });
  });
  return joined;
}

TEST(RailsOfHosts, InterfacesThatGoDownAndSwitchesThatDropLoseNothing) {
  const testing::TwoHosts hosts({60, 60});
  if (!hosts.ready()) GTEST_SKIP() << "needs the right to make network namespaces";
  if (!hosts.shaped()) GTEST_SKIP() << "needs the kernel's sch_tbf";
  Config config;
  config.set("PEER_LOSS_TIME", "20s", "test");
  std::array<std::unique_ptr<Transport>, 2> ends;
  Joined joined = join_hosts(hosts, ends, config);
  wait_until_up(*joined.sender, 2);
  std::atomic<bool> stop = false;
  std::uint64_t sent = 0;
  Received received;
  std::atomic<int> failures = 0;
  std::thread sending = guarded(failures, [&] {
    hosts.enter(0);
    sent = send_stream(*joined.sender, StreamShape{}, [&] { return stop.load(); });
  });
  std::thread receiving = guarded(failures, [&] {
    hosts.enter(1);
    received = receive_stream(*joined.receiver, StreamShape{});
  });
  std::mt19937 random(3);
  const auto until = testing::Clock::now() + 7s;
  while (testing::Clock::now() < until) {
    const int pair = static_cast<int>(random() % 2);
    const int host = static_cast<int>(random() % 2);
    const bool silent = random() % 2 == 0;
    silent ? hosts.silence(pair, host) : hosts.down(pair, host);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 500));
    silent ? hosts.join(pair, host) : hosts.up(pair, host);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
  }
  stop = true;
  sending.join();
  receiving.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(received.messages, sent);
  EXPECT_EQ(received.wrong, 0U);
  EXPECT_EQ(received.late, 0U);
  std::uint64_t losses = 0;
  for (const RailReport& rail : report(*joined.sender)) losses += rail.losses;
  EXPECT_GT(losses, 0U);
}

TEST(RailsOfHosts, ASlowRailIsLeftOut) {
  const testing::TwoHosts hosts({80, 8});
  if (!hosts.ready()) GTEST_SKIP() << "needs the right to make network namespaces";
  if (!hosts.shaped()) GTEST_SKIP() << "needs the kernel's sch_tbf";
  std::array<std::unique_ptr<Transport>, 2> ends;
  Joined joined = join_hosts(hosts, ends, Config{});
  wait_until_up(*joined.sender, 2);
  StreamShape shape;
  shape.least_bytes = shape.most_bytes;
  bool left_out = false;
  for (int i = 0; i < 20 && !left_out; ++i) {
    EXPECT_EQ(stream_through(joined, shape, 60, &hosts).wrong, 0U);
    const RailReport slow = report(*joined.sender)[1];
    left_out = slow.left_out && slow.why.find("a quarter") != std::string::npos;
  }
  EXPECT_TRUE(left_out) << joined.sender->describe();
}

}  // namespace
}  // namespace ropewalk::transport::rails
