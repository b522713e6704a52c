#include "bootstrap/handshake.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "bootstrap/wire.h"
#include "core/error.h"

namespace ropewalk::bootstrap {
namespace {

constexpr std::uint32_t kMagic = 0x73425752;  // "RWBs"
constexpr std::uint16_t kVersion = 2;
constexpr char kKdfContext[crypto_kdf_CONTEXTBYTES + 1] = "rwbootst";
constexpr std::uint64_t kProofKey = 1;
constexpr std::uint64_t kFrameKey = 2;
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kTagBytes = crypto_aead_chacha20poly1305_ietf_ABYTES;

static_assert(kSecretBytes == crypto_kdf_KEYBYTES);

std::array<unsigned char, 32> subkey(const Secret& secret, std::uint64_t number) {
  std::array<unsigned char, 32> key{};
  crypto_kdf_derive_from_key(key.data(), key.size(), number, kKdfContext, secret.data());
  return key;
}

std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> frame_nonce(
    std::uint64_t counter) {
  std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> nonce{};
  for (std::size_t i = 0; i < 8; ++i) nonce[i] = static_cast<unsigned char>(counter >> (8 * i));
  return nonce;
}

unsigned char* as_chars(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* as_chars(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

void require_sodium() {
  static const int state = sodium_init();
  if (state < 0) throw Error(Errc::kSystem, "libsodium could not be initialised");
}

Session::Session(const Secret& secret, const ServiceId& service, Stage stage)
    : secret_(secret),
      service_(service),
      stage_(stage),
      is_server_(stage == Stage::kAwaitResponse) {
  require_sodium();
}

Session Session::server(const Secret& secret, const ServiceId& service) {
  Session session(secret, service, Stage::kAwaitResponse);
  randombytes_buf(session.server_nonce_.data(), session.server_nonce_.size());
  WireWriter challenge;
  challenge.number(kMagic);
  challenge.number(kVersion);
  challenge.number(std::uint16_t{0});
  challenge.raw(service);
  challenge.raw(session.server_nonce_);
  session.output_ = challenge.take();
  return session;
}

Session Session::client(const Secret& secret, const ServiceId& service, const Claims& claims) {
  Session session(secret, service, Stage::kAwaitChallenge);
  session.claims_ = claims;
  randombytes_buf(session.client_nonce_.data(), session.client_nonce_.size());
  return session;
}

std::array<std::byte, 16> Session::claims_bytes() const {
  WireWriter out;
  out.number(kVersion);
  out.number(static_cast<std::uint16_t>(claims_.purpose));
  out.number(claims_.rank);
  out.number(claims_.size);
  out.number(claims_.target);
  std::array<std::byte, 16> bytes{};
  std::copy(out.bytes().begin(), out.bytes().end(), bytes.begin());
  return bytes;
}

// What this handshake shares with no other.
std::vector<std::byte> Session::transcript() const {
  WireWriter out;
  out.raw(service_);
  out.raw(server_nonce_);
  out.raw(claims_bytes());
  out.raw(client_nonce_);
  return out.take();
}

Session::Hash Session::proof(const char* label) const {
  const auto key = subkey(secret_, kProofKey);
  const std::vector<std::byte> shared = transcript();
  crypto_generichash_state state;
  crypto_generichash_init(&state, key.data(), key.size(), sizeof(Hash));
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(label), 6);
  crypto_generichash_update(&state, as_chars(shared.data()), shared.size());
  Hash hash{};
  crypto_generichash_final(&state, hash.data(), hash.size());
  return hash;
}

void Session::derive_keys() {
  const auto key = subkey(secret_, kFrameKey);
  const std::vector<std::byte> shared = transcript();
  std::array<unsigned char, 64> both{};
  crypto_generichash_state state;
  crypto_generichash_init(&state, key.data(), key.size(), both.size());
  crypto_generichash_update(&state, as_chars(shared.data()), shared.size());
  crypto_generichash_final(&state, both.data(), both.size());
  Hash& from_client = is_server_ ? receive_key_ : send_key_;
  Hash& from_server = is_server_ ? send_key_ : receive_key_;
  std::copy_n(both.begin(), 32, from_client.begin());
  std::copy_n(both.begin() + 32, 32, from_server.begin());
  // Nothing below needs it any more; a core dump of a long run then does not hold it here.
  sodium_memzero(secret_.data(), secret_.size());
  sodium_memzero(both.data(), both.size());
  stage_ = Stage::kFrames;
}

std::size_t Session::wanted() const noexcept {
  switch (stage_) {
    case Stage::kAwaitChallenge: return kChallengeBytes;
    case Stage::kAwaitResponse: return kResponseBytes;
    case Stage::kAwaitProof: return kProofBytes;
    case Stage::kFrames: return 0;
  }
  return 0;
}

void Session::feed(std::span<const std::byte> bytes) {
  while (stage_ != Stage::kFrames) {
    const std::size_t missing = wanted() - input_.size();
    const std::size_t taken = std::min(missing, bytes.size());
    input_.insert(input_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(taken));
    bytes = bytes.subspan(taken);
    // A server of another kind may never send as much as a challenge has.
    if (stage_ == Stage::kAwaitChallenge && input_.size() >= 4) require_magic();
    if (taken < missing) return;
    switch (stage_) {
      case Stage::kAwaitChallenge: on_challenge(); break;
      case Stage::kAwaitResponse: on_response(); break;
      case Stage::kAwaitProof: on_proof(); break;
      case Stage::kFrames: break;
    }
    input_.clear();
  }
  if (read_ > 0 && read_ >= input_.size() / 2) {
    input_.erase(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(read_));
    read_ = 0;
  }
  input_.insert(input_.end(), bytes.begin(), bytes.end());
}

void Session::require_magic() const {
  if (WireReader(input_).number<std::uint32_t>() != kMagic) {
    throw Error(Errc::kInvalidUsage, "what answers there is not a Ropewalk bootstrap");
  }
}

void Session::on_challenge() {
  WireReader in(input_);
  (void)in.number<std::uint32_t>();
  if (const auto version = in.number<std::uint16_t>(); version != kVersion) {
    throw Error(Errc::kInvalidUsage, "the other end uses bootstrap version {}, this one {}",
                version, kVersion);
  }
  (void)in.number<std::uint16_t>();
  ServiceId service{};
  in.fill(service);
  if (service != service_) {
    throw Error(Errc::kInvalidUsage, "what answers there belongs to another unique id");
  }
  in.fill(server_nonce_);
  WireWriter response;
  response.number(kMagic);
  response.raw(claims_bytes());
  response.raw(client_nonce_);
  response.raw(proof("client"));
  output_ = response.take();
  stage_ = Stage::kAwaitProof;
}

void Session::on_response() {
  WireReader in(input_);
  const bool right_magic = in.number<std::uint32_t>() == kMagic;
  const bool right_version = in.number<std::uint16_t>() == kVersion;
  claims_.purpose = static_cast<Claims::Purpose>(in.number<std::uint16_t>());
  claims_.rank = in.number<std::int32_t>();
  claims_.size = in.number<std::int32_t>();
  claims_.target = in.number<std::int32_t>();
  in.fill(client_nonce_);
  Hash given{};
  in.fill(given);
  const Hash expected = proof("client");
  if (sodium_memcmp(given.data(), expected.data(), expected.size()) != 0 || !right_magic ||
      !right_version) {
    throw Error(Errc::kPeerLost, "a connection did not prove that it holds the secret");
  }
  const Hash own = proof("server");
  output_.insert(output_.end(), reinterpret_cast<const std::byte*>(own.data()),
                 reinterpret_cast<const std::byte*>(own.data() + own.size()));
  derive_keys();
}

void Session::on_proof() {
  WireReader in(input_);
  Hash given{};
  in.fill(given);
  const Hash expected = proof("server");
  if (sodium_memcmp(given.data(), expected.data(), expected.size()) != 0) {
    throw Error(Errc::kPeerLost, "the other end did not prove that it holds the secret");
  }
  derive_keys();
}

void Session::consume(std::size_t bytes) {
  written_ += bytes;
  RW_ASSERT(written_ <= output_.size());
  if (written_ == output_.size()) {
    output_.clear();
    written_ = 0;
  } else if (written_ > (std::size_t{1} << 20) && written_ > output_.size() / 2) {
    output_.erase(output_.begin(), output_.begin() + static_cast<std::ptrdiff_t>(written_));
    written_ = 0;
  }
}

void Session::send(std::span<const std::byte> payload) {
  RW_ASSERT(established());
  if (payload.size() > kMaxFrameBytes) {
    throw Error(Errc::kInvalidArgument, "a bootstrap message of {} bytes is longer than {}",
                payload.size(), kMaxFrameBytes);
  }
  const std::size_t begin = output_.size();
  output_.resize(begin + kLengthBytes + payload.size() + kTagBytes);
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    output_[begin + i] = static_cast<std::byte>(payload.size() >> (8 * i));
  }
  const auto nonce = frame_nonce(sent_++);
  crypto_aead_chacha20poly1305_ietf_encrypt(as_chars(output_.data() + begin + kLengthBytes),
                                            nullptr, as_chars(payload.data()), payload.size(),
                                            as_chars(output_.data() + begin), kLengthBytes, nullptr,
                                            nonce.data(), send_key_.data());
}

bool Session::next(std::vector<std::byte>& payload) {
  if (stage_ != Stage::kFrames) return false;
  const std::span<const std::byte> ready = std::span(input_).subspan(read_);
  if (ready.size() < kLengthBytes) return false;
  std::size_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = (length << 8) | std::to_integer<std::size_t>(ready[i]);
  }
  if (length > kMaxFrameBytes) {
    throw Error(Errc::kPeerLost, "a bootstrap message claims {} bytes, more than {}", length,
                kMaxFrameBytes);
  }
  if (ready.size() < kLengthBytes + length + kTagBytes) return false;
  payload.resize(length);
  const auto nonce = frame_nonce(received_);
  if (crypto_aead_chacha20poly1305_ietf_decrypt(
          as_chars(payload.data()), nullptr, nullptr, as_chars(ready.data() + kLengthBytes),
          length + kTagBytes, as_chars(ready.data()), kLengthBytes, nonce.data(),
          receive_key_.data()) != 0) {
    payload.clear();
    throw Error(Errc::kPeerLost, "a bootstrap message was changed in transit");
  }
  ++received_;
  read_ += kLengthBytes + length + kTagBytes;
  if (read_ == input_.size()) {
    input_.clear();
    read_ = 0;
  }
  return true;
}

}  // namespace ropewalk::bootstrap
