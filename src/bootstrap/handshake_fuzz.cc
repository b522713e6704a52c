// Fuzzes the handshake and the frames. The first byte picks what the rest is fed to: a server, a
// client, or one end of an established pair. Without the secret nothing may be established, and no
// message may come out of an established end.
#include <sodium.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "bootstrap/handshake.h"
#include "bootstrap/join_protocol.h"
#include "bootstrap/monitor.h"
#include "core/error.h"

namespace {

using ropewalk::bootstrap::Claims;
using ropewalk::bootstrap::Secret;
using ropewalk::bootstrap::ServiceId;
using ropewalk::bootstrap::Session;

constexpr ServiceId kService = {1, 2, 3, 4, 5, 6, 7, 8};

Secret fresh_secret() {
  ropewalk::bootstrap::require_sodium();
  Secret secret{};
  randombytes_buf(secret.data(), secret.size());
  return secret;
}

void feed_pieces(Session& session, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t piece =
        std::min<std::size_t>(bytes.size(), 1 + std::to_integer<std::size_t>(bytes[0]) % 97);
    session.feed(bytes.first(piece));
    bytes = bytes.subspan(piece);
    std::vector<std::byte> message;
    if (session.next(message)) std::abort();  // nobody with the secret sent one
  }
}

void move_output(Session& from, Session& to) {
  const std::vector<std::byte> bytes(from.output().begin(), from.output().end());
  from.consume(bytes.size());
  to.feed(bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> rest = std::as_bytes(std::span(data + 1, size - 1));
  const Secret secret = fresh_secret();
  try {
    switch (data[0] % 6) {
      case 0: {
        Session server = Session::server(secret, kService);
        feed_pieces(server, rest);
        if (server.established()) std::abort();
        break;
      }
      case 1: {
        Session client = Session::client(secret, kService, Claims{});
        feed_pieces(client, rest);
        if (client.established()) std::abort();
        break;
      }
      case 2: {
        Session server = Session::server(secret, kService);
        Session client = Session::client(secret, kService, Claims{});
        move_output(server, client);
        move_output(client, server);
        move_output(server, client);
        if (!server.established() || !client.established()) std::abort();
        feed_pieces((data[0] & 0x80) != 0 ? server : client, rest);
        break;
      }
      case 3: (void)ropewalk::bootstrap::decode_notices(rest, 8); break;
      case 4: (void)ropewalk::bootstrap::decode_unique_id(rest); break;
      case 5: {
        ropewalk::bootstrap::WireReader in(rest);
        (void)ropewalk::bootstrap::RankRecord::read(in);
        break;
      }
    }
  } catch (const ropewalk::Error&) {
  }
  return 0;
}
