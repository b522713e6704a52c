// What is the fabric transport's own: the library and providers that are not there, two transports
// in one process, connections that break while others go on, headers that are malformed.
#include "transport/messaging/ofi/ofi.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "transport/messaging/ofi/wire.h"
#include "transport/registry.h"

namespace ropewalk::transport::ofi {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

template <typename Step>
void poll_until(Step step) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!step()) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("hangs");
    std::this_thread::yield();
  }
}

Config over(const std::string& provider) {
  Config config;
  config.set("SOCKET_IFNAME", "=lo", "test");
  config.set("OFI_PROVIDER", provider, "test");
  return config;
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

std::string why_none(const Config& config) {
  const auto transport = make_transport(config);
  EXPECT_EQ(transport->num_devices(), 0);
  try {
    (void)transport->listen(0);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kSystem);
    return error.what();
  }
  return {};
}

TEST(OfiLibrary, AbsentIsNoDevice) {
  Config config = over("");
  config.set("OFI_LIBRARY", "/nonexistent/libfabric.so.1", "test");
  EXPECT_NE(why_none(config).find("/nonexistent/libfabric.so.1"), std::string::npos);
}

TEST(OfiLibrary, NotALibraryIsNoDevice) {
  const std::string path = ::testing::TempDir() + "/libfabric_text.so";
  std::ofstream(path) << "no library\n";
  Config config = over("");
  config.set("OFI_LIBRARY", path, "test");
  EXPECT_NE(why_none(config).find("libfabric_text.so"), std::string::npos);
}

TEST(OfiLibrary, WithoutItsFunctionsIsNoDevice) {
  Config config = over("");
  config.set("OFI_LIBRARY", "libm.so.6", "test");
  EXPECT_NE(why_none(config).find("it has no function fi_"), std::string::npos);
}

#ifdef RW_OLD_LIBFABRIC
TEST(OfiLibrary, TooOldIsNoDevice) {
  Config config = over("");
  config.set("OFI_LIBRARY", RW_OLD_LIBFABRIC, "test");
  EXPECT_NE(why_none(config).find("it is libfabric 1.16; 1.17 or later is needed"),
            std::string::npos);
}
#endif

TEST(OfiProvider, UnknownIsNoDevice) {
  EXPECT_NE(why_none(over("no;such;provider")).find("provider no;such;provider: fi_getinfo"),
            std::string::npos);
}

TEST(OfiProvider, TakesTheInterfaceThatIsNamed) {
  const auto transport = make_transport(over("tcp;ofi_rxm"));
  ASSERT_EQ(transport->num_devices(), 1);
  EXPECT_EQ(transport->properties(0).name, "lo");
  EXPECT_EQ(summary(*transport).provider, "tcp;ofi_rxm");
  EXPECT_FALSE(summary(*transport).rdma);
}

TEST(OfiProvider, DifferentOnesDoNotMeet) {
  const auto one = make_transport(over("tcp;ofi_rxm"));
  const auto other = make_transport(over("shm"));
  std::string words;
  try {
    (void)connected(*one, *other);
  } catch (const Error& error) {
    words = error.what();
  }
  EXPECT_NE(words.find("tcp;ofi_rxm"), std::string::npos) << words;
  EXPECT_NE(words.find("shm"), std::string::npos) << words;
}

TEST(OfiProvider, AHandleOfTcpIsNone) {
  const auto tcp = transport::make_transport("tcp", over(""));
  const auto transport = make_transport(over("tcp;ofi_rxm"));
  const auto listener = tcp->listen(0);
  EXPECT_THROW((void)transport->connect(0, listener->handle()), Error);
}

class OfiOver : public ::testing::TestWithParam<const char*> {};

// Two communicators of one process.
TEST_P(OfiOver, TwoTransportsInOneProcess) {
  const auto first = make_transport(over(GetParam()));
  const auto second = make_transport(over(GetParam()));
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

// What one connection's end does to its endpoint does not reach the others.
// With endpoints of their own: a shared one is closed, as its provider may still write.
TEST_P(OfiOver, OthersGoOnWhenOneBreaks) {
  Config config = over(GetParam());
  config.set("OFI_ENDPOINTS", "separate", "test");
  const auto transport = make_transport(config);
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
TEST_P(OfiOver, MemoryThatIsGivenUpStaysAsItIs) {
  const auto transport = make_transport(over(GetParam()));
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

INSTANTIATE_TEST_SUITE_P(Providers, OfiOver, ::testing::Values("tcp;ofi_rxm", "shm", "net"),
                         [](const auto& chosen) {
                           std::string name = chosen.param;
                           return name == "tcp;ofi_rxm" ? std::string("tcp") : name;
                         });

TEST(OfiWire, LengthsMustAgree) {
  Header header;
  header.type = Type::kEager;
  header.bytes = 5;
  std::array<std::byte, kHeaderBytes + 8> bytes{};
  std::memcpy(bytes.data(), &header, kHeaderBytes);
  EXPECT_TRUE(decode(bytes.data(), kHeaderBytes + 5));
  EXPECT_FALSE(decode(bytes.data(), kHeaderBytes + 4));
  EXPECT_FALSE(decode(bytes.data(), kHeaderBytes - 1));
  header.type = static_cast<Type>(99);
  std::memcpy(bytes.data(), &header, kHeaderBytes);
  EXPECT_FALSE(decode(bytes.data(), kHeaderBytes + 5));
  header.type = Type::kAnnounce;
  header.bytes = kMaxMessageBytes + 1;
  std::memcpy(bytes.data(), &header, kHeaderBytes);
  EXPECT_FALSE(decode(bytes.data(), kHeaderBytes));
}

}  // namespace
}  // namespace ropewalk::transport::ofi
