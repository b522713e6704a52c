// The tuning file: a JSON object with one entry for each machine, or part of one, that was
// measured.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace ropewalk::tune {

/// Names this machine in the file: home directories are shared between machines.
std::string machine_name();

/// @return nothing when it is not there, or the file is no JSON object
std::optional<nlohmann::json> read_tuning(const std::string& path, const std::string& name);

/// All entries whose names begin with `name` and a slash, by the rest of their names.
nlohmann::json tuning_within(const std::string& path, const std::string& name);

/// Replaces one entry. A file that cannot be written is logged, not an error.
void write_tuning(const std::string& path, const std::string& name, const nlohmann::json& entry);

}  // namespace ropewalk::tune
