// Connections whose messages are encrypted and authenticated, over any transport.
//
// Each message is sealed by ChaCha20-Poly1305 (RFC 8439), as the bootstrap's are, with a key of its
// own for each connection and the message's number as nonce: messages that were changed, left out,
// repeated or reordered in transit are refused. An observer sees how long messages are, and when.
//
// Messages of one connection have one tag, and are sealed in the order in which they are started.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "transport/transport.h"

namespace ropewalk::link {

/// The key of one connection, in one direction. The listening end makes it, and sends it over the
/// bootstrap.
using LinkKey = std::array<std::byte, 32>;

/// From the system's generator.
/// @throws Error kSystem
LinkKey make_link_key();

/// The bytes of a sealed message in addition to its content.
inline constexpr std::size_t kSealBytes = 16;

/// `inner` is ready(). Messages have at most `most_bytes`, and at most `most_messages` are in
/// flight at once: each takes that much memory.
/// @throws Error kPeerLost from a receive's test() for a message that is not the one that was sent
std::unique_ptr<transport::SendConnection> sealed(std::unique_ptr<transport::SendConnection> inner,
                                                  const LinkKey& key, std::size_t most_bytes,
                                                  std::size_t most_messages);
std::unique_ptr<transport::ReceiveConnection> sealed(
    std::unique_ptr<transport::ReceiveConnection> inner, const LinkKey& key, std::size_t most_bytes,
    std::size_t most_messages);

}  // namespace ropewalk::link
