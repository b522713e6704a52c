// Side channels with strangers and faulty peers.
#include "transport/messaging/side_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <utility>

namespace ropewalk::transport::messaging {
namespace {

std::pair<FileDescriptor, FileDescriptor> socket_pair() {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

TEST(SideChannelTest, SendsNothingToAnUnprovenPeer) {
  auto [own, theirs] = socket_pair();
  SideChannel channel = SideChannel::connecting(std::move(own), tcp::Token{}, tcp::Reply{});
  channel.send(Note::kHello, "secret");
  std::array<char, 256> heard{};
  EXPECT_EQ(recv(theirs.get(), heard.data(), heard.size(), MSG_DONTWAIT),
            static_cast<ssize_t>(tcp::kHelloBytes));
  tcp::Reply wrong{};
  wrong.fill(std::byte{1});
  const auto reply = tcp::encode(wrong);
  ASSERT_EQ(send(theirs.get(), reply.data(), reply.size(), 0), static_cast<ssize_t>(reply.size()));
  EXPECT_FALSE(channel.poll());
  EXPECT_TRUE(channel.ended());
  EXPECT_NE(channel.reason().find("secret"), std::string::npos);
}

TEST(SideChannelTest, EndsAtAMalformedNote) {
  auto [own, theirs] = socket_pair();
  SideChannel channel = SideChannel::accepting(std::move(own), tcp::Reply{});
  const std::array<std::uint32_t, 2> head = {99, 4};
  ASSERT_EQ(send(theirs.get(), head.data(), sizeof head, 0), static_cast<ssize_t>(sizeof head));
  EXPECT_FALSE(channel.poll());
  EXPECT_TRUE(channel.ended());
  EXPECT_NE(channel.reason().find("malformed"), std::string::npos);
}

}  // namespace
}  // namespace ropewalk::transport::messaging
