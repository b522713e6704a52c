#include "machine/shared_text.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

#include "core/digest.h"
#include "core/error.h"

namespace ropewalk::machine {
namespace {

// Memory that nobody wrote reads as zeros.
enum State : std::uint32_t { kNone = 0, kInTheMaking = 1, kThere = 2 };

struct Header {
  std::atomic<std::uint32_t> state;
  std::uint64_t bytes;
  std::uint64_t digest;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace

std::string SharedText::get(const std::function<std::string()>& make,
                            const std::function<void()>& waiting) {
  auto& header = *reinterpret_cast<Header*>(segment_->beside_links(sizeof(Header)));
  std::uint32_t state = header.state.load(std::memory_order_acquire);
  while (state != kThere) {
    if (state == kNone &&
        header.state.compare_exchange_strong(state, kInTheMaking, std::memory_order_acquire)) {
      try {
        const std::string made = make();
        if (made.size() > link::HostSegment::kBytesBesideLinks - sizeof(Header)) {
          throw Error(Errc::kInvalidArgument, "{} bytes for a host's ranks to share; at most {}",
                      made.size(), link::HostSegment::kBytesBesideLinks - sizeof(Header));
        }
        std::byte* const text =
            segment_->beside_links(sizeof(Header) + made.size()) + sizeof(Header);
        std::memcpy(text, made.data(), made.size());
        header.bytes = made.size();
        header.digest = digest(made);
      } catch (...) {
        header.state.store(kNone, std::memory_order_release);
        throw;
      }
      header.state.store(kThere, std::memory_order_release);
      break;
    }
    waiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    state = header.state.load(std::memory_order_acquire);
  }
  const std::byte* const text =
      segment_->beside_links(sizeof(Header) + header.bytes) + sizeof(Header);
  std::string copied(reinterpret_cast<const char*>(text), header.bytes);
  if (digest(copied) != header.digest) {
    throw Error(Errc::kInternal, "a text that the ranks of this host share was overwritten");
  }
  return copied;
}

}  // namespace ropewalk::machine
