// Files in /dev/shm that a library makes for each endpoint, several MiB each, and leaves there when
// its process ends without closing the endpoint.
//
// Such a file cannot be distinguished from one in use. So each endpoint of these transports holds a
// lock on its file, and marks the file by a bit of its mode: a file with the bit and without a lock
// is abandoned.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/file_descriptor.h"

namespace ropewalk::transport::messaging {

/// In /dev/shm.
std::string shared_memory_file(std::string_view name);

/// Marks and locks it, until the descriptor is closed, in forked children, too.
/// @return none where there is no such file
FileDescriptor claim_file(const std::string& path);

/// Removes this user's files that endpoints have left, of those whose names are of the kind.
/// @return how many
int remove_abandoned_files(const std::function<bool(std::string_view name)>& is_of_kind);

}  // namespace ropewalk::transport::messaging
