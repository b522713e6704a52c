// Files that are replaced as a whole, so that a reader sees the old one or the new one.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string_view>

namespace ropewalk {

/// Writes a file beside `path` and renames it. Any number of threads and processes may do so at
/// once: one of their texts stays. Nothing is left beside it, also when it fails.
/// @param mode of the file, less the process's umask
/// @return 0, or errno of what failed; then the old file is as it was
int replace_file(const std::filesystem::path& path, std::string_view text, mode_t mode);

}  // namespace ropewalk
