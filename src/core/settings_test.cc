#include "core/settings.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "core/testing/in_child.h"

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

TEST(Settings, ReadsTheFileWithTheLineOfEachValue) {
  Config config;
  config.read_text("# comment\n SLOTS = 16 # more\n\nROPEWALK_timeout=1.5s", "conf");
  EXPECT_EQ(config.text(Setting::kSlots), "16");
  EXPECT_EQ(config.source(Setting::kSlots), "file conf:2");
  EXPECT_EQ(config.duration(Setting::kTimeout), std::chrono::milliseconds(1500));
  EXPECT_EQ(config.source(Setting::kTimeout), "file conf:4");
}

TEST(Settings, NamesTheError) {
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

// The environment overrules the file, which overrules defaults.
TEST(Settings, AreLoadedFromTheFileAndTheEnvironment) {
  const auto path =
      std::filesystem::temp_directory_path() / ("ropewalk-conf-" + std::to_string(getpid()));
  std::ofstream(path) << "SLOTS=16\nCHANNELS=3\n";
  EXPECT_EQ(testing::in_child([&] {
              setenv("ROPEWALK_CONF_FILE", path.c_str(), 1);
              setenv("ROPEWALK_CHANNELS", "5", 1);
              setenv("ROPEWALK_RANK", "7", 1);  // the launcher's, no setting
              const Config config = Config::load();
              EXPECT_EQ(config.text(Setting::kSlots), "16");
              EXPECT_EQ(config.source(Setting::kSlots), "file " + path.string() + ":1");
              EXPECT_EQ(config.integer(Setting::kChannels), 5);
              EXPECT_EQ(config.source(Setting::kChannels), "environment");
              EXPECT_EQ(config.source(Setting::kTimeout), "default");
              setenv("ROPEWALK_CHANELS", "5", 1);
              EXPECT_NE(message_of([] { (void)Config::load(); }).find("\"CHANELS\" (environment)"),
                        std::string::npos);
              unsetenv("ROPEWALK_CHANELS");
              setenv("ROPEWALK_CONF_FILE", (path.string() + "-not").c_str(), 1);
              EXPECT_NE(message_of([] { (void)Config::load(); }).find("cannot read"),
                        std::string::npos);
              return 0;
            }),
            0);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace ropewalk
