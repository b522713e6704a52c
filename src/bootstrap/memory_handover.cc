#include "bootstrap/memory_handover.h"

#include <cstdint>

#include "core/error.h"

namespace ropewalk::bootstrap {
namespace {

// Asked for what nobody sends, the bootstrap says who died instead of coming.
constexpr std::uint32_t kNothingTag = 0x4e000000;

}  // namespace

void hand_over(DescriptorServer& server, int fd, int receivers, std::span<const int> ranks,
               Bootstrap& bootstrap, Deadline deadline) {
  server.serve(fd, receivers, deadline, [&] {
    for (const int rank : ranks) (void)bootstrap.try_recv(rank, kNothingTag);
  });
}

FileDescriptor descriptor_of(int rank, std::string_view server, Deadline deadline) {
  try {
    return fetch_descriptor(server, deadline);
  } catch (const Error& error) {
    throw Error(error.code(), "the shared memory that rank {} made: {}", rank, error.what());
  }
}

}  // namespace ropewalk::bootstrap
