// Files of one line, as the kernel shows values under /sys and /proc.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace ropewalk {

/// A file's first line without its end; "" where it cannot be read.
inline std::string first_line(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

}  // namespace ropewalk
