// Names of files in settings, with letters for what differs between processes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace ropewalk {

/// This host's name up to its first dot.
std::string short_host_name();

/// `pattern` with %h (the host's short name), %p (this process) and %% replaced, and each letter of
/// `more` by its text. `setting`: of the error, without prefix.
/// @throws Error kInvalidArgument for another letter
std::string expand_file_pattern(std::string_view setting, std::string_view pattern,
                                std::span<const std::pair<char, std::string>> more = {});

}  // namespace ropewalk
