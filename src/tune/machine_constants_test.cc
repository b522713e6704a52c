#include "tune/machine_constants.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tune/processors.h"
#include "tune/tuning_store.h"

namespace ropewalk::tune {
namespace {

using nlohmann::json;

// A tuning file whose entry for this machine came from a machine that was very busy.
class MachineConstantsTest : public ::testing::Test {
 protected:
  MachineConstantsTest() {
    config_.set("TUNING_FILE", path_, "test");
    config_.set("TUNE", "1", "test");
  }
  ~MachineConstantsTest() override { std::filesystem::remove(path_); }

  static std::int64_t now() {
    return std::chrono::system_clock::now().time_since_epoch() / std::chrono::seconds(1);
  }

  json entry() const { return read_tuning(path_, machine_name()).value_or(json::object()); }

  // Everything a second, and a byte in a second; switch_cost and the like are not measured.
  void keep(int measurements, std::int64_t last) {
    (void)machine_constants(config_);
    json busy = entry();
    for (const auto& [key, value] : busy.items()) {
      if (key.ends_with("_s") || key.ends_with("_Bps")) busy[key] = 1.0;
    }
    busy["measurements"] = measurements;
    busy["last_measured_at"] = last;
    write_tuning(path_, machine_name(), busy);
  }

  std::string path_ =
      (std::filesystem::temp_directory_path() / ("rw-tuning-" + std::to_string(getpid()) + ".json"))
          .string();
  Config config_;
};

TEST_F(MachineConstantsTest, AreMeasuredOnceAndKept) {
  const MachineConstants first = machine_constants(config_);
  EXPECT_GT(first.copy_rate, 1e6);
  EXPECT_EQ(entry()["measurements"], 1);
  EXPECT_LE(now() - entry()["last_measured_at"].get<std::int64_t>(), 60);
  const MachineConstants second = machine_constants(config_);
  EXPECT_EQ(first.copy_rate, second.copy_rate);
  EXPECT_EQ(first.hop_latency, second.hop_latency);
  EXPECT_EQ(entry()["measurements"], 1);
}

TEST_F(MachineConstantsTest, OfABusyMachineAreMendedLater) {
  keep(1, now() - 31);
  const MachineConstants mended = machine_constants(config_);
  EXPECT_GT(mended.copy_rate, 1e6);
  EXPECT_LT(mended.chunk_cost, 1e-3);
  EXPECT_EQ(entry()["measurements"], 2);
  EXPECT_EQ(entry()["copy_rate_Bps"].get<double>(), mended.copy_rate);
}

TEST_F(MachineConstantsTest, AreNotMeasuredAgainAtOnceOrForEver) {
  keep(1, now());
  EXPECT_EQ(machine_constants(config_).copy_rate, 1.0);
  keep(3, now() - 400);  // due after 480 s
  EXPECT_EQ(machine_constants(config_).copy_rate, 1.0);
  keep(8, 0);
  EXPECT_EQ(machine_constants(config_).copy_rate, 1.0);
}

TEST_F(MachineConstantsTest, TheBestIsKept) {
  keep(2, 0);
  json better = entry();
  better["copy_rate_Bps"] = 1e14;
  better["hop_latency_s"] = 1e-14;
  write_tuning(path_, machine_name(), better);
  const MachineConstants kept = machine_constants(config_);
  EXPECT_EQ(kept.copy_rate, 1e14);
  EXPECT_EQ(kept.hop_latency, 1e-14);
  EXPECT_EQ(entry()["measurements"], 3);
}

// A clock that was set back, and a file of before there were counts.
TEST_F(MachineConstantsTest, AMessageCostsMostOfItsLatency) {
  (void)machine_constants(config_);
  const auto message_of = [&](double latency, double message) {
    json kept = entry();
    kept["network_latency_s"] = latency;
    kept["network_message_s"] = message;
    kept["measurements"] = 8;
    write_tuning(path_, machine_name(), kept);
    return machine_constants(config_).network_message;
  };
  EXPECT_DOUBLE_EQ(message_of(1e-5, 1e-6), 6.5e-6);
  EXPECT_DOUBLE_EQ(message_of(1e-5, 8e-6), 8e-6);
  EXPECT_EQ(entry()["network_message_s"], 8e-6);  // the file has what was measured
}

TEST_F(MachineConstantsTest, OddTimesAndOldFilesAreMeasuredAgain) {
  keep(1, now() + 100'000);
  EXPECT_GT(machine_constants(config_).copy_rate, 1e6);
  keep(1, now());
  json old = entry();
  old.erase("measurements");
  old.erase("last_measured_at");
  write_tuning(path_, machine_name(), old);
  EXPECT_GT(machine_constants(config_).copy_rate, 1e6);
  EXPECT_EQ(entry()["measurements"], 2);
}

TEST_F(MachineConstantsTest, NonsenseIsMeasuredAgain) {
  std::ofstream(path_) << "[1, 2";
  EXPECT_GT(machine_constants(config_).copy_rate, 1e6);
  keep(1, now());
  json wrong = entry();
  wrong["measurements"] = "many";
  write_tuning(path_, machine_name(), wrong);
  EXPECT_GT(machine_constants(config_).copy_rate, 1e6);
}

TEST(ProcessorKind, IsTheOneThatTheKernelReports) {
  std::istringstream x86(
      "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"
      "model name\t: AMD EPYC\nstepping\t: 1\nflags\t\t: fpu\nbugs\t:\n\n"
      "processor\t: 1\nvendor_id\t: Other\n");
  EXPECT_EQ(processor_kind(x86), "AuthenticAMD-25-17-1");
  std::istringstream arm(
      "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
      "CPU part\t: 0xd4f/1\n");
  EXPECT_EQ(processor_kind(arm), "0x41-8-0xd4f-1");
  std::istringstream nothing("no colon here\n");
  EXPECT_EQ(processor_kind(nothing), "unknown");
  EXPECT_FALSE(processor_kind().empty());
}

}  // namespace
}  // namespace ropewalk::tune
