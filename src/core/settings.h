// Settings: one table (settings_table.inc), four sources.
//
// A value comes from, strongest first: the API or command line (set), the environment
// (ROPEWALK_<NAME>), the file (NAME=value lines), the default. The environment is read once, by
// Config::load; the Config value is then passed down. Nothing else reads ROPEWALK_* variables.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ropewalk {

enum class SettingType : std::uint8_t { kBool, kInteger, kBytes, kDuration, kText, kChoice };

enum class Setting : std::uint8_t {
#define RW_SETTING(id, name, type, default_value, allowed, help) id,
#include "core/settings_table.inc"
#undef RW_SETTING
};

struct SettingRow {
  Setting id;
  std::string_view name;
  SettingType type;
  std::string_view default_value;
  std::string_view allowed;
  std::string_view help;
};

std::span<const SettingRow> settings_table() noexcept;
std::string_view name(SettingType type) noexcept;

class Config {
 public:
  /// All defaults.
  Config();

  /// Defaults, then the file, then the environment. The file is $ROPEWALK_CONF_FILE, else
  /// ~/.config/ropewalk.conf, else /etc/ropewalk.conf, the first that exists.
  ///
  /// @throws Error kInvalidArgument naming the setting, its value and where it came from. An
  ///         unknown ROPEWALK_* variable or name in the file is such an error.
  static Config load();

  /// Parses `NAME=value` lines; '#' starts a comment. `path` is only for messages and sources.
  void read_text(std::string_view text, std::string_view path);

  /// Sets one value. `name` is the table's name, in any case, with or without ROPEWALK_.
  /// @throws Error kInvalidArgument for an unknown name or a malformed value
  void set(std::string_view name, std::string_view value, std::string_view source);

  // Typed readers; asking for another type than the table's is an internal error.
  [[nodiscard]] bool flag(Setting id) const;
  [[nodiscard]] std::int64_t integer(Setting id) const;
  [[nodiscard]] std::size_t bytes(Setting id) const;
  [[nodiscard]] std::chrono::nanoseconds duration(Setting id) const;
  [[nodiscard]] const std::string& text(Setting id) const;  // also of kChoice

  /// The value as given, and where it came from: "default", "environment", "file PATH:LINE",
  /// "API", "command line".
  [[nodiscard]] const std::string& raw(Setting id) const;
  [[nodiscard]] const std::string& source(Setting id) const;

 private:
  struct Value {
    std::string raw;
    std::string source;
    std::int64_t number = 0;  // kBool, kInteger, kBytes, kDuration (nanoseconds)
  };
  [[nodiscard]] const Value& value(Setting id, SettingType type) const;
  std::vector<Value> values_;
};

}  // namespace ropewalk
