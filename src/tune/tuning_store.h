// The file of measured constants (setting TUNING_FILE): constants of hosts (machine_constants.h)
// and of GPUs (device_constants.h), one entry for each.
//
//   {"schema": "ropewalk-tuning", "version": 2, "entries": {NAME: {...}, ...}}
//
// A file that is garbage, cut or of another version, and an invalid entry, are ignored with one
// line in the log; new measurements replace them.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/log.h"

namespace ropewalk::tune {

/// Files of another version are ignored. Raise it when entries mean something else. 2: rates of
/// copies are of data in memory, not in caches.
inline constexpr int kTuningVersion = 2;

/// Names this machine in the file: home directories are shared between machines.
std::string machine_name();

/// @return nothing when it is not there, or the file is unusable
std::optional<nlohmann::json> read_tuning(const std::string& path, const std::string& name);

/// What `read`, which throws a std::exception when something is wrong, makes of the entry.
template <typename Read>
auto read_tuning_as(const std::string& path, const std::string& name, const Read& read)
    -> std::optional<decltype(read(nlohmann::json()))> {
  const std::optional<nlohmann::json> entry = read_tuning(path, name);
  if (!entry.has_value()) return std::nullopt;
  try {
    return read(*entry);
  } catch (const std::exception& error) {
    log::warn("the tuning file {} is unusable for {} ({}); measuring again", path, name,
              error.what());
    return std::nullopt;
  }
}

/// The number called `key`.
/// @throws std::exception unless it is there and in (0, 1e15), or is 0 where that is allowed
double constant_of(const nlohmann::json& entry, const char* key, bool zero_allowed = false);

/// All entries whose names begin with `name` and a slash, by the rest of their names.
nlohmann::json tuning_within(const std::string& path, const std::string& name);

/// Replaces one entry; processes that write at once lose none. A file that cannot be written is
/// logged, not an error.
void write_tuning(const std::string& path, const std::string& name, const nlohmann::json& entry);

}  // namespace ropewalk::tune
