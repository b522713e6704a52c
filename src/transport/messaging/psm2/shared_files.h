// The files of libpsm2's endpoints in /dev/shm, 4 MiB each. libpsm2 removes an endpoint's file when
// its process exits; a killed process leaves it (abandoned_files.h).
#pragma once

#include <cstdint>
#include <string>

namespace ropewalk::transport::psm2 {

/// The file of an endpoint of this user. (libpsm2 appends a number, which is 0 unless another
/// user's file has that name.)
std::string shared_file(std::uint64_t endpoint_id);

/// Removes this user's files that endpoints of this transport have left.
/// @return how many
int remove_abandoned_files();

}  // namespace ropewalk::transport::psm2
