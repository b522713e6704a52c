#include "executor/host/shared_copy.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "core/process_memory.h"

namespace ropewalk::executor {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{32} << 10U;
constexpr std::uint32_t kWriteFailed = ~std::uint32_t{0};
constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::microseconds kLookAgain{200};

struct Claims {
  std::uint32_t chunk = 0;
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  [[nodiscard]] std::uint64_t word() const noexcept {
    return std::uint64_t{chunk} << 32U | std::uint64_t{first} << 16U | last;
  }
  [[nodiscard]] static Claims of(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word >> 32U),
            static_cast<std::uint32_t>(word >> 16U) & 0xffff,
            static_cast<std::uint32_t>(word) & 0xffff};
  }
};

std::uint32_t pieces_of(std::size_t bytes) {
  return static_cast<std::uint32_t>((bytes + kPieceBytes - 1) / kPieceBytes);
}

// Three eighths of the rest: large claims at first, which cost few system calls, small ones at the
// end, so that both sides finish together (guided self-scheduling: Polychronopoulos and Kuck, IEEE
// Transactions on Computers C-36, 1987).
std::uint32_t share(const Claims& claims) { return ((claims.last - claims.first) * 3 + 7) / 8; }

CopyDesk& desk_of(std::byte* memory) { return *reinterpret_cast<CopyDesk*>(memory + kLineBytes); }

}  // namespace

// ---- the reader -------------------------------------------------------------------------

SharedCopy::SharedCopy(const ReceiveEnd& link, int writer, std::byte* destination,
                       std::size_t bytes)
    : desk_(desk_of(link.memory)),
      writer_(writer),
      chunk_(static_cast<std::uint32_t>(link.received + 1)),
      bytes_(bytes),
      pieces_(pieces_of(bytes)),
      writer_begin_(pieces_) {
  RW_ASSERT(is_shared_copy(bytes));
  // The last post is closed: a writer that still looks at it will fail to claim.
  std::atomic_ref(desk_.destination)
      .store(reinterpret_cast<std::uint64_t>(destination), std::memory_order_relaxed);
  // Release: the destination before the claims.
  std::atomic_ref(desk_.claims).store(Claims{chunk_, 0, pieces_}.word(), std::memory_order_release);
}

SharedCopy::~SharedCopy() {
  if (claimed_ && rest() != Rest::kPending) return;
  // Before the check of the writer's state below: a writer that is stopped now sees this when it
  // continues.
  std::atomic_ref(desk_.destination).store(0, std::memory_order_seq_cst);
  if (!claimed_) {
    const std::uint64_t seen =
        std::atomic_ref(desk_.claims)
            .exchange(Claims{chunk_, 0, 0}.word(), std::memory_order_relaxed);
    writer_begin_ = Claims::of(seen).last;
  }
  const auto patience = std::chrono::steady_clock::now() + kPatience;
  while (rest() == Rest::kPending && !is_stopped(writer_) &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(kLookAgain);
  }
}

SharedCopy::Range SharedCopy::range(std::uint32_t first, std::uint32_t last) const noexcept {
  const std::size_t begin = first * kPieceBytes;
  return {begin, std::min(last * kPieceBytes, bytes_) - begin};
}

SharedCopy::Range SharedCopy::claim() {
  const std::atomic_ref word(desk_.claims);
  std::uint64_t seen = word.load(std::memory_order_relaxed);
  while (true) {
    const Claims free = Claims::of(seen);
    if (free.first >= free.last) {
      writer_begin_ = free.last;
      claimed_ = true;
      return {};
    }
    Claims left = free;
    left.first += share(free);
    if (word.compare_exchange_weak(seen, left.word(), std::memory_order_relaxed)) {
      return range(free.first, left.first);
    }
  }
}

SharedCopy::Rest SharedCopy::rest() const noexcept {
  if (writer_begin_ == pieces_) return Rest::kWritten;
  // Acquire: pairs with the writer's release after its system call.
  const std::uint64_t written = std::atomic_ref(desk_.written).load(std::memory_order_acquire);
  if (written >> 32U != chunk_) return Rest::kPending;
  const auto count = static_cast<std::uint32_t>(written);
  if (count == kWriteFailed) return Rest::kFailed;
  return count == pieces_ - writer_begin_ ? Rest::kWritten : Rest::kPending;
}

SharedCopy::Range SharedCopy::writers_part() const noexcept {
  return range(writer_begin_, pieces_);
}

// ---- the writer -------------------------------------------------------------------------

bool help_copying(SendEnd& link) {
  CopyDesk& desk = desk_of(link.memory);
  const std::atomic_ref word(desk.claims);
  const std::atomic_ref written(desk.written);
  bool wrote = false;
  std::uint64_t seen = word.load(std::memory_order_acquire);
  while (true) {
    const Claims free = Claims::of(seen);
    if (free.first >= free.last) return wrote;
    // The number's upper half: the chunk is one of the last that were published.
    const auto published = static_cast<std::uint32_t>(link.published);
    const std::uint64_t chunk = link.published - (published - free.chunk);
    const SlotHeader* header = link.header(chunk);
    const std::uint64_t destination =
        std::atomic_ref(desk.destination).load(std::memory_order_relaxed);
    if (destination == 0) return wrote;  // given up
    const std::uint32_t pieces = pieces_of(header->bytes);
    Claims left = free;
    left.last -= share(free);
    // When this succeeds the post is still the one that was read.
    if (!word.compare_exchange_weak(seen, left.word(), std::memory_order_acquire)) continue;
    const std::size_t begin = left.last * kPieceBytes;
    const std::size_t end = std::min<std::size_t>(free.last * kPieceBytes, header->bytes);
    std::uint32_t count = pieces - left.last;
    try {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process
      const auto* source = reinterpret_cast<const std::byte*>(header->address) + begin;
      if (!write_process(link.process, destination + begin, source, end - begin,
                         {&desk.destination, destination})) {
        count = kWriteFailed;  // the reader has given up
        link.process = 0;
      }
    } catch (const Error& error) {
      if (error.code() == Errc::kPeerLost) throw;
      log::info(log::kShm, "rank {} copies alone: {}", link.peer, error.what());
      count = kWriteFailed;
      link.process = 0;
    }
    written.store(std::uint64_t{free.chunk} << 32U | count, std::memory_order_release);
    if (count == kWriteFailed) return wrote;
    wrote = true;
    seen = word.load(std::memory_order_acquire);
  }
}

}  // namespace ropewalk::executor
