// The files of libpsm2's endpoints in /dev/shm, 4 MiB each.
//
// libpsm2 removes an endpoint's file when its process exits; a killed process leaves it, and it
// cannot be distinguished from a file in use. So each endpoint of this transport holds a lock on
// its file, and marks the file by a bit of its mode: a file with the bit and without a lock is
// abandoned.
#pragma once

#include <cstdint>
#include <string>

#include "core/file_descriptor.h"

namespace ropewalk::transport::psm2 {

/// The file of an endpoint of this user. (libpsm2 appends a number, which is 0 unless another
/// user's file has that name.)
std::string shared_file(std::uint64_t endpoint_id);

/// Marks and locks it, until the descriptor is closed.
/// @return none where there is no such file
FileDescriptor claim_shared_file(const std::string& path);

/// Removes this user's files that endpoints of this transport have left.
/// @return how many
int remove_abandoned_files();

}  // namespace ropewalk::transport::psm2
