// Mutual proof of a shared secret on a new connection, then encrypted messages. Bytes in, bytes
// out: no sockets here.
//
//   server -> client  challenge: magic, version, service id (public), 32-byte nonce
//   client -> server  response:  claims, 32-byte nonce, BLAKE2b keyed with the secret over
//                                "client", service id, server's nonce, claims, client's nonce
//   server -> client  proof:     the same over "server", ...
//   both directions   frames:    length (32 bits), ChaCha20-Poly1305 (RFC 8439) of the payload,
//                                the length as associated data, a counter as nonce
//
// Keys are derived from the secret (libsodium's crypto_kdf), those of the frames also from both
// nonces: one for each direction, new on each connection.
//
// Against whom: a stranger who reaches the port, reads, changes, cuts or replays traffic, but does
// not know the secret. He gets from a server a random nonce and a public id, nothing that depends
// on the secret; a server takes exactly one response from him, of fixed size, and reads none of
// its fields before the proof was compared (in constant time). A stranger who poses as the server
// gets one keyed hash over a nonce of the client's. How many unproven connections may wait, and how
// long, is bounded in listener.h. Ranks, who know the secret, trust each other. Traffic recorded
// today can be read by one who learns the secret later (no forward secrecy).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/unique_id.h"

namespace ropewalk::bootstrap {

/// What the connecting end says of itself. Covered by its proof.
struct Claims {
  enum class Purpose : std::uint16_t { kJoin = 1, kLink = 2, kRendezvous = 3 };
  Purpose purpose = Purpose::kJoin;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t target = -1;  ///< the rank that it wants to reach; -1 for a root service
};

/// One end of a connection.
class Session {
 public:
  static Session server(const Secret& secret, const ServiceId& service);
  static Session client(const Secret& secret, const ServiceId& service, const Claims& claims);

  /// Takes bytes from the connection. After a throw the session is dead: close the connection.
  ///
  /// @throws Error kInvalidUsage (client) when another service answers: the id is stale
  /// @throws Error kPeerLost for a wrong proof, a frame that was changed or is too long
  void feed(std::span<const std::byte> bytes);

  /// Bytes to write to the connection; the caller removes written bytes by consume().
  [[nodiscard]] std::span<const std::byte> output() const noexcept {
    return std::span(output_).subspan(written_);
  }
  void consume(std::size_t bytes);

  /// The other end has proven that it holds the secret.
  [[nodiscard]] bool established() const noexcept { return stage_ == Stage::kFrames; }
  /// Server, once established: what the other end claimed.
  [[nodiscard]] const Claims& claims() const noexcept { return claims_; }

  /// Queues one message.
  /// @pre established()
  void send(std::span<const std::byte> payload);
  /// Takes the next message.
  /// @return false when none is complete
  bool next(std::vector<std::byte>& payload);

  static constexpr std::size_t kMaxFrameBytes = (std::size_t{64} << 20) + 4096;
  static constexpr std::size_t kChallengeBytes = 48;
  static constexpr std::size_t kResponseBytes = 84;
  static constexpr std::size_t kProofBytes = 32;

 private:
  enum class Stage : std::uint8_t { kAwaitChallenge, kAwaitResponse, kAwaitProof, kFrames };
  using Hash = std::array<unsigned char, 32>;

  Session(const Secret& secret, const ServiceId& service, Stage stage);
  [[nodiscard]] std::size_t wanted() const noexcept;
  void require_magic() const;
  void on_challenge();
  void on_response();
  void on_proof();
  [[nodiscard]] std::vector<std::byte> transcript() const;
  [[nodiscard]] Hash proof(const char* label) const;
  void derive_keys();
  std::array<std::byte, 16> claims_bytes() const;

  Secret secret_;
  ServiceId service_;
  Stage stage_;
  bool is_server_;
  Claims claims_;
  std::array<unsigned char, 32> server_nonce_{};
  std::array<unsigned char, 32> client_nonce_{};
  Hash send_key_{};
  Hash receive_key_{};
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::vector<std::byte> input_;
  std::size_t read_ = 0;  // bytes at the front of input_ that were used up
  std::vector<std::byte> output_;
  std::size_t written_ = 0;
};

/// libsodium is ready to use.
/// @throws Error kSystem
void require_sodium();

}  // namespace ropewalk::bootstrap
