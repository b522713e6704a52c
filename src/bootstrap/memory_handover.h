// Shared memory that one rank of a host makes and the others of that host map.
#pragma once

#include <span>
#include <string_view>

#include "bootstrap/bootstrap.h"
#include "core/descriptor_server.h"
#include "core/file_descriptor.h"

namespace ropewalk::bootstrap {

/// Serves `fd` to `receivers` fetches by the other `ranks`.
/// @throws Error kTimeout; and as Bootstrap::try_recv, naming the rank, if one of `ranks` has died
void hand_over(DescriptorServer& server, int fd, int receivers, std::span<const int> ranks,
               Bootstrap& bootstrap, Deadline deadline);

/// The shared memory that `rank` hands over by the server called `server`.
/// @throws Error as fetch_descriptor, naming the rank
FileDescriptor descriptor_of(int rank, std::string_view server, Deadline deadline);

}  // namespace ropewalk::bootstrap
