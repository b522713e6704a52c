#include "tune/numa_nodes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace ropewalk::tune {
namespace {

namespace fs = std::filesystem;

Processors cores(const std::string& list) { return Processors::of_list(list); }

// A "/sys" with the nodes of a made machine.
class MadeSysfs {
 public:
  explicit MadeSysfs(const std::string& online) {
    std::string pattern = (fs::temp_directory_path() / "ropewalk-numa-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    fs::create_directories(folder());
    std::ofstream(folder() / "online") << online << '\n';
  }
  ~MadeSysfs() { fs::remove_all(root_); }
  MadeSysfs(const MadeSysfs&) = delete;
  MadeSysfs& operator=(const MadeSysfs&) = delete;

  MadeSysfs& add(int number, const std::string& cpulist) {
    const fs::path node = folder() / ("node" + std::to_string(number));
    fs::create_directories(node);
    std::ofstream(node / "cpulist") << cpulist << '\n';
    return *this;
  }
  [[nodiscard]] NumaNodes read() const { return NumaNodes::read(root_); }

 private:
  [[nodiscard]] fs::path folder() const { return root_ / "devices" / "system" / "node"; }
  fs::path root_;
};

TEST(NumaNodes, ABoundRankIsOnTheNodeOfAllItsCores) {
  MadeSysfs sysfs("0-1");
  const NumaNodes nodes = sysfs.add(0, "0-3,8-11").add(1, "4-7,12-15").read();
  EXPECT_EQ(nodes.node_of(cores("0")), 0);
  EXPECT_EQ(nodes.node_of(cores("3,8")), 0);
  EXPECT_EQ(nodes.node_of(cores("4-7,12-15")), 1);
  EXPECT_EQ(nodes.node_of(cores("3-4")), -1) << "cores of both";
  EXPECT_EQ(nodes.node_of(cores("0-15")), -1) << "not bound";
  EXPECT_EQ(nodes.node_of(cores("16")), -1) << "a core of none";
}

TEST(NumaNodes, KeepTheKernelsNumbers) {
  MadeSysfs sysfs("0,8");
  const NumaNodes nodes = sysfs.add(0, "0-63").add(8, "64-127").read();
  EXPECT_EQ(nodes.node_of(cores("100")), 8);
}

TEST(NumaNodes, ASingleNodeIsNone) {
  MadeSysfs alone("0");
  EXPECT_EQ(alone.add(0, "0-7").read().node_of(cores("0")), -1);
  // Memory without processors, as of a GPU or of CXL, is no second node.
  MadeSysfs with_memory("0-1");
  EXPECT_EQ(with_memory.add(0, "0-7").add(1, "").read().node_of(cores("0")), -1);
  EXPECT_EQ(NumaNodes::read("/nowhere").node_of(cores("0")), -1);
}

}  // namespace
}  // namespace ropewalk::tune
