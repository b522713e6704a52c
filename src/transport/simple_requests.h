// The parts that providers on host memory have in common: a request that is finished from the
// start, a registration that needs nothing, and the argument checks.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "transport/transport.h"

namespace ropewalk::transport {

/// A request that was finished when it was made.
class FinishedRequest final : public Request {
 public:
  explicit FinishedRequest(std::vector<std::size_t> sizes) : sizes_(std::move(sizes)) {
    for (const std::size_t size : sizes_) total_ += size;
  }
  std::optional<std::size_t> test() override { return total_; }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return sizes_; }

 private:
  std::vector<std::size_t> sizes_;
  std::size_t total_ = 0;
};

/// Host memory that the provider uses as it is.
class HostRegistration final : public Registration {
 public:
  static std::unique_ptr<Registration> make(const void* data, std::size_t bytes, MemoryKind kind) {
    if (kind != MemoryKind::kHost) {
      throw Error(Errc::kInvalidArgument, "this transport takes host memory only");
    }
    if (data == nullptr && bytes > 0) {
      throw Error(Errc::kInvalidArgument, "registration of {} bytes at a null pointer", bytes);
    }
    return std::make_unique<HostRegistration>();
  }
};

inline void check_buffer(const void* data, std::size_t bytes, std::size_t max_bytes) {
  if (data == nullptr && bytes > 0) {
    throw Error(Errc::kInvalidArgument, "message of {} bytes at a null pointer", bytes);
  }
  if (bytes > max_bytes) {
    throw Error(Errc::kInvalidArgument, "message of {} bytes; the largest is {}", bytes, max_bytes);
  }
}

inline void check_buffers(std::span<const ReceiveBuffer> buffers, std::size_t max_group,
                          std::size_t max_bytes) {
  if (buffers.empty() || buffers.size() > max_group) {
    throw Error(Errc::kInvalidArgument, "{} grouped receives; 1 to {} are possible", buffers.size(),
                max_group);
  }
  for (const ReceiveBuffer& buffer : buffers) check_buffer(buffer.data, buffer.bytes, max_bytes);
}

}  // namespace ropewalk::transport
