#include "core/settings.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace ropewalk {
namespace {

std::string message_of(const auto& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Settings, EveryDefaultIsValid) {
  const Config config;
  for (const SettingRow& row : settings_table()) EXPECT_EQ(config.source(row.id), "default");
}

TEST(Settings, ReadsTheFileWithPlaceOfEachValue) {
  Config config;
  config.read_text("# comment\n SLOTS = 16 # more\n\nROPEWALK_timeout=1.5s", "conf");
  EXPECT_EQ(config.text(Setting::kSlots), "16");
  EXPECT_EQ(config.source(Setting::kSlots), "file conf:2");
  EXPECT_EQ(config.duration(Setting::kTimeout), std::chrono::milliseconds(1500));
  EXPECT_EQ(config.source(Setting::kTimeout), "file conf:4");
}

TEST(Settings, NamesWhatIsWrong) {
  Config config;
  EXPECT_NE(message_of([&] { config.read_text("SLOTS", "conf"); }).find("conf:1"),
            std::string::npos);
  EXPECT_NE(message_of([&] { config.set("SLOTZ", "8", "API"); }).find("SLOTZ"), std::string::npos);
  EXPECT_NE(message_of([&] { config.set("SLOTS", "9", "API"); }).find("2|4|8"), std::string::npos);
  EXPECT_NE(message_of([&] { config.set("CHANNELS", "1025", "API"); }).find("CHANNELS"),
            std::string::npos);
  EXPECT_NE(message_of([&] { config.set("SLOT_BYTES", "-1K", "API"); }).find("negative"),
            std::string::npos);
  // Nothing has changed.
  EXPECT_EQ(config.source(Setting::kSlots), "default");
}

}  // namespace
}  // namespace ropewalk
