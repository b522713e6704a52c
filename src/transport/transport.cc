#include "transport/transport.h"

#include "core/error.h"

namespace ropewalk::transport {

std::unique_ptr<Request> SendConnection::send_split(std::span<const std::byte> /*head*/,
                                                    const void* /*data*/, std::size_t /*bytes*/,
                                                    std::uint32_t /*tag*/) {
  throw Error(Errc::kInvalidUsage, "this transport sends only contiguous messages");
}

std::unique_ptr<Registration> SendConnection::register_dma_buf(void* data, std::size_t bytes,
                                                               const DmaBuf& /*buffer*/) {
  return register_memory(data, bytes, MemoryKind::kCuda);
}

std::unique_ptr<Registration> ReceiveConnection::register_dma_buf(void* data, std::size_t bytes,
                                                                  const DmaBuf& /*buffer*/) {
  return register_memory(data, bytes, MemoryKind::kCuda);
}

}  // namespace ropewalk::transport
