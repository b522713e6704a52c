#include "topology/named.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "topology/json.h"

namespace ropewalk::topology {
namespace {

std::string reason(const std::string& name) {
  try {
    (void)named(name);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Named, IsADescriptionOrAFile) {
  const Topology machine = named("dgx1v");
  EXPECT_EQ(machine.gpus().size(), 8U);
  EXPECT_EQ(machine.name(), "dgx1v");
  const std::string path = ::testing::TempDir() + "named_test.json";
  std::ofstream(path) << write_json(machine);
  EXPECT_EQ(named(path), machine);
  std::filesystem::remove(path);
  EXPECT_EQ(reason(path), path + ": no such file");
}

TEST(Named, SaysWhatIsWrong) {
  EXPECT_EQ(reason("/"), "/: a folder, not a file");
  EXPECT_EQ(reason("machine.xml"), "machine.xml: no such file");
  EXPECT_NE(reason("8gpus").find("8gpus"), std::string::npos);
}

}  // namespace
}  // namespace ropewalk::topology
