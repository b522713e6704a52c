// Fuzzes the settings file's parser and, through it, the parsers of every type of value.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "core/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ropewalk::Config config;
  try {
    config.read_text(text, "fuzz");
  } catch (const ropewalk::Error&) {
    return 0;
  }
  // The printed form of an accepted value is accepted again, with the same meaning.
  ropewalk::Config again;
  for (const ropewalk::SettingRow& row : ropewalk::settings_table()) {
    again.set(row.name, config.raw(row.id), "fuzz");
    if (again.raw(row.id) != config.raw(row.id)) __builtin_trap();
  }
  return 0;
}
