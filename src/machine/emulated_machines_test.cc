// Ranks of one process have one machine, and a file that changed is read again.
#include "machine/emulated_machines.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "topology/json.h"
#include "topology/named.h"

namespace ropewalk::machine {
namespace {

namespace fs = std::filesystem;

Config emulating(const std::string& machine, const std::string& gpus = "") {
  Config config;
  config.set("EMULATE", machine, "test");
  config.set("EMULATE_GPUS", gpus, "test");
  return config;
}

TEST(EmulatedMachines, RanksOfAProcessShareOne) {
  EmulatedMachines machines;
  const EmulatedMachine first = machines.get(emulating("dgx1v"), 4);
  const EmulatedMachine second = machines.get(emulating("dgx1v"), 4);
  EXPECT_EQ(first.machine, second.machine);
  EXPECT_EQ(first.digest, second.digest);
  EXPECT_EQ(first.machine->planned->gpus().size(), 4U);
}

TEST(EmulatedMachines, TheRequestedMachineCounts) {
  EmulatedMachines machines;
  const EmulatedMachine first = machines.get(emulating("dgx1v"), 4);
  EXPECT_NE(machines.get(emulating("dgx1v"), 3).digest, first.digest);
  EXPECT_NE(machines.get(emulating("dgx1p"), 4).digest, first.digest);
  EXPECT_NE(machines.get(emulating("dgx1v", "0,1,2,7"), 4).digest, first.digest);
  EXPECT_THROW(machines.get(emulating("dgx9"), 4), Error);
  EXPECT_EQ(machines.get(emulating("dgx1v"), 4).machine, first.machine);
}

TEST(EmulatedMachines, AFileThatChangedIsReadAgain) {
  const fs::path file =
      fs::temp_directory_path() / ("rw-emulated-" + std::to_string(getpid()) + ".json");
  std::ofstream(file) << topology::write_json(topology::named("dgx1v"));
  EmulatedMachines machines;
  const EmulatedMachine first = machines.get(emulating(file), 4);
  EXPECT_EQ(machines.get(emulating(file), 4).machine, first.machine);
  std::ofstream(file, std::ios::trunc) << topology::write_json(topology::named("dgx1p"));
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(2));
  EXPECT_NE(machines.get(emulating(file), 4).digest, first.digest);
  fs::remove(file);
}

}  // namespace
}  // namespace ropewalk::machine
