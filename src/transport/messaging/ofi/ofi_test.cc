// Tests that only the fabric transport needs: a missing library and missing providers, malformed
// headers.
#include "transport/messaging/ofi/ofi.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "transport/messaging/ofi/shared_file.h"
#include "transport/messaging/ofi/testing/providers.h"
#include "transport/messaging/ofi/testing/stand_in.h"
#include "transport/messaging/ofi/wire.h"
#include "transport/messaging/testing/ending.h"
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
  const auto transport = make_transport(over(sockets_provider()));
  ASSERT_EQ(transport->num_devices(), 1);
  EXPECT_EQ(transport->properties(0).name, "lo");
  EXPECT_EQ(summary(*transport).provider, sockets_provider());
  EXPECT_FALSE(summary(*transport).rdma);
}

TEST(OfiProvider, DifferentOnesDoNotMeet) {
  const auto one = make_transport(over(sockets_provider()));
  const auto other = make_transport(over("shm"));
  std::string words;
  try {
    (void)connected(*one, *other);
  } catch (const Error& error) {
    words = error.what();
  }
  EXPECT_NE(words.find(sockets_provider()), std::string::npos) << words;
  EXPECT_NE(words.find("shm"), std::string::npos) << words;
}

TEST(OfiProvider, AHandleOfTcpIsNone) {
  const auto tcp = transport::make_transport("tcp", over(""));
  const auto transport = make_transport(over(sockets_provider()));
  const auto listener = tcp->listen(0);
  EXPECT_THROW((void)transport->connect(0, listener->handle()), Error);
}

void transfer(Pair& pair, std::size_t bytes) {
  const std::vector<std::byte> source(bytes, std::byte{7});
  std::vector<std::byte> target(bytes);
  std::unique_ptr<Request> sends;
  std::unique_ptr<Request> receives;
  const std::array<ReceiveBuffer, 1> buffers{{{target.data(), bytes, 1, nullptr}}};
  poll_until([&] {
    if (!receives) receives = pair.receiver->receive(buffers);
    if (!sends) sends = pair.sender->send(source.data(), bytes, 1, nullptr);
    const bool sent = sends && sends->test();
    return receives && receives->test() && sent;
  });
  EXPECT_EQ(target, source);
}

// The endpoint is shared by its connections: one that ends must not take the others with it.
TEST(OfiProvider, AReceiveThatIsGivenUpHarmsNoOtherConnection) {
  constexpr std::size_t kBytes = 131'192;
  const auto from = make_transport(over(sockets_provider()));
  const auto to = make_transport(over(sockets_provider()));
  Pair given_up = connected(*from, *to);
  Pair other = connected(*from, *to);
  transfer(given_up, kBytes);
  transfer(other, kBytes);
  std::vector<std::byte> target(kBytes);
  const std::array<ReceiveBuffer, 1> buffers{{{target.data(), kBytes, 1, nullptr}}};
  auto receives = given_up.receiver->receive(buffers);
  ASSERT_NE(receives, nullptr);
  EXPECT_FALSE(receives->test());
  std::atomic<bool> ended = false;
  std::thread sender([&] {
    // Sending is what makes it look at what its peer says.
    std::vector<std::unique_ptr<Request>> sends;
    const std::uint64_t word = 0;
    try {
      poll_until([&] {
        auto request = given_up.sender->send(&word, sizeof word, 2, nullptr);
        if (request) sends.push_back(std::move(request));
        return ended.load();
      });
    } catch (const Error&) {
      // It is told that its receiver gave up.
    }
  });
  receives.reset();
  ended = true;
  sender.join();
  given_up = {};
  transfer(other, kBytes);
}

// A thread of the other one judges the patterns of a receiver that goes.
TEST(OfiProvider, ConnectionsMayEndUnverifiedWhileAnotherIsUsed) {
  const auto transport = make_transport(over(sockets_provider()));
  EXPECT_GT(messaging::testing::end_connections_beside_another(*transport, 60), 0);
}

// They are over at once, and still as many as there may be of others: who tests none makes progress
// with every send that is refused.
TEST(OfiProvider, SmallSendsCountWhileTheirRequestsAreHeld) {
  const auto from = make_transport(over(sockets_provider()));
  const auto to = make_transport(over(sockets_provider()));
  Pair pair = connected(*from, *to);
  transfer(pair, 8);
  const std::uint64_t word = 0;
  std::vector<std::unique_ptr<Request>> held;
  const auto send = [&] { return pair.sender->send(&word, sizeof word, 1, nullptr); };
  for (int i = 0; i < from->properties(0).max_requests; ++i) {
    std::unique_ptr<Request> request;
    poll_until([&] { return (request = send()) != nullptr; });
    EXPECT_EQ(request->test(), sizeof word);
    held.push_back(std::move(request));
  }
  EXPECT_EQ(send(), nullptr);
  held.pop_back();
  EXPECT_NE(send(), nullptr);
}

// They share an endpoint, at which something arrives whenever one of them looks.
TEST(OfiProvider, AConnectionIsMadeWhileAnotherIsBusy) {
  const auto transport = make_transport(over(sockets_provider()));
  Pair busy = connected(*transport, *transport);
  transfer(busy, 8);
  std::uint64_t word = 0;
  std::deque<std::unique_ptr<Request>> receives;
  const auto take = [&] {
    poll_until([&] { return receives.front()->test().has_value(); });
    receives.pop_front();
  };
  // What is sent here is found by the next that looks.
  const auto keep_busy = [&] {
    const std::array<ReceiveBuffer, 1> buffers{{{&word, sizeof word, 1, nullptr}}};
    std::unique_ptr<Request> receive;
    poll_until([&] { return (receive = busy.receiver->receive(buffers)) != nullptr; });
    receives.push_back(std::move(receive));
    poll_until([&] { return busy.sender->send(&word, sizeof word, 1, nullptr) != nullptr; });
    if (receives.size() > 8) take();
  };
  const auto listener = transport->listen(0);
  const auto connector = transport->connect(0, listener->handle());
  Pair pair;
  poll_until([&] {
    if (!pair.sender) pair.sender = connector->poll();
    if (!pair.receiver) pair.receiver = listener->accept();
    return pair.sender && pair.receiver;
  });
  bool ready = false;
  for (int i = 0; i < 2000 && !ready; ++i) {
    keep_busy();
    const bool one = pair.sender->ready();
    keep_busy();
    ready = pair.receiver->ready() && one;
  }
  EXPECT_TRUE(ready);
  while (!receives.empty()) take();
}

// More than buffers are posted for, and than are taken before some are posted again.
TEST(OfiProvider, BurstsOfSmallMessagesArriveInOrder) {
  constexpr std::uint64_t kBurst = 1000;
  const auto from = make_transport(over(sockets_provider()));
  const auto to = make_transport(over(sockets_provider()));
  Pair pair = connected(*from, *to);
  transfer(pair, 8);
  for (int burst = 0; burst < 3; ++burst) {
    for (std::uint64_t i = 0; i < kBurst; ++i) {
      poll_until([&] { return pair.sender->send(&i, sizeof i, 1, nullptr) != nullptr; });
    }
    for (std::uint64_t i = 0; i < kBurst; ++i) {
      std::uint64_t got = kBurst;
      const std::array<ReceiveBuffer, 1> buffers{{{&got, sizeof got, 1, nullptr}}};
      std::unique_ptr<Request> receives;
      poll_until([&] { return (receives = pair.receiver->receive(buffers)) != nullptr; });
      poll_until([&] { return receives->test().has_value(); });
      ASSERT_EQ(got, i);
    }
  }
}

#ifdef RW_STAND_IN_LIBFABRIC
// The two ways of long messages; without checksums nobody notices.
TEST(OfiChecksums, ALongMessageThatIsDamagedIsNoticed) {
  const StandInFabric fabric;
  for (const char* large : {"auto", "tagged"}) {
    for (const bool sums : {true, false}) {
      fabric.configure("");
      Config config = over_stand_ins();
      config.set("OFI_LARGE", large, "test");
      config.set("VERIFY", sums ? "all" : "connect", "test");
      const auto transport = make_transport(config);
      Pair pair = connected(*transport, *transport);
      transfer(pair, 100'000);
      fabric.configure("damage");
      const std::vector<std::byte> source(100'000, std::byte{7});
      std::vector<std::byte> target(source.size());
      const ReceiveBuffer buffer{target.data(), target.size(), 1, nullptr};
      std::string words;
      std::unique_ptr<Request> receives = pair.receiver->receive({&buffer, 1});
      std::unique_ptr<Request> sends = pair.sender->send(source.data(), source.size(), 1, nullptr);
      ASSERT_TRUE(receives && sends);
      try {
        poll_until([&] {
          (void)sends->test();
          return receives->test().has_value();
        });
      } catch (const Error& error) {
        words = error.what();
      }
      EXPECT_EQ(words.find("a message of 100000 bytes arrived with a wrong checksum") !=
                    std::string::npos,
                sums)
          << large << ": " << words;
      EXPECT_NE(target, source) << large;
      fabric.configure("");
    }
  }
}
#endif

// The files of provider shm's endpoints in /dev/shm, by name.
std::set<std::string> files_of_shm(pid_t process) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(std::to_string(process) + ":")) found.insert(name);
  }
  return found;
}

// A process that has an endpoint open, and ends by `end`, or stays. @return its id
template <typename End>
pid_t process_with_an_endpoint(End end) {
  std::array<int, 2> ready{};
  EXPECT_EQ(pipe(ready.data()), 0);
  const pid_t process = fork();
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // For ever, as of a plugin that is not finalized.
    auto* const transport = make_transport(over("shm")).release();
    auto* const pair = new Pair(connected(*transport, *transport));
    const bool written = pair->sender != nullptr && write(ready[1], "x", 1) == 1;
    end();
    _exit(written ? 0 : 1);
  }
  char byte = 0;
  close(ready[1]);
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  return process;
}

TEST(OfiSharedFiles, OfAProcessThatExitsAreRemoved) {
  const pid_t process = process_with_an_endpoint([] { exit(0); });
  int status = 0;
  waitpid(process, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(files_of_shm(process), std::set<std::string>());
}

TEST(OfiSharedFiles, OfAProcessThatWasKilledAreRemovedByTheNext) {
  const pid_t lives = process_with_an_endpoint([] { pause(); });
  const pid_t killed = process_with_an_endpoint([] { raise(SIGKILL); });
  waitpid(killed, nullptr, 0);
  ASSERT_EQ(files_of_shm(killed).size(), 1U);
  ASSERT_EQ(files_of_shm(lives).size(), 1U);
  const std::string another = "/dev/shm/" + std::to_string(killed) + ":0:99";
  std::ofstream(another) << "a program's that is not ours";
  const auto transport = make_transport(over("shm"));
  Pair pair = connected(*transport, *transport);
  EXPECT_EQ(files_of_shm(killed), (std::set<std::string>{std::to_string(killed) + ":0:99"}));
  EXPECT_EQ(files_of_shm(lives).size(), 1U);
  unlink(another.c_str());
  kill(lives, SIGKILL);
  waitpid(lives, nullptr, 0);
  remove_abandoned_files();
  EXPECT_EQ(files_of_shm(lives).size(), 0U);
}

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

TEST(OfiWire, AnAnnouncementHasAnAddressForEachReceive) {
  Header header;
  header.type = Type::kAnnounce;
  header.credits = 0xffff'ffff;  // a ticket
  std::array<std::byte, kHeaderBytes + kMostAnnounced * sizeof(std::uint64_t)> bytes{};
  std::memcpy(bytes.data(), &header, kHeaderBytes);
  for (std::size_t announced = 1; announced <= kMostAnnounced; ++announced) {
    const std::size_t payload = (announced - 1) * sizeof(std::uint64_t);
    EXPECT_TRUE(decode(bytes.data(), kHeaderBytes + payload)) << announced;
    EXPECT_EQ(announced_in(payload), announced);
    EXPECT_FALSE(decode(bytes.data(), kHeaderBytes + payload + 1)) << announced;
  }
  EXPECT_FALSE(decode(bytes.data(), bytes.size()));
}

TEST(OfiWire, AWordHasTicketAndLength) {
  const std::uint64_t word = word_of(0x8000'0001, kMostBytesOfWord);
  EXPECT_EQ(ticket_of(word), 0x8000'0001U);
  EXPECT_EQ(bytes_of(word), kMostBytesOfWord);
}

TEST(OfiWire, JoinedMessagesAreTakenOneByOne) {
  std::vector<std::byte> all;
  const auto append = [&](const JoinedHeader& header, std::size_t bytes) {
    const auto* at = reinterpret_cast<const std::byte*>(&header);
    all.insert(all.end(), at, at + sizeof header);
    all.resize(all.size() + bytes, std::byte{7});
  };
  append({.tag = 3, .index = 0xffff'ffff, .bytes = 5}, 5);
  append({.tag = 4, .index = 0, .bytes = 0}, 0);
  append({.tag = 5, .index = 1, .bytes = 10}, 9);  // one byte is missing
  std::span<const std::byte> rest = all;
  const std::optional<JoinedMessage> first = take_joined(rest);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->header.tag, 3U);
  EXPECT_EQ(first->header.index, 0xffff'ffffU);
  EXPECT_EQ(first->data.size(), 5U);
  EXPECT_EQ(first->data.back(), std::byte{7});
  const std::optional<JoinedMessage> second = take_joined(rest);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->header.tag, 4U);
  EXPECT_TRUE(second->data.empty());
  EXPECT_EQ(rest.size(), sizeof(JoinedHeader) + 9);
  EXPECT_FALSE(take_joined(rest));
  EXPECT_EQ(rest.size(), sizeof(JoinedHeader) + 9);
  rest = rest.first(sizeof(JoinedHeader) - 1);
  EXPECT_FALSE(take_joined(rest));
}

TEST(OfiProvider, MessagesOverSocketsWeighMore) {
  EXPECT_GT(make_transport(over(sockets_provider()))->properties(0).message_weight, 1);
  EXPECT_EQ(make_transport(over("shm"))->properties(0).message_weight, 1);
  EXPECT_EQ(transport::make_transport("tcp", over(""))->properties(0).message_weight, 1);
  // Ranks could disagree.
  EXPECT_EQ(
      transport::make_transport("auto", over(sockets_provider()))->properties(0).message_weight, 1);
}

}  // namespace
}  // namespace ropewalk::transport::ofi
