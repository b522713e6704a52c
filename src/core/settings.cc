#include "core/settings.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/error.h"
#include "core/units.h"

extern char** environ;

namespace ropewalk {
namespace {

constexpr std::string_view kPrefix = "ROPEWALK_";
// The variable that names the settings file cannot be a setting in that file. The others belong
// to `ropewalk bench`'s launcher and to the rendezvous (bootstrap/launch.h).
constexpr std::array<std::string_view, 6> kNotSettings = {"CONF_FILE",  "RANK",        "WORLD_SIZE",
                                                          "RENDEZVOUS", "SECRET_FILE", "LIBRARY"};

constexpr auto kTable = std::to_array<SettingRow>({
#define RW_SETTING(id, name, type, default_value, allowed, help) \
  {Setting::id, name, SettingType::type, default_value, allowed, help},
#include "core/settings_table.inc"
#undef RW_SETTING
});

const SettingRow& row(Setting id) { return kTable[static_cast<std::size_t>(id)]; }

const SettingRow* find(std::string_view given) {
  std::string upper(given);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string_view wanted = upper;
  if (wanted.starts_with(kPrefix)) wanted.remove_prefix(kPrefix.size());
  for (const SettingRow& known : kTable) {
    if (known.name == wanted) return &known;
  }
  return nullptr;
}

bool parse_bool(std::string_view text) {
  if (text == "1" || text == "true" || text == "yes" || text == "on") return true;
  if (text == "0" || text == "false" || text == "no" || text == "off") return false;
  throw Error(Errc::kInvalidArgument, "\"{}\" is neither 0 nor 1", text);
}

std::int64_t parse_ranged(std::string_view text, std::string_view allowed) {
  const std::int64_t number = parse_integer(text);
  const std::size_t dots = allowed.find("..");
  const std::int64_t low = parse_integer(allowed.substr(0, dots));
  const std::int64_t high = parse_integer(allowed.substr(dots + 2));
  if (number < low || number > high) {
    throw Error(Errc::kInvalidArgument, "{} is outside {} to {}", number, low, high);
  }
  return number;
}

void require_choice(std::string_view text, std::string_view allowed) {
  for (std::string_view rest = allowed; !rest.empty();) {
    const std::size_t bar = rest.find('|');
    if (rest.substr(0, bar) == text) return;
    rest = bar == std::string_view::npos ? std::string_view() : rest.substr(bar + 1);
  }
  throw Error(Errc::kInvalidArgument, "\"{}\" is not one of {}", text, allowed);
}

std::int64_t parse_number(const SettingRow& setting, std::string_view text) {
  switch (setting.type) {
    case SettingType::kBool: return parse_bool(text) ? 1 : 0;
    case SettingType::kInteger: return parse_ranged(text, setting.allowed);
    case SettingType::kBytes: return static_cast<std::int64_t>(parse_bytes(text));
    case SettingType::kDuration: return parse_duration(text).count();
    case SettingType::kChoice: require_choice(text, setting.allowed); return 0;
    case SettingType::kText: return 0;
  }
  return 0;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

std::string settings_path() {
  if (const char* named = std::getenv("ROPEWALK_CONF_FILE")) return named;
  if (const char* home = std::getenv("HOME")) {
    std::string path = std::string(home) + "/.config/ropewalk.conf";
    if (std::ifstream(path).good()) return path;
  }
  return "/etc/ropewalk.conf";
}

}  // namespace

std::span<const SettingRow> settings_table() noexcept { return kTable; }

std::string_view name(SettingType type) noexcept {
  switch (type) {
    case SettingType::kBool: return "bool";
    case SettingType::kInteger: return "integer";
    case SettingType::kBytes: return "bytes";
    case SettingType::kDuration: return "duration";
    case SettingType::kText: return "text";
    case SettingType::kChoice: return "choice";
  }
  return "?";
}

Config::Config() : values_(kTable.size()) {
  for (const SettingRow& known : kTable) set(known.name, known.default_value, "default");
}

Config Config::load() {
  Config config;
  const std::string path = settings_path();
  if (std::ifstream file(path); file.good()) {
    std::ostringstream text;
    text << file.rdbuf();
    config.read_text(text.str(), path);
  } else if (std::getenv("ROPEWALK_CONF_FILE") != nullptr) {
    throw Error(Errc::kInvalidArgument, "ROPEWALK_CONF_FILE: cannot read {}", path);
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    if (!variable.starts_with(kPrefix)) continue;
    const std::size_t equals = variable.find('=');
    const std::string_view short_name = variable.substr(kPrefix.size(), equals - kPrefix.size());
    if (std::find(kNotSettings.begin(), kNotSettings.end(), short_name) != kNotSettings.end()) {
      continue;
    }
    config.set(short_name, variable.substr(equals + 1), "environment");
  }
  return config;
}

void Config::read_text(std::string_view text, std::string_view path) {
  int line_number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    ++line_number;
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::string where = fmt::format("file {}:{}", path, line_number);
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) {
      throw Error(Errc::kInvalidArgument, "{}: \"{}\" is not NAME=value", where, line);
    }
    set(trim(line.substr(0, equals)), trim(line.substr(equals + 1)), where);
  }
}

void Config::set(std::string_view name, std::string_view value, std::string_view source) {
  const SettingRow* setting = find(name);
  if (setting == nullptr) {
    throw Error(Errc::kInvalidArgument,
                "unknown setting \"{}\" ({}); `ropewalk config` lists all settings", name, source);
  }
  try {
    const std::int64_t number = parse_number(*setting, value);
    values_[static_cast<std::size_t>(setting->id)] = {std::string(value), std::string(source),
                                                      number};
  } catch (const Error& error) {
    throw Error(Errc::kInvalidArgument, "setting {}{} ({}): {}", kPrefix, setting->name, source,
                error.what());
  }
}

const Config::Value& Config::value(Setting id, SettingType type) const {
  RW_ASSERT(row(id).type == type);
  return values_[static_cast<std::size_t>(id)];
}

bool Config::flag(Setting id) const { return value(id, SettingType::kBool).number != 0; }
std::int64_t Config::integer(Setting id) const { return value(id, SettingType::kInteger).number; }
std::size_t Config::bytes(Setting id) const {
  return static_cast<std::size_t>(value(id, SettingType::kBytes).number);
}
std::chrono::nanoseconds Config::duration(Setting id) const {
  return std::chrono::nanoseconds(value(id, SettingType::kDuration).number);
}
const std::string& Config::text(Setting id) const {
  const SettingType type = row(id).type;
  RW_ASSERT(type == SettingType::kText || type == SettingType::kChoice);
  return values_[static_cast<std::size_t>(id)].raw;
}
const std::string& Config::raw(Setting id) const {
  return values_[static_cast<std::size_t>(id)].raw;
}
const std::string& Config::source(Setting id) const {
  return values_[static_cast<std::size_t>(id)].source;
}

}  // namespace ropewalk
