#include "bootstrap/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "bootstrap/test_support.h"

namespace ropewalk::bootstrap {
namespace {

Secret secret(unsigned char seed) {
  Secret made{};
  made.fill(seed);
  return made;
}
constexpr ServiceId kService = {1, 2, 3, 4, 5, 6, 7, 8};
const Claims kClaims{Claims::Purpose::kLink, 3, 8, 4};

std::vector<std::byte> take(Session& session) {
  std::vector<std::byte> bytes(session.output().begin(), session.output().end());
  session.consume(bytes.size());
  return bytes;
}

void establish(Session& client, Session& server) {
  client.feed(take(server));
  server.feed(take(client));
  client.feed(take(server));
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(Handshake, BothEndsProveAndExchangeMessages) {
  Session client = Session::client(secret(1), kService, kClaims);
  Session server = Session::server(secret(1), kService);
  establish(client, server);
  ASSERT_TRUE(client.established());
  ASSERT_TRUE(server.established());
  EXPECT_EQ(server.claims().rank, 3);
  EXPECT_EQ(server.claims().size, 8);
  EXPECT_EQ(server.claims().target, 4);
  EXPECT_EQ(server.claims().purpose, Claims::Purpose::kLink);
  for (const std::string_view text : {"one", "", "three"}) {
    client.send(bytes_of(text));
    server.send(bytes_of(text));
  }
  const std::vector<std::byte> to_client = take(server);
  server.feed(take(client));
  for (const std::byte byte : to_client) client.feed(std::span(&byte, 1));  // cut anywhere
  std::vector<std::byte> message;
  for (const std::string_view text : {"one", "", "three"}) {
    ASSERT_TRUE(server.next(message));
    EXPECT_EQ(message, bytes_of(text));
    ASSERT_TRUE(client.next(message));
    EXPECT_EQ(message, bytes_of(text));
  }
  EXPECT_FALSE(server.next(message));
  EXPECT_FALSE(client.next(message));
}

TEST(Handshake, MessagesAreNotReadableOnTheWire) {
  Session client = Session::client(secret(1), kService, kClaims);
  Session server = Session::server(secret(1), kService);
  establish(client, server);
  const std::vector<std::byte> text = bytes_of("a segment's unguessable name");
  client.send(text);
  const std::vector<std::byte> wire = take(client);
  EXPECT_EQ(std::search(wire.begin(), wire.end(), text.begin(), text.end()), wire.end());
}

// Frames are numbered from 0 on each connection: with the same keys two would share a nonce.
TEST(Handshake, KeysAreNewOnEachConnection) {
  std::vector<std::vector<std::byte>> frames;
  for (int connection = 0; connection < 2; ++connection) {
    Session client = Session::client(secret(1), kService, kClaims);
    Session server = Session::server(secret(1), kService);
    establish(client, server);
    for (Session* end : {&client, &server}) {
      end->send(bytes_of("the same"));
      frames.push_back(take(*end));
    }
  }
  std::sort(frames.begin(), frames.end());
  EXPECT_EQ(std::adjacent_find(frames.begin(), frames.end()), frames.end());
}

TEST(Handshake, ServerRefusesAWrongSecretAndSaysNothing) {
  Session client = Session::client(secret(2), kService, kClaims);
  Session server = Session::server(secret(1), kService);
  client.feed(take(server));
  EXPECT_THROW(server.feed(take(client)), Error);
  EXPECT_FALSE(server.established());
  EXPECT_TRUE(server.output().empty());
}

TEST(Handshake, ClientRefusesAServerWithoutTheSecret) {
  Session client = Session::client(secret(1), kService, kClaims);
  Session server = Session::server(secret(1), kService);
  client.feed(take(server));
  const std::vector<std::byte> invented(Session::kProofBytes, std::byte{7});
  EXPECT_THROW(client.feed(invented), Error);
  EXPECT_FALSE(client.established());
}

TEST(Handshake, ClientDoesNotTakeItsOwnProofBack) {
  Session client = Session::client(secret(1), kService, kClaims);
  Session server = Session::server(secret(1), kService);
  client.feed(take(server));
  const std::vector<std::byte> response = take(client);
  EXPECT_THROW(client.feed(std::span(response).last(Session::kProofBytes)), Error);
}

TEST(Handshake, ChallengeDoesNotDependOnTheSecret) {
  Session one = Session::server(secret(1), kService);
  Session two = Session::server(secret(1), kService);
  const std::vector<std::byte> first = take(one);
  const std::vector<std::byte> second = take(two);
  ASSERT_EQ(first.size(), Session::kChallengeBytes);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 16, second.begin()));  // all but the nonce
  EXPECT_NE(first, second);
}

TEST(Handshake, ClientNamesAnotherService) {
  Session client = Session::client(secret(1), {9, 9}, kClaims);
  Session server = Session::server(secret(1), kService);
  const auto [code, text] = error_of([&] { client.feed(take(server)); });
  EXPECT_EQ(code, Errc::kInvalidUsage);
  EXPECT_NE(text.find("another unique id"), std::string::npos) << text;
  EXPECT_TRUE(client.output().empty());
}

TEST(Handshake, ClientNamesAnotherProtocol) {
  Session client = Session::client(secret(1), kService, kClaims);
  const auto [code, text] = error_of(
      [&] { client.feed(bytes_of("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")); });
  EXPECT_EQ(code, Errc::kInvalidUsage);
  EXPECT_NE(text.find("not a Ropewalk bootstrap"), std::string::npos) << text;
}

TEST(Handshake, EveryChangedByteOfTheResponseIsRefused) {
  for (std::size_t offset = 0; offset < Session::kResponseBytes; ++offset) {
    Session client = Session::client(secret(1), kService, kClaims);
    Session server = Session::server(secret(1), kService);
    client.feed(take(server));
    std::vector<std::byte> response = take(client);
    ASSERT_EQ(response.size(), Session::kResponseBytes);
    response[offset] ^= std::byte{1};
    EXPECT_THROW(server.feed(response), Error) << offset;
  }
}

TEST(Handshake, AReplayedResponseIsRefused) {
  Session client = Session::client(secret(1), kService, kClaims);
  Session server = Session::server(secret(1), kService);
  client.feed(take(server));
  const std::vector<std::byte> response = take(client);
  server.feed(response);
  ASSERT_TRUE(server.established());
  Session other = Session::server(secret(1), kService);
  EXPECT_THROW(other.feed(response), Error);
}

// The server's challenge can be replayed with it: only the client's nonce is new.
TEST(Handshake, AReplayedProofIsRefused) {
  Session server = Session::server(secret(1), kService);
  Session client = Session::client(secret(1), kService, kClaims);
  const std::vector<std::byte> challenge = take(server);
  client.feed(challenge);
  server.feed(take(client));
  const std::vector<std::byte> proof = take(server);
  Session other = Session::client(secret(1), kService, kClaims);
  other.feed(challenge);
  EXPECT_THROW(other.feed(proof), Error);
  client.feed(proof);
  EXPECT_TRUE(client.established());
}

TEST(Handshake, ChangedReplayedAndSwappedFramesAreRefused) {
  const auto sent = [](int which, std::size_t flip) {
    Session client = Session::client(secret(1), kService, kClaims);
    Session server = Session::server(secret(1), kService);
    establish(client, server);
    client.send(bytes_of("first"));
    std::vector<std::byte> first = take(client);
    client.send(bytes_of("other"));
    const std::vector<std::byte> second = take(client);
    std::vector<std::byte> message;
    const auto feed_and_read = [&](const std::vector<std::byte>& bytes) {
      server.feed(bytes);
      while (server.next(message)) {
      }
    };
    if (which == 0) {  // changed, the length too; more bytes follow so that no frame stays short
      first[flip] ^= std::byte{1};
      first.resize(first.size() + 1024);
      feed_and_read(first);
    } else if (which == 1) {  // replayed
      feed_and_read(first);
      feed_and_read(first);
    } else {  // swapped
      feed_and_read(second);
    }
  };
  for (std::size_t flip = 0; flip < 4 + 5 + 16; ++flip) {
    // A length of 64 KiB and more waits for bytes that do not come; the tag fails when they do.
    if (flip == 2 || flip == 3) continue;
    EXPECT_THROW(sent(0, flip), Error) << flip;
  }
  EXPECT_THROW(sent(1, 0), Error);
  EXPECT_THROW(sent(2, 0), Error);
}

TEST(Handshake, AnEndlessFrameIsRefusedByItsLength) {
  Session client = Session::client(secret(1), kService, kClaims);
  Session server = Session::server(secret(1), kService);
  establish(client, server);
  server.feed(std::vector<std::byte>(4, std::byte{0xff}));
  std::vector<std::byte> message;
  const auto [code, text] = error_of([&] { (void)server.next(message); });
  EXPECT_EQ(code, Errc::kPeerLost);
  EXPECT_NE(text.find("4294967295"), std::string::npos) << text;
}

TEST(Handshake, RandomBytesNeverEstablish) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Session server = Session::server(secret(1), kService);
    Session client = Session::client(secret(1), kService, kClaims);
    for (Session* session : {&server, &client}) {
      std::vector<std::byte> noise(300);
      for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
      EXPECT_THROW(session->feed(noise), Error);
      EXPECT_FALSE(session->established());
    }
  }
}

}  // namespace
}  // namespace ropewalk::bootstrap
