#include "transport/messaging/psm2/connection.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "core/first_line.h"
#include "core/log.h"
#include "core/random.h"
#include "transport/messaging/psm2/setup_threads.h"

namespace ropewalk::transport::psm2 {
namespace {

// Polling the side channel takes a system call, so it is not polled each time that nothing has
// arrived.
constexpr unsigned kLookPeriod = 16;
constexpr auto kLookTime = std::chrono::milliseconds(1);
// Polls without progress after which nothing is left in shared memory.
constexpr unsigned kIdlePolls = 4;
// The longest time that messages of a peer that was closed, or died, are in flight on a network.
constexpr auto kInFlightTime = std::chrono::seconds(1);

constexpr std::uint32_t kHelloVersion = 1;

// The first note of each end.
struct HelloNote {
  std::uint32_t version;
  std::uint32_t identity;
  std::uint32_t nonce;
  std::uint32_t window;
  std::uint64_t endpoint;
  std::uint64_t memory;  // over shared memory alone: which
  std::uint64_t seed;
  std::uint8_t shared_memory;
  std::uint8_t verify;
  std::array<std::uint8_t, 6> padding;
};
static_assert(std::is_trivially_copyable_v<HelloNote> && sizeof(HelloNote) == 48);

template <typename T>
T random_value() {
  T value{};
  fill_random(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// The /dev/shm of this process: two that have the same can reach each other's endpoints.
std::uint64_t shared_memory_identity() {
  struct stat folder {};
  if (stat("/dev/shm", &folder) != 0) return 0;
  const std::string text = fmt::format("{} {} {} {}", first_line("/proc/sys/kernel/random/boot_id"),
                                       folder.st_dev, folder.st_ino, getuid());
  return messaging::wire_checksum(text.data(), text.size());
}

}  // namespace

Connection::Connection(Lease lease, SideChannel side, std::string peer, Verify verify, Gpus& gpus,
                       tcp::Linger& linger, bool receives)
    : lease_(std::move(lease)),
      port_(*lease_),
      side_(std::move(side)),
      peer_name_(std::move(peer)),
      verify_(verify),
      gpus_(gpus),
      seed_(random_value<std::uint64_t>()),
      linger_(linger),
      receives_(receives) {}

Connection::~Connection() { linger_.adopt(side_.release()); }

void Connection::join() {
  {
    const Spin lock(port_.mutex);
    if (receives_) {
      constexpr unsigned kRandomBits = 16;
      identity_ = port_.take_number() << kRandomBits | random_value<std::uint16_t>();
      nonce_ = random_value<std::uint32_t>();
      window_ = port_.take_window();
    }
    greet();
    port_.add(*this);
  }
  ++port_.in_setup;
  poll_while_in_setup(port_);
}

void Connection::leave() {
  end_setup();
  port_.remove(*this);
  if (!receives_) return;
  port_.drop_messages_to(identity_);
  port_.give_window(window_);
  port_.give_number(identity_ >> 16);
}

void Connection::end_setup() {
  if (std::exchange(in_setup_, false)) --port_.in_setup;
}

void Connection::greet() {
  HelloNote hello{};
  hello.version = kHelloVersion;
  if (receives_) {
    hello.identity = identity_;
    hello.nonce = nonce_;
    hello.window = window_;
  }
  hello.endpoint = port_.id();
  hello.memory = shared_memory_identity();
  hello.seed = seed_;
  hello.shared_memory = port_.library().shared_memory() ? 1 : 0;
  hello.verify = static_cast<std::uint8_t>(verify_);
  side_.send(Note::kHello, std::as_bytes(std::span(&hello, 1)));
}

void Connection::take_hello(const SideChannel::Received& note) {
  HelloNote hello{};
  if (greeted_ || note.payload.size() != sizeof hello) {
    return fail(Errc::kPeerLost, "a malformed hello arrived over the side channel");
  }
  std::memcpy(&hello, note.payload.data(), sizeof hello);
  if (hello.version != kHelloVersion) {
    return fail(Errc::kPeerLost, "the peer has another version of this transport");
  }
  const bool alone = port_.library().shared_memory();
  if ((hello.shared_memory != 0) != alone) {
    return fail(Errc::kInvalidUsage,
                "one end runs over adapters, and the other over shared memory "
                "alone: PSM2_DEVICE must be the same");
  }
  // Over shared memory alone libpsm2 takes every endpoint for a local one.
  if (alone && hello.memory != shared_memory_identity()) {
    return fail(Errc::kInvalidUsage,
                "PSM2_DEVICE=shm is for the processes of one user and one "
                "/dev/shm; the peer is another's, or on another host");
  }
  peer_id_ = hello.endpoint;
  if (!receives_) {
    if (hello.identity >= kProbe || hello.window == 0) {
      return fail(Errc::kPeerLost, "a malformed hello arrived over the side channel");
    }
    identity_ = hello.identity;
    nonce_ = hello.nonce;
    window_ = hello.window;
  }
  shares_memory_ = port_.shares_memory(peer_id_);
  verifies_ = static_cast<Verify>(hello.verify) != Verify::kOff && verify_ != Verify::kOff;
  // Tags are matched otherwise, so both ends must do it.
  sums_ = static_cast<Verify>(hello.verify) == Verify::kAll && verify_ == Verify::kAll;
  // Each end has drawn one: both take the sum.
  seed_ += hello.seed;
  greeted_ = true;
  on_greeted();
}

void Connection::look_at_side() {
  while (std::optional<SideChannel::Received> note = side_.poll()) {
    if (note->note == Note::kHello) {
      take_hello(*note);
    } else if (note->note == Note::kBroken) {
      fail(Errc::kPeerLost, note->text());
    } else {
      if (note->note == Note::kEnd && !closed_) {
        closed_ = true;
        closed_at_ = last_progress_ = Clock::now();
      }
      on_note(*note);
    }
  }
  if (side_.ended() && !closed_) {
    closed_ = true;
    closed_at_ = last_progress_ = Clock::now();
    if (shares_memory_) port_.let_run_out();
    if (!greeted_) fail(Errc::kPeerLost, side_.reason());
  }
}

bool Connection::drained() const {
  if (!closed_ || idle_since_closed_ < kIdlePolls) return false;
  return shares_memory_ || Clock::now() - last_progress_ > kInFlightTime;
}

void Connection::drive() {
  const bool moved = port_.poll();
  if (closed_) {
    if (moved) {
      idle_since_closed_ = 0;
      last_progress_ = Clock::now();
    } else {
      ++idle_since_closed_;
    }
  }
  if (in_setup_ || (!moved && ++drives_ % kLookPeriod == 0)) {
    const Clock::time_point now = Clock::now();
    if (in_setup_ || now - looked_ > kLookTime) {
      looked_ = now;
      look_at_side();
    }
  }
  try {
    attend();
  } catch (const Error& error) {
    fail(error.code(), error.what());
  }
}

Error Connection::named(Errc code, const std::string& reason) const {
  return {code, "psm2 connection with {} ({}): {}", peer_name_, port_.device().name, reason};
}

void Connection::check(abi::Error error, const char* call) {
  if (error == abi::kOk) return;
  throw Error(Errc::kPeerLost, "{}: {}", call, port_.library().words(error));
}

void Connection::fail(Errc code, const std::string& reason) {
  if (failed()) return;
  error_ = named(code, reason);
  failed_.store(true, std::memory_order_release);
  end_setup();
  side_.send(Note::kBroken, reason);
  on_failed();
}

void Connection::throw_if_failed() const {
  if (failed()) throw Error(*error_);
}

void Connection::on_retired(const std::string& reason) { fail(Errc::kPeerLost, reason); }

}  // namespace ropewalk::transport::psm2
