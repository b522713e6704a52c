// Tests that only TCP needs: frames, interface filters, handles, strangers on the port.
#include "transport/messaging/tcp/tcp.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/file_descriptor.h"
#include "core/testing/in_child.h"
#include "transport/checksum.h"
#include "transport/messaging/tcp/connection.h"
#include "transport/messaging/tcp/handshake.h"

namespace ropewalk::transport::tcp {
namespace {

namespace testing = ropewalk::testing;

constexpr auto kPatience = std::chrono::seconds(60);

template <typename Step>
void poll_until(Step step) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!step()) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("hangs");
    std::this_thread::yield();
  }
}

std::pair<std::unique_ptr<SendConnection>, std::unique_ptr<ReceiveConnection>> connected(
    Connector& connector, Listener& listener) {
  std::unique_ptr<SendConnection> sender;
  std::unique_ptr<ReceiveConnection> receiver;
  poll_until([&] {
    if (!sender) sender = connector.poll();
    if (!receiver) receiver = listener.accept();
    return sender && receiver;
  });
  return {std::move(sender), std::move(receiver)};
}

Config loopback() {
  Config config;
  config.set("SOCKET_IFNAME", "=lo", "test");
  return config;
}

TEST(TcpFrame, SurvivesTheWire) {
  Frame frame;
  frame.type = FrameType::kData;
  frame.tag = 0xfedcba98;
  frame.id = 77;
  frame.number = 5;
  frame.bytes = 1 << 30;
  frame.offset = 1000;
  frame.piece = kPieceBytes;
  frame.checksum = 0x0123456789abcdef;
  const auto bytes = encode(frame);
  const std::optional<Frame> back = decode(bytes, Reader::kReceiver);
  ASSERT_TRUE(back);
  EXPECT_EQ(encode(*back), bytes);
  EXPECT_FALSE(decode(bytes, Reader::kSender));
}

TEST(TcpFrame, LengthsMustAgree) {
  const auto accepted = [](const std::function<void(Frame&)>& change, Reader reader) {
    Frame frame;
    frame.type = reader == Reader::kReceiver ? FrameType::kData : FrameType::kAnnounce;
    frame.bytes = 100;
    frame.piece = reader == Reader::kReceiver ? 10 : 0;
    change(frame);
    return decode(encode(frame), reader).has_value();
  };
  const auto type = [](std::uint32_t value) {
    return [value](Frame& frame) { frame.type = static_cast<FrameType>(value); };
  };
  EXPECT_TRUE(accepted([](Frame&) {}, Reader::kReceiver));
  EXPECT_TRUE(accepted([](Frame&) {}, Reader::kSender));
  EXPECT_FALSE(accepted(type(0), Reader::kReceiver));
  EXPECT_FALSE(accepted(type(8), Reader::kSender));
  EXPECT_FALSE(accepted([](Frame& f) { f.offset = 91; }, Reader::kReceiver));
  EXPECT_FALSE(accepted([](Frame& f) { f.offset = ~0ULL - 4; }, Reader::kReceiver));
  EXPECT_FALSE(accepted([](Frame& f) { f.piece = 0; }, Reader::kReceiver));
  EXPECT_FALSE(accepted([](Frame& f) { f.bytes = ~0ULL; }, Reader::kReceiver));
  EXPECT_FALSE(accepted([](Frame& f) { f.piece = f.bytes = kPieceBytes + 1; }, Reader::kReceiver));
  EXPECT_FALSE(accepted([](Frame& f) { f.type = FrameType::kEager; }, Reader::kReceiver));
  EXPECT_FALSE(accepted([](Frame& f) { f.piece = kEagerCredits + 1; }, Reader::kSender));
}

TEST(TcpHello, KnowsStrangersEarly) {
  Token token{};
  token.fill(std::byte{7});
  Hello hello;
  hello.token = token;
  hello.stream = 1;
  hello.streams = 2;
  const auto bytes = encode(hello);
  Hello seen;
  EXPECT_EQ(judge_hello({}, token, seen), HelloState::kIncomplete);
  EXPECT_EQ(judge_hello(std::span(bytes).first(47), token, seen), HelloState::kIncomplete);
  EXPECT_EQ(judge_hello(bytes, token, seen), HelloState::kProven);
  EXPECT_EQ(seen.stream, 1);
  EXPECT_EQ(seen.streams, 2);
  const std::byte wrong{'G'};
  EXPECT_EQ(judge_hello({&wrong, 1}, token, seen), HelloState::kStranger);
  token[15] = std::byte{8};
  EXPECT_EQ(judge_hello(bytes, token, seen), HelloState::kStranger);
  hello.token = token;
  hello.stream = 2;
  EXPECT_EQ(judge_hello(encode(hello), token, seen), HelloState::kStranger);
  hello.stream = 0;
  hello.streams = kMaxStreams + 1;
  EXPECT_EQ(judge_hello(encode(hello), token, seen), HelloState::kStranger);
}

TEST(Checksum, DependsOnEveryBitAndPosition) {
  std::vector<std::uint8_t> data(200);
  for (std::size_t bytes = 1; bytes <= data.size(); bytes += 13) {
    const std::uint64_t original = checksum(data.data(), bytes);
    EXPECT_NE(original, checksum(data.data(), bytes - 1));
    for (std::size_t bit = 0; bit < bytes * 8; ++bit) {
      data[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
      ASSERT_NE(original, checksum(data.data(), bytes)) << bit;
      data[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
    }
  }
  data[0] = 1;
  const std::uint64_t first = checksum(data.data(), data.size());
  std::swap(data[0], data[32]);
  EXPECT_NE(first, checksum(data.data(), data.size()));
}

TEST(TcpInterfaces, SharingOneCostsByTheCongestionControl) {
  EXPECT_DOUBLE_EQ(sharing_cost("cubic"), DeviceProperties().sharing_cost);
  EXPECT_DOUBLE_EQ(sharing_cost(""), DeviceProperties().sharing_cost);  // not known
  for (const char* bbr : {"bbr", "bbr2"}) EXPECT_GT(sharing_cost(bbr), sharing_cost("reno")) << bbr;
  EXPECT_GE(make_transport(Config())->properties(0).sharing_cost, sharing_cost("reno"));
}

TEST(TcpInterfaces, FilterThatLeavesNothingIsAnError) {
  Config config;
  config.set("SOCKET_IFNAME", "=nosuch0", "test");
  try {
    make_transport(config);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("SOCKET_IFNAME \"=nosuch0\""), std::string::npos);
  }
}

TEST(TcpHandle, KeepsBothFamilies) {
  Target target;
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(4242);
  six.sin6_addr = in6addr_loopback;
  std::memcpy(&target.address.storage, &six, sizeof six);
  target.proof.fill(std::byte{1});
  target.reply.fill(std::byte{2});
  std::optional<Target> back = decode_handle(encode(target));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->address.text(), "[::1]:4242");
  EXPECT_EQ(back->proof, target.proof);
  EXPECT_EQ(back->reply, target.reply);
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = htons(17);
  four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(&target.address.storage, &four, sizeof four);
  back = decode_handle(encode(target));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->address.text(), "127.0.0.1:17");
}

FileDescriptor call(const Target& target, bool blocking = true) {
  FileDescriptor made(socket(target.address.family(),
                             SOCK_STREAM | SOCK_CLOEXEC | (blocking ? 0 : SOCK_NONBLOCK), 0));
  if (connect(made.get(), target.address.get(), target.address.length()) != 0 && blocking) {
    throw system_error(errno, "connect");
  }
  return made;
}

// Strangers of every kind stand before a real peer, which must still get through, in order.
TEST(TcpListener, StrangersDisturbNobody) {
  const auto transport = make_transport(loopback());
  const auto listener = transport->listen(0);
  const Target target = *decode_handle(listener->handle());
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 300; ++i) {  // more than are kept
    strangers.push_back(call(target));
    const int kind = i % 5;
    Hello hello;
    hello.streams = 1;
    const auto wrong_secret = encode(hello);
    std::vector<char> stream(100'000, 'x');
    const auto say = [&](const void* words, std::size_t bytes) {
      EXPECT_GT(send(strangers.back().get(), words, bytes, MSG_DONTWAIT), 0);
    };
    if (kind == 1) say("GET / HTTP/1.1\r\n", 16);
    if (kind == 2) say(wrong_secret.data(), 20);
    if (kind == 3) say(wrong_secret.data(), 48);
    if (kind == 4) say(stream.data(), stream.size());
    if (i % 7 == 0) {
      EXPECT_EQ(listener->accept(), nullptr);
    }
  }
  const auto connector = transport->connect(0, listener->handle());
  const auto ends = connected(*connector, *listener);
  const auto& sender = ends.first;
  const auto& receiver = ends.second;
  // More of them come while the real connection works.
  for (int i = 0; i < 100; ++i) strangers.push_back(call(target));
  EXPECT_EQ(listener->accept(), nullptr);
  char in[5] = {};
  const ReceiveBuffer buffer{in, 5, 0, nullptr};
  auto receive = receiver->receive({&buffer, 1});
  std::unique_ptr<Request> send;
  poll_until([&] {
    if (!send) send = sender->send("hello", 5, 0, nullptr);
    return receive->test().has_value();
  });
  EXPECT_EQ(std::memcmp(in, "hello", 5), 0);
  // Those who spoke wrongly were hung up on.
  std::size_t ended = 0;
  for (const FileDescriptor& stranger : strangers) {
    char byte = 0;
    const ssize_t got = recv(stranger.get(), &byte, 1, MSG_DONTWAIT);
    EXPECT_NE(got, 1) << "a stranger was told something";
    if (got == 0 || errno == ECONNRESET) ++ended;
  }
  EXPECT_GE(ended, 180U);
}

TEST(TcpListener, HalfAConnectionIsNoConnection) {
  const auto transport = make_transport(loopback());
  const auto listener = transport->listen(0);
  const Target target = *decode_handle(listener->handle());
  Hello hello;
  hello.token = target.proof;
  hello.streams = 2;
  const FileDescriptor first = call(target);
  const auto bytes = encode(hello);
  ASSERT_EQ(send(first.get(), bytes.data(), bytes.size(), 0), 48);
  const FileDescriptor same_again = call(target);
  ASSERT_EQ(send(same_again.get(), bytes.data(), bytes.size(), 0), 48);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(listener->accept(), nullptr);
    std::this_thread::yield();
  }
}

/// The TCP sockets that this process has open.
int open_tcp_sockets() {
  int found = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int domain = 0;
    socklen_t bytes = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_INET) ++found;
  }
  return found;
}

// A child that lived longer would hide from the peer that this process has ended.
TEST(TcpConnection, AForkedChildHasNoneOfItsSockets) {
  const int before = open_tcp_sockets();
  const auto transport = make_transport(loopback());
  const auto listener = transport->listen(0);
  const auto connector = transport->connect(0, listener->handle());
  const auto ends = connected(*connector, *listener);
  EXPECT_GE(open_tcp_sockets(), before + 3);
  EXPECT_EQ(testing::in_child([&] { return open_tcp_sockets() - before; }), 0);
}

// Two ends over which messages can pass.
struct ReadyPair {
  ReadyPair() {
    std::tie(sender, receiver) = connected(*connector, *listener);
    poll_until([&] { return sender->ready() && receiver->ready(); });
  }
  std::unique_ptr<Transport> transport = make_transport(loopback());
  std::unique_ptr<Listener> listener = transport->listen(0);
  std::unique_ptr<Connector> connector = transport->connect(0, listener->handle());
  std::unique_ptr<SendConnection> sender;
  std::unique_ptr<ReceiveConnection> receiver;
};

// Both ends drive only when a descriptor of one of them is ready: nothing is ever waited for that
// none of them tells.
TEST(TcpConnection, DescriptorsTellWhenToGoOn) {
  ReadyPair pair;
  SendConnection& sender = *pair.sender;
  ReceiveConnection& receiver = *pair.receiver;
  const auto wait = [&](const Request* sends, const Request* receives) {
    std::vector<pollfd> descriptors;
    const bool known = (sends == nullptr || sender.add_descriptors(descriptors)) &&
                       (receives == nullptr || receiver.add_descriptors(descriptors));
    return !known || ::poll(descriptors.data(), descriptors.size(), 10'000) > 0;
  };
  std::size_t sleeps = 0;
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{5'000}, std::size_t{100'000},
                                  std::size_t{3} << 20U, std::size_t{33} << 20U}) {
    const std::vector<std::byte> source(bytes, std::byte{3});
    std::vector<std::byte> target(bytes);
    const std::array<ReceiveBuffer, 1> buffers{{{target.data(), bytes, 1, nullptr}}};
    std::unique_ptr<Request> receives = receiver.receive(buffers);
    std::unique_ptr<Request> sends;
    poll_until([&] {
      if (!sends) sends = sender.send(source.data(), bytes, 1, nullptr);
      return sends != nullptr;
    });
    while (sends || receives) {
      if (sends && sends->test()) sends.reset();
      if (receives && receives->test()) receives.reset();
      if (!sends && !receives) break;
      ASSERT_TRUE(wait(sends.get(), receives.get())) << bytes;
      ++sleeps;
    }
    EXPECT_EQ(target, source);
  }
  EXPECT_GT(sleeps, 0U);
}

// A receiver for which nothing comes sleeps; one whose sender ends is woken.
TEST(TcpConnection, DescriptorsSleepWhileNothingComes) {
  ReadyPair pair;
  ReceiveConnection& receiver = *pair.receiver;
  std::array<std::byte, 8> target{};
  const std::array<ReceiveBuffer, 1> buffers{{{target.data(), target.size(), 1, nullptr}}};
  const std::unique_ptr<Request> receives = receiver.receive(buffers);
  EXPECT_FALSE(receives->test());
  std::vector<pollfd> descriptors;
  ASSERT_TRUE(receiver.add_descriptors(descriptors));
  EXPECT_EQ(::poll(descriptors.data(), descriptors.size(), 50), 0);
  pair.sender.reset();
  EXPECT_GT(::poll(descriptors.data(), descriptors.size(), 10'000), 0);
  EXPECT_THROW(poll_until([&] { return receives->test().has_value(); }), Error);
  descriptors.clear();
  EXPECT_FALSE(receiver.add_descriptors(descriptors));
}

// A listener that does not know the second secret gets no message.
TEST(TcpConnector, ListenerMustProveItselfToo) {
  const auto transport = make_transport(loopback());
  auto listener = transport->listen(0);
  Target target = *decode_handle(listener->handle());
  target.reply[3] ^= std::byte{1};
  const auto connector = transport->connect(0, encode(target));
  std::unique_ptr<SendConnection> sender;
  std::unique_ptr<ReceiveConnection> receiver;
  poll_until([&] {
    if (!sender) sender = connector->poll();
    return sender != nullptr;
  });
  EXPECT_EQ(sender->send("x", 1, 0, nullptr), nullptr);
  poll_until([&] { return (receiver = listener->accept()) != nullptr; });
  std::string words;
  try {
    poll_until([&] { return sender->send("x", 1, 0, nullptr) != nullptr; });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kPeerLost);
    words = error.what();
  }
  EXPECT_NE(words.find("does not know the secret"), std::string::npos) << words;
}

// A proven peer that then writes nonsense breaks its own connection, nothing else.
TEST(TcpConnection, NonsenseEndsTheConnection) {
  const auto transport = make_transport(loopback());
  const auto listener = transport->listen(0);
  const Target target = *decode_handle(listener->handle());
  std::vector<Frame> nonsense(4);
  nonsense[0].type = FrameType::kData;  // for a receive that is not
  nonsense[0].id = 99;
  nonsense[0].bytes = nonsense[0].piece = 8;
  nonsense[1].type = FrameType::kAnnounce;  // not for a receiver
  nonsense[2].type = FrameType::kData;      // of another length than before
  nonsense[2].id = 1;
  nonsense[2].bytes = 1 << 20;
  nonsense[2].piece = 8;
  nonsense[3].type = FrameType::kEager;  // a wrong checksum
  nonsense[3].bytes = nonsense[3].piece = 8;
  nonsense[3].checksum = 12345;
  for (std::size_t i = 0; i < nonsense.size(); ++i) {
    SCOPED_TRACE(i);
    Hello hello;
    hello.token = target.proof;
    hello.streams = 1;
    hello.connection[0] = static_cast<std::byte>(i);
    const FileDescriptor peer = call(target);
    const auto greeting = encode(hello);
    ASSERT_EQ(send(peer.get(), greeting.data(), greeting.size(), 0), 48);
    std::unique_ptr<ReceiveConnection> receiver;
    poll_until([&] { return (receiver = listener->accept()) != nullptr; });
    std::vector<char> in(100);
    const ReceiveBuffer buffer{in.data(), in.size(), 0, nullptr};
    auto receive = receiver->receive({&buffer, 1});
    const auto bytes = encode(nonsense[i]);
    ASSERT_GT(send(peer.get(), bytes.data(), bytes.size(), 0), 0);
    char payload[8] = {};
    ASSERT_GT(send(peer.get(), payload, sizeof payload, 0), 0);
    constexpr std::array kWords = {"unexpected frame of type 3 on stream 0",
                                   "it sent an invalid frame header", "a message of 1048576 bytes",
                                   "a wrong checksum"};
    const Errc code = i == 2 ? Errc::kInvalidUsage : Errc::kPeerLost;
    const std::string words =
        testing::message_of([&] { poll_until([&] { return receive->test().has_value(); }); }, code);
    EXPECT_NE(words.find(kWords[i]), std::string::npos) << words;
    EXPECT_EQ(std::count(in.begin(), in.end(), 0), 100);
  }
}

// One stream of a sender ends while the other still has messages, which the receiver takes its time
// to ask for.
TEST(TcpConnection, MessagesBeforeTheEndOutliveTheWaitForAllStreamsToEnd) {
  const auto transport = make_transport(loopback());
  const auto listener = transport->listen(0);
  const Target target = *decode_handle(listener->handle());
  Hello hello;
  hello.token = target.proof;
  hello.streams = 2;
  FileDescriptor streams[2];
  for (FileDescriptor& stream : streams) {
    stream = call(target);
    const auto greeting = encode(hello);
    ASSERT_EQ(send(stream.get(), greeting.data(), greeting.size(), 0), 48);
    ++hello.stream;
  }
  std::unique_ptr<ReceiveConnection> receiver;
  poll_until([&] { return (receiver = listener->accept()) != nullptr; });
  const auto write = [&](std::initializer_list<Frame> frames) {
    std::vector<std::byte> bytes;
    for (const Frame& frame : frames) {
      const auto header = encode(frame);
      bytes.insert(bytes.end(), header.begin(), header.end());
      bytes.insert(bytes.end(), frame.piece, std::byte{7});
    }
    ASSERT_EQ(send(streams[0].get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  };

  // Within a message of several pieces the receiver reads both streams, and notices the end of one.
  std::vector<std::byte> large(kPieceBytes + 1);
  const ReceiveBuffer whole{large.data(), large.size(), 0, nullptr};
  auto receive = receiver->receive({&whole, 1});
  Frame piece;
  piece.type = FrameType::kData;
  piece.id = 1;
  piece.bytes = large.size();
  piece.piece = 1;
  write({piece});
  streams[1] = FileDescriptor();
  for (int i = 0; i < 50; ++i) {
    ASSERT_FALSE(receive->test().has_value());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  piece.offset = 1;
  piece.piece = kPieceBytes;
  std::thread rest([&] { write({piece}); });
  poll_until([&] { return receive->test().has_value(); });
  rest.join();

  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  Frame eager;
  eager.bytes = eager.piece = 8;
  write({eager, eager, eager});
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    std::array<std::byte, 8> in{};
    const ReceiveBuffer buffer{in.data(), in.size(), 0, nullptr};
    receive = receiver->receive({&buffer, 1});
    poll_until([&] { return receive->test().has_value(); });
    EXPECT_EQ(in.back(), std::byte{7});
  }
}

// Both ends of a connection of the system.
struct Sockets {
  FileDescriptor near;
  FileDescriptor far;
};
Sockets joined_sockets() {
  const FileDescriptor listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  Sockets made{FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), {}};
  if (bind(listening.get(), any, bytes) != 0 || listen(listening.get(), 1) != 0 ||
      getsockname(listening.get(), any, &bytes) != 0 || connect(made.near.get(), any, bytes) != 0) {
    throw system_error(errno, "joining two sockets");
  }
  made.far = FileDescriptor(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return made;
}

// What the system does not take at once is all that this writes.
// @return how many bytes it took
std::size_t fill(int socket) {
  const std::vector<char> some(10'000, 'x');
  std::size_t total = 0;
  for (;;) {
    const ssize_t taken = send(socket, some.data(), some.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken < 0 && errno == EAGAIN) return total;
    if (taken < 0) throw system_error(errno, "send");
    total += static_cast<std::size_t>(taken);
  }
}

// Reads to the end.
// @return how many bytes came, and how it ended: 0, or the error's number
std::pair<std::size_t, int> read_to_end(int socket, Linger& linger) {
  std::vector<char> buffer(10'000);
  std::size_t total = 0;
  std::optional<int> end;
  poll_until([&] {
    linger.poll();
    const ssize_t got = recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) total += static_cast<std::size_t>(got);
    if (got == 0) end = 0;
    if (got < 0 && errno != EAGAIN && errno != EINTR) end = errno;
    return end.has_value();
  });
  return {total, *end};
}

// The system resets a connection that is closed over unread bytes, or that gets bytes after that;
// the peer then loses what it had not read. So the socket is kept open, and arriving bytes are
// read.
TEST(TcpLinger, LastBytesArriveWhateverThePeerWrites) {
  for (const bool writes_later : {false, true}) {
    SCOPED_TRACE(writes_later);
    Linger linger;
    Sockets sockets = joined_sockets();
    const std::size_t sent = fill(sockets.near.get());
    EXPECT_EQ(send(sockets.far.get(), "unread", 6, 0), 6);
    linger.adopt(std::move(sockets.near));
    if (writes_later) {
      EXPECT_EQ(send(sockets.far.get(), "late", 4, MSG_NOSIGNAL), 4);
    }
    linger.poll();
    EXPECT_EQ(read_to_end(sockets.far.get(), linger), std::pair(sent, 0));
  }
}

// A peer may write much before it comes to read: it must not wait for room that nobody makes.
TEST(TcpLinger, LateBytesOfThePeerAreRead) {
  Linger linger;
  Sockets sockets = joined_sockets();
  const std::size_t sent = fill(sockets.near.get());
  linger.adopt(std::move(sockets.near));
  std::size_t left = std::size_t{32} << 20U;  // more than the system buffers
  poll_until([&] {
    const std::size_t taken = fill(sockets.far.get());
    left -= std::min(left, taken);
    linger.poll();
    return left == 0;
  });
  EXPECT_EQ(read_to_end(sockets.far.get(), linger), std::pair(sent, 0));
}

}  // namespace
}  // namespace ropewalk::transport::tcp
