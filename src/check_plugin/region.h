// Memory that messages are sent from and received into, with guards around it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "check_plugin/session.h"

namespace ropewalk::check_plugin {

/// Host memory or, with `gpu` not below 0, memory of that GPU (which must be current in the threads
/// that fill and check).
class Region {
 public:
  explicit Region(std::size_t bytes, int gpu = -1);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return data_ + offset; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int type() const noexcept {
    return gpu_ < 0 ? abi::kHostPointer : abi::kCudaPointer;
  }

  /// Registers all of it on a comm.
  /// @throws Failed
  void* register_on(Session& session, void* comm) const;

  /// Fills a range with bytes that `seed` determines.
  void fill(std::size_t offset, std::size_t bytes, std::uint64_t seed);
  /// Fills a range with a pattern that fill() never writes: memory that must not be touched.
  void blank(std::size_t offset, std::size_t bytes);
  /// Where a range differs from fill(seed): "byte 17 is 0x00, not 0x5a"; empty when it does not.
  [[nodiscard]] std::optional<std::string> difference(std::size_t offset, std::size_t bytes,
                                                      std::uint64_t seed) const;
  /// The first byte of a range that is not blank.
  [[nodiscard]] std::optional<std::size_t> first_written(std::size_t offset,
                                                         std::size_t bytes) const;
  /// @throws Failed when something wrote before or behind the region
  void check_guards() const;

 private:
  [[nodiscard]] std::vector<std::byte> copied(const std::byte* from, std::size_t bytes) const;

  std::size_t bytes_;
  int gpu_;
  std::byte* memory_ = nullptr;  // guard, region, guard
  std::byte* data_ = nullptr;
};

}  // namespace ropewalk::check_plugin
