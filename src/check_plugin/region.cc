#include "check_plugin/region.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include "check_plugin/gpu.h"
#include "core/error.h"

namespace ropewalk::check_plugin {
namespace {

constexpr std::size_t kGuard = 4096;
constexpr std::byte kBlank{0xb7};

std::size_t rounded(std::size_t bytes) { return (bytes + kGuard - 1) / kGuard * kGuard; }

std::uint64_t scrambled(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  return value ^ (value >> 27);
}

void fill_bytes(std::byte* to, std::size_t bytes, std::uint64_t seed) {
  std::uint64_t state = scrambled(seed);
  std::size_t i = 0;
  for (; i + sizeof state <= bytes; i += sizeof state) {
    std::memcpy(to + i, &state, sizeof state);
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  }
  if (i < bytes) std::memcpy(to + i, &state, bytes - i);
}

}  // namespace

Region::Region(std::size_t bytes, int gpu) : bytes_(bytes), gpu_(gpu) {
  const std::size_t total = rounded(bytes) + 2 * kGuard;
  if (gpu_ < 0) {
    void* memory = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw system_error(errno, fmt::format("taking {} bytes", total));
    memory_ = static_cast<std::byte*>(memory);
    std::fill_n(memory_, total, kBlank);
  } else {
    memory_ = static_cast<std::byte*>(Gpus::allocate(total));
    const std::vector<std::byte> blank(total, kBlank);
    Gpus::to_gpu(memory_, blank.data(), total);
  }
  data_ = memory_ + kGuard;
}

Region::~Region() {
  // A rule that failed did not wait for its receives: the plugin's threads may still write here.
  if (std::uncaught_exceptions() > 0) return;
  if (gpu_ < 0) {
    munmap(memory_, rounded(bytes_) + 2 * kGuard);
  } else {
    Gpus::free(memory_);
  }
}

void* Region::register_on(Session& session, void* comm) const {
  void* mhandle = nullptr;
  session.expect(session.plugin().reg_mr(comm, data_, bytes_, type(), &mhandle), Call::kRegMr);
  return mhandle;
}

void Region::fill(std::size_t offset, std::size_t bytes, std::uint64_t seed) {
  if (gpu_ < 0) {
    fill_bytes(data_ + offset, bytes, seed);
    return;
  }
  std::vector<std::byte> staged(bytes);
  fill_bytes(staged.data(), bytes, seed);
  if (bytes > 0) Gpus::to_gpu(data_ + offset, staged.data(), bytes);
}

void Region::blank(std::size_t offset, std::size_t bytes) {
  if (gpu_ < 0) {
    std::fill_n(data_ + offset, bytes, kBlank);
    return;
  }
  const std::vector<std::byte> staged(bytes, kBlank);
  if (bytes > 0) Gpus::to_gpu(data_ + offset, staged.data(), bytes);
}

std::vector<std::byte> Region::copied(const std::byte* from, std::size_t bytes) const {
  std::vector<std::byte> copy(bytes);
  if (bytes == 0) return copy;
  if (gpu_ < 0) {
    std::copy_n(from, bytes, copy.data());
  } else {
    Gpus::to_host(copy.data(), from, bytes);
  }
  return copy;
}

std::optional<std::string> Region::difference(std::size_t offset, std::size_t bytes,
                                              std::uint64_t seed) const {
  const std::vector<std::byte> found = copied(data_ + offset, bytes);
  std::vector<std::byte> wanted(bytes);
  fill_bytes(wanted.data(), bytes, seed);
  const auto [at, other] = std::mismatch(found.begin(), found.end(), wanted.begin());
  if (at == found.end()) return {};
  return fmt::format("byte {} is 0x{:02x}, not 0x{:02x}", at - found.begin(),
                     static_cast<unsigned>(*at), static_cast<unsigned>(*other));
}

std::optional<std::size_t> Region::first_written(std::size_t offset, std::size_t bytes) const {
  const std::vector<std::byte> found = copied(data_ + offset, bytes);
  const auto at = std::find_if(found.begin(), found.end(), [](std::byte b) { return b != kBlank; });
  if (at == found.end()) return {};
  return static_cast<std::size_t>(at - found.begin());
}

void Region::check_guards() const {
  const std::size_t behind = rounded(bytes_) - bytes_ + kGuard;
  for (const auto& [from, bytes, where] :
       {std::tuple{memory_, kGuard, "before"}, std::tuple{data_ + bytes_, behind, "behind"}}) {
    const std::vector<std::byte> found = copied(from, bytes);
    if (std::any_of(found.begin(), found.end(), [](std::byte b) { return b != kBlank; })) {
      throw Failed{"nothing is written outside the registered memory",
                   fmt::format("a write {} it", where)};
    }
  }
}

}  // namespace ropewalk::check_plugin
