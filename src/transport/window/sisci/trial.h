// Patterns that show whether a transfer really moved its data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "transport/window/sisci/memory.h"

namespace ropewalk::transport::window::sisci {

inline constexpr std::size_t kTrialPage = 4096;
/// Sources of writes into registered memory, as bits: registered memory, and any memory.
inline constexpr unsigned kFromRegistered = 1;
inline constexpr unsigned kFromPlain = 2;
/// After a trial of its own: GPU memory. And a mark that GPU memory is written.
inline constexpr unsigned kFromGpu = 4;
inline constexpr unsigned kIntoGpu = 8;

/// The pattern depends on the seed and the source, so that no old one is taken for a new one.
void fill_pattern(std::span<std::byte> page, std::uint64_t seed, unsigned source);
bool is_pattern(std::span<const std::byte> page, std::uint64_t seed, unsigned source);

/// Two pages of this end, registered if that is possible: to be written by the other end, or to be
/// written from. Behind them there may be more, for transfers that are timed.
class Trial {
 public:
  static constexpr std::size_t kTimedOffset = 2 * kTrialPage;
  explicit Trial(Regions& regions, std::size_t timed_bytes = 0);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  /// The page for kFromRegistered or kFromPlain.
  [[nodiscard]] std::span<std::byte> page(unsigned source) const;
  [[nodiscard]] std::span<std::byte> timed() const;
  /// Of a part of its memory.
  [[nodiscard]] std::size_t offset(std::span<const std::byte> part) const {
    return static_cast<std::size_t>(part.data() - data_);
  }
  /// Null where memory cannot be registered.
  [[nodiscard]] const Region* region() const;
  [[nodiscard]] const Registration& registration() const { return *registration_; }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
  std::unique_ptr<Registration> registration_;
};

}  // namespace ropewalk::transport::window::sisci
