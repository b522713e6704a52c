#include "machine/emulation.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "topology/synthetic.h"

namespace ropewalk::machine {
namespace {

std::string reason(const std::string& gpus, int size) {
  Config config;
  config.set("EMULATE", "dgx1v", "test");
  config.set("EMULATE_GPUS", gpus, "test");
  try {
    (void)emulated_gpus(config, topology::synthetic("dgx1v"), size);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(EmulatedGpus, AreTheFirstOrThoseThatAreListed) {
  Config config;
  config.set("EMULATE", "dgx1v", "test");
  const topology::Topology machine = topology::synthetic("dgx1v");
  EXPECT_EQ(emulated_gpus(config, machine, 3), (std::vector<int>{0, 1, 2}));
  config.set("EMULATE_GPUS", "4,1,0", "test");
  EXPECT_EQ(emulated_gpus(config, machine, 3), (std::vector<int>{4, 1, 0}));
  EXPECT_EQ(emulated_gpus(config, machine, 2), (std::vector<int>{4, 1}));
}

TEST(EmulatedGpus, SayWhatIsWrong) {
  EXPECT_EQ(reason("", 9), "EMULATE: dgx1v has 8 GPUs, the communicator 9 ranks");
  EXPECT_EQ(reason("0,8", 2), "EMULATE_GPUS: 8 is outside 0 to 7");
  EXPECT_EQ(reason("0,1", 3), "EMULATE_GPUS: 2 GPUs for 3 ranks");
  EXPECT_EQ(reason("1,0,1", 3), "EMULATE_GPUS: 1,0,1: a GPU twice");
  EXPECT_NE(reason("0,,1", 2), "");
  EXPECT_NE(reason("0,x", 2), "");
}

TEST(Slowdown, FollowsFromTheLinksAndTheProcessors) {
  const double two = slowdown_of(topology::synthetic("dgx1v"), 2);
  EXPECT_GT(two, 100);
  EXPECT_NEAR(slowdown_of(topology::synthetic("dgx1v"), 4) / two, 0.5, 0.06);
  EXPECT_EQ(slowdown_of(topology::synthetic("2gpu:P100"), 1000000), 1);
}

}  // namespace
}  // namespace ropewalk::machine
