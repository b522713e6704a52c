// Words by which the streams and hosts of ranks wait for each other: pinned memory of the host that
// all ranks share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ropewalk::handshake {

/// Words in memory of somebody else, zero at first. Threads: any.
class SharedWords {
 public:
  /// @param host aligned to a line; outlives this
  /// @param device its address for the GPU of this rank
  SharedWords(void* host, std::uint64_t device) noexcept
      : host_(static_cast<std::byte*>(host)), device_(device) {}

  [[nodiscard]] std::uint64_t on_device(const std::uint64_t& word) const noexcept {
    return device_ + static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(&word) - host_);
  }
  static std::uint64_t load(const std::uint64_t& word) noexcept {
    return std::atomic_ref(const_cast<std::uint64_t&>(word)).load();
  }
  static void store(std::uint64_t& word, std::uint64_t value) noexcept {
    std::atomic_ref(word).store(value);
  }

 protected:
  static constexpr std::size_t kLine = 64;  // of a cache
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return host_ + offset; }

 private:
  std::byte* host_;
  std::uint64_t device_;
};

}  // namespace ropewalk::handshake
