#include "topology/named.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "topology/json.h"
#include "topology/read.h"

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
  EXPECT_EQ(reason("/dev/null"), "/dev/null: empty");
  EXPECT_EQ(reason("/dev/zero").find("/dev/zero: longer than "), 0U);
}

TEST(ReadFile, SaysWhatIsWrong) {
  const auto refused = [](const std::string& path) -> std::string {
    try {
      (void)read_file(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInvalidArgument);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused("/absent"), "/absent: No such file or directory");
  EXPECT_EQ(refused("/"), "/: Is a directory");
  const std::string path = ::testing::TempDir() + "read_file_test.json";
  std::ofstream(path) << std::string("{\0}", 3);
  EXPECT_EQ(refused(path), path + ": not a text file");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace ropewalk::topology
