// One file of measured constants, of hosts and of GPUs.
#include "tune/tuning_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "tune/device_constants.h"
#include "tune/machine_constants.h"

namespace ropewalk::tune {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

class TuningStoreTest : public ::testing::Test {
 protected:
  TuningStoreTest()
      : folder_(fs::path(::testing::TempDir()) / fmt::format("tuning-store-{}", getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    log::configure("WARN", "ALL", log_file());
  }
  ~TuningStoreTest() override {
    log::configure("VERSION", "", "");
    fs::remove_all(folder_);
  }
  [[nodiscard]] std::string path() const { return (folder_ / "tuning.json").string(); }
  [[nodiscard]] std::string log_file() const { return (folder_ / "log").string(); }
  [[nodiscard]] static std::string text_of(const std::string& file) {
    std::ostringstream out;
    out << std::ifstream(file).rdbuf();
    return out.str();
  }
  // Lines in the log since the last call.
  int lines() {
    const std::string all = text_of(log_file());
    const auto count = static_cast<int>(std::count(all.begin(), all.end(), '\n'));
    return count - std::exchange(lines_, count);
  }

  fs::path folder_;
  int lines_ = 0;
};

TEST_F(TuningStoreTest, HostsAndGpusShareAFile) {
  DeviceConstants constants;
  constants.link_rate = 123e9;
  write_tuning(path(), machine_name() + "/H200x2", to_json(constants));
  Config config;
  config.set("TUNING_FILE", path(), "test");
  config.set("TUNE", "1", "test");
  const MachineConstants measured = machine_constants(config);
  const auto kept = kept_device_constants(path(), machine_name() + "/H200x2");
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->link_rate, 123e9);
  EXPECT_EQ(machine_constants(config).copy_rate, measured.copy_rate);
  const json described = json::parse(describe_constants(config, false));
  EXPECT_EQ(described["source"], "file");
  EXPECT_EQ(described["gpus"]["H200x2"]["link_rate_Bps"], 123e9);
  EXPECT_EQ(lines(), 0);
}

TEST_F(TuningStoreTest, AnUnusableFileIsReportedOnceAndWrittenAgain) {
  write_tuning(path(), "a", {{"rate", 1.0}});
  const std::string right = text_of(path());
  json other = json::parse(right);
  other["version"] = kTuningVersion + 1;
  const std::vector<std::string> wrong = {"garbage",
                                          right.substr(0, right.size() / 2),
                                          other.dump(),
                                          "[]",
                                          R"({"a": {"rate": 1.0}})",
                                          R"({"schema": "ropewalk-tuning", "version": 2})"};
  EXPECT_EQ(lines(), 0);
  for (const std::string& text : wrong) {
    std::ofstream(path()) << text;
    EXPECT_FALSE(read_tuning(path(), "a").has_value()) << text;
    write_tuning(path(), "a", {{"rate", 2.0}});
    EXPECT_EQ(lines(), 1) << text;
    EXPECT_EQ(read_tuning(path(), "a"), json({{"rate", 2.0}})) << text;
    EXPECT_EQ(lines(), 0);
  }
  EXPECT_THAT(text_of(log_file()), HasSubstr("not a ropewalk-tuning of version 2"));
}

TEST_F(TuningStoreTest, AnInvalidEntryIsReportedOnce) {
  const auto rate = [](const json& entry) { return constant_of(entry, "rate"); };
  for (const json& value : std::vector<json>{"fast", 0, -1.0, 1e16, nullptr}) {
    write_tuning(path(), "a", {{"rate", value}});
    EXPECT_FALSE(read_tuning_as(path(), "a", rate).has_value()) << value;
    EXPECT_EQ(lines(), 1) << value;
  }
  DeviceConstants constants;
  constants.link_rate = 0;
  write_tuning(path(), "gpus", to_json(constants));
  EXPECT_FALSE(kept_device_constants(path(), "gpus").has_value());
  EXPECT_EQ(lines(), 1);
  EXPECT_FALSE(kept_device_constants(path(), "others").has_value());
  EXPECT_EQ(lines(), 0);
  EXPECT_EQ(constant_of({{"time", 0}}, "time", true), 0);
}

TEST_F(TuningStoreTest, WritersAtOnceLoseNothing) {
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([&, w] {
      for (int i = 0; i < 10; ++i) write_tuning(path(), fmt::format("all/{}-{}", w, i), {{"x", i}});
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(tuning_within(path(), "all").size(), 40U);
}

}  // namespace
}  // namespace ropewalk::tune
