// What the transports over message-passing libraries must do beyond the contract: two transports in
// one process, connections that break while others go on, memory that is given up.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/settings.h"
#include "transport/messaging/ofi/testing/providers.h"
#include "transport/registry.h"
#include "transport/transport.h"

namespace ropewalk::transport::messaging {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

struct Case {
  std::string label;
  std::string provider;
  Settings settings;

  [[nodiscard]] std::unique_ptr<Transport> make(const Settings& more = {}) const {
    Config config;
    config.set("SOCKET_IFNAME", "=lo", "test");
    for (const auto& [name, value] : settings) config.set(name, value, "test");
    for (const auto& [name, value] : more) config.set(name, value, "test");
    return make_transport(provider, config);
  }
};

std::vector<Case> cases() {
  const std::vector<Case> all = {
      {"OfiTcp", "ofi", {{"OFI_PROVIDER", ofi::sockets_provider()}}},
      {"OfiShm", "ofi", {{"OFI_PROVIDER", "shm"}}},
      {"OfiNet", "ofi", {{"OFI_PROVIDER", "net"}}},
#ifdef RW_TEST_PSM2
      {"Psm2", "psm2", {{"PSM2_DEVICE", "shm"}}},
      {"Psm2Separate", "psm2", {{"PSM2_DEVICE", "shm"}, {"PSM2_ENDPOINTS", "separate"}}},
#endif
  };
  std::vector<Case> built;
  for (const std::string_view name : compiled_providers()) {
    for (const Case& each : all) {
      if (each.provider == name) built.push_back(each);
    }
  }
  return built;
}

constexpr auto kPatience = std::chrono::seconds(60);

template <typename Step>
void poll_until(Step step) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!step()) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("hangs");
    std::this_thread::yield();
  }
}

struct Pair {
  std::unique_ptr<SendConnection> sender;
  std::unique_ptr<ReceiveConnection> receiver;
};

Pair connected(Transport& from, Transport& to) {
  const auto listener = to.listen(0);
  const auto connector = from.connect(0, listener->handle());
  Pair pair;
  poll_until([&] {
    if (!pair.sender) pair.sender = connector->poll();
    if (!pair.receiver) pair.receiver = listener->accept();
    return pair.sender && pair.receiver;
  });
  poll_until([&] {
    const bool one = pair.sender->ready();
    return pair.receiver->ready() && one;
  });
  return pair;
}

void exchange(Pair& pair, std::size_t bytes) {
  std::vector<char> out(bytes, 'x');
  std::vector<char> in(bytes);
  const ReceiveBuffer buffer{in.data(), bytes, 3, nullptr};
  std::unique_ptr<Request> receive;
  std::unique_ptr<Request> send;
  poll_until([&] {
    if (!receive) receive = pair.receiver->receive({&buffer, 1});
    if (!send) send = pair.sender->send(out.data(), bytes, 3, nullptr);
    const bool sent = send && send->test();
    return receive && receive->test() && sent;
  });
  EXPECT_EQ(in, out);
}

class Messaging : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().label == "OfiNet" && GetParam().make()->num_devices() == 0) {
      GTEST_SKIP() << "this libfabric has no provider net";
    }
  }
};

// Two communicators of one process.
TEST_P(Messaging, TwoTransportsInOneProcess) {
  const auto first = GetParam().make();
  const auto second = GetParam().make();
  Pair there = connected(*first, *second);
  Pair back = connected(*second, *first);
  for (const std::size_t bytes : {1UL, 5000UL, 200'000UL}) {
    exchange(there, bytes);
    exchange(back, bytes);
  }
  // In an order that is not that of making, with the other still in use.
  there.receiver.reset();
  there.sender.reset();
  exchange(back, 200'000);
}

// The end of one connection does not affect the others on its endpoint. Over libfabric with
// endpoints of their own: a shared one is closed, as its provider may still write.
TEST_P(Messaging, OthersContinueWhenOneBreaks) {
  const auto transport = GetParam().make({{"OFI_ENDPOINTS", "separate"}});
  Pair stays = connected(*transport, *transport);
  for (int i = 0; i < 3; ++i) {
    Pair breaks = connected(*transport, *transport);
    std::vector<char> memory(500'000);
    const ReceiveBuffer buffer{memory.data(), memory.size(), 0, nullptr};
    auto receive = breaks.receiver->receive({&buffer, 1});
    ASSERT_TRUE(receive);
    receive.reset();  // given up
    EXPECT_THROW(poll_until([&] {
                   (void)breaks.receiver->receive({&buffer, 1});
                   return false;
                 }),
                 Error);
    exchange(stays, 300'000);
  }
}

// Registered memory is open to the peer no longer than its registration lasts.
TEST_P(Messaging, MemoryOfCancelledMessagesStaysUnchanged) {
  const auto transport = GetParam().make();
  Pair pair = connected(*transport, *transport);
  std::vector<char> in(1 << 20, 'a');
  const std::vector<char> out(in.size(), 'b');
  const auto memory = pair.receiver->register_memory(in.data(), in.size(), MemoryKind::kHost);
  const ReceiveBuffer buffer{in.data(), in.size(), 0, memory.get()};
  auto receive = pair.receiver->receive({&buffer, 1});
  ASSERT_TRUE(receive);
  (void)receive->test();
  std::unique_ptr<Request> send;
  poll_until(
      [&] { return (send = pair.sender->send(out.data(), out.size(), 0, nullptr)) != nullptr; });
  receive.reset();
  const std::vector<char> then = in;
  for (int i = 0; i < 1000; ++i) {
    try {
      (void)send->test();
    } catch (const Error&) {
    }
  }
  EXPECT_EQ(in, then);
}

INSTANTIATE_TEST_SUITE_P(Providers, Messaging, ::testing::ValuesIn(cases()),
                         [](const auto& chosen) { return chosen.param.label; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Messaging);

}  // namespace
}  // namespace ropewalk::transport::messaging
