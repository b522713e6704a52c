#include "transport/messaging/ofi/connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/log.h"
#include "core/random.h"
#include "transport/simple_requests.h"

namespace ropewalk::transport::ofi {
namespace {

// Polling the side channel takes a system call, so it is not polled each time that nothing has
// arrived.
constexpr unsigned kLookPeriod = 16;
constexpr auto kLookTime = std::chrono::milliseconds(1);
// The same where something has arrived, perhaps for others that share the endpoint.
constexpr auto kBusyLookTime = std::chrono::milliseconds(10);

// 2: small messages, too, may be requested. 3: a kAnnounce is of several receives, and has tickets.
// 4: small messages may have a head beside 8 KiB.
constexpr std::uint32_t kHelloVersion = 5;

// The first note of each end; the address follows.
struct HelloNote {
  std::uint32_t version;
  std::uint32_t number;
  std::uint32_t proof;
  std::uint8_t writes;
  std::uint8_t verifies;
  std::uint16_t address_bytes;
  std::uint64_t seed;
  std::uint64_t endpoint;
  std::array<char, 64> provider;
};
static_assert(std::is_trivially_copyable_v<HelloNote>);

template <typename T>
T random_value() {
  T value{};
  fill_random(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::array<char, 64> fixed(const std::string& text) {
  std::array<char, 64> chars{};
  std::copy_n(text.begin(), std::min(text.size(), chars.size() - 1), chars.begin());
  return chars;
}

}  // namespace

FabricRegistration::FabricRegistration(std::shared_ptr<Endpoint> endpoint, Region made)
    : region(std::move(made)),
      endpoint_(std::move(endpoint)),
      kind_(region.gpu != nullptr ? MemoryKind::kCuda : MemoryKind::kHost),
      base_(region.base),
      bytes_(region.bytes) {}

void FabricRegistration::check_holds(const void* data, std::size_t bytes) const {
  const std::uint64_t offset = reinterpret_cast<std::uint64_t>(data) - base_;  // wraps below it
  if (offset > bytes_ || bytes > bytes_ - offset) {
    throw Error(Errc::kInvalidArgument,
                "ofi: {} bytes at {} are not within the registration of {} bytes at {:#x}", bytes,
                data, bytes_, base_);
  }
}

FabricRegistration::~FabricRegistration() {
  const Lock lock(endpoint_->mutex);
  region.close();
}

Connection::Connection(std::shared_ptr<Endpoint> endpoint, SideChannel side, std::string peer,
                       Verify verify, tcp::Linger& linger)
    : kept_(std::move(endpoint)),
      fabric_(*kept_),
      side_(std::move(side)),
      peer_name_(std::move(peer)),
      verify_(verify),
      seed_(random_value<std::uint64_t>()),
      linger_(linger),
      proof_(random_value<std::uint32_t>()) {}

void Connection::enter() {
  {
    const Lock lock(fabric_.mutex);
    number_ = fabric_.add(*this);
  }
  greet();
}

Connection::~Connection() {
  const Lock lock(fabric_.mutex);
  fabric_.remove(number_);
  linger_.adopt(side_.release());
}

std::unique_ptr<Registration> Connection::register_kind(void* data, std::size_t bytes,
                                                        MemoryKind kind, bool host,
                                                        std::uint64_t access) {
  if (kind == MemoryKind::kCuda) return register_gpu(data, bytes, access, nullptr);
  std::unique_ptr<Registration> plain = HostRegistration::make(data, bytes, kind);
  if (!host) return plain;
  const Lock lock(fabric_.mutex);
  return std::make_unique<FabricRegistration>(kept_, fabric_.register_memory(data, bytes, access));
}

std::unique_ptr<Registration> Connection::register_gpu(void* data, std::size_t bytes,
                                                       std::uint64_t access, const DmaBuf* given) {
  if (!fabric_.takes_gpu_memory()) {
    throw Error(Errc::kInvalidArgument, "ofi: {} on {} takes host memory only: {}",
                fabric_.device().provider, fabric_.device().name,
                fabric_.device().why_no_gpu_memory);
  }
  const window::GpuMemory memory = window::find_gpu_memory(fabric_.cuda().gpus, data, bytes);
  const Lock lock(fabric_.mutex);
  return std::make_unique<FabricRegistration>(kept_,
                                              fabric_.register_gpu_memory(memory, access, given));
}

void Connection::greet() {
  const std::span<const std::byte> address = fabric_.address();
  HelloNote hello{};
  hello.version = kHelloVersion;
  hello.number = number_;
  hello.proof = proof_;
  hello.writes = fabric_.device().large != LargePath::kTagged ? 1 : 0;
  hello.verifies = verify_ != Verify::kOff ? 1 : 0;
  hello.address_bytes = static_cast<std::uint16_t>(address.size());
  hello.seed = seed_;
  hello.endpoint = fabric_.id();
  hello.provider = fixed(fabric_.device().provider);
  std::vector<std::byte> payload(sizeof hello + address.size());
  std::memcpy(payload.data(), &hello, sizeof hello);
  std::memcpy(payload.data() + sizeof hello, address.data(), address.size());
  side_.send(Note::kHello, payload);
}

void Connection::take_hello(const SideChannel::Received& note) {
  HelloNote hello{};
  if (greeted_ || note.payload.size() < sizeof hello) {
    return fail(Errc::kPeerLost, "a malformed hello arrived over the side channel");
  }
  std::memcpy(&hello, note.payload.data(), sizeof hello);
  hello.provider.back() = '\0';
  if (hello.version != kHelloVersion || note.payload.size() != sizeof hello + hello.address_bytes) {
    return fail(Errc::kPeerLost, "the peer has another version of this transport");
  }
  if (hello.provider != fixed(fabric_.device().provider)) {
    return fail(Errc::kInvalidUsage,
                fmt::format("the peer runs over {}, and this end over {}: OFI_PROVIDER or "
                            "FI_PROVIDER must choose the same",
                            hello.provider.data(), fabric_.device().provider));
  }
  try {
    peer_ = fabric_.peer(std::span(note.payload).subspan(sizeof hello));
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  }
  if (hello.endpoint != fabric_.id()) peer_kept_ = Endpoint::of_this_process(hello.endpoint);
  peer_number_ = hello.number;
  peer_proof_ = hello.proof;
  writes_ = hello.writes != 0 && fabric_.device().large != LargePath::kTagged;
  verifies_ = hello.verifies != 0 && verify_ != Verify::kOff;
  // Each end has drawn one: both take the sum.
  seed_ += hello.seed;
  greeted_ = true;
  on_greeted();
  for (const Ahead& message : std::exchange(ahead_, {})) {
    handle(message.header, message.payload);
  }
}

void Connection::on_message(const Header& header, std::span<const std::byte> payload) {
  if (greeted_) return handle(header, payload);
  if (ahead_.size() >= kEagerCredits + kMaxRequests * kMaxGroup) {
    return fail(Errc::kPeerLost, "the peer sends more before its hello than it may");
  }
  ahead_.push_back({header, {payload.begin(), payload.end()}});
}

void Connection::look_at_side() {
  while (std::optional<SideChannel::Received> note = side_.poll()) {
    if (note->note == Note::kHello) {
      take_hello(*note);
    } else if (note->note == Note::kBroken) {
      fail(Errc::kPeerLost, note->text());
    } else {
      on_note(*note);
    }
  }
  if (side_.ended() && !closed_) {
    closed_ = true;
    closed_at_ = Clock::now();
    if (!greeted_) fail(Errc::kPeerLost, side_.reason());
  }
}

void Connection::drive() {
  const bool moved = fabric_.progress();
  if (!greeted_ || ++drives_ % kLookPeriod == 0) {
    const Clock::time_point now = Clock::now();
    if (!greeted_ || now - looked_ > (moved ? kBusyLookTime : kLookTime)) {
      looked_ = now;
      look_at_side();
    }
  }
  attend_now();
}

void Connection::attend_now() {
  if (failed()) return;
  try {
    flush_controls();
    attend();
  } catch (const Error& error) {
    fail(error.code(), error.what());
  }
}

void Connection::control(Header header, Operation* told) {
  if (failed()) return;
  header.to = peer_number_;
  header.proof = peer_proof_;
  controls_.push_back({header, told});
}

void Connection::control_announcement(Header header, std::span<const std::uint64_t> addresses) {
  if (failed()) return;
  control(header);
  Control& queued = controls_.back();
  queued.announced = addresses.size();
  std::copy(addresses.begin() + 1, addresses.end(), queued.more_addresses.begin());
}

void Connection::flush_controls() {
  while (!controls_.empty() && greeted_) {
    Control& next = controls_.front();
    const iovec more{next.more_addresses.data(), (next.announced - 1) * sizeof(std::uint64_t)};
    const std::span<const iovec> payload(&more, next.announced > 1 ? 1 : 0);
    if (fabric_.send(peer_, next.header, payload, nullptr) == Endpoint::Sent::kNotNow) return;
    Operation* const told = controls_.front().told;
    controls_.pop_front();
    if (told != nullptr) told->finished(*told, {});
  }
}

Error Connection::named(Errc code, const std::string& reason) const {
  return {code,
          "ofi connection with {} ({} on {}): {}",
          peer_name_,
          fabric_.device().provider,
          fabric_.device().name,
          reason};
}

void Connection::fail(Errc code, const std::string& reason) {
  if (failed()) return;
  error_ = named(code, reason);
  failed_.store(true, std::memory_order_release);
  controls_.clear();
  side_.send(Note::kBroken, reason);
  on_failed();
}

void Connection::throw_if_failed() const {
  if (failed()) throw Error(*error_);
}

void Connection::on_retired(const std::string& reason) { fail(Errc::kPeerLost, reason); }

}  // namespace ropewalk::transport::ofi
