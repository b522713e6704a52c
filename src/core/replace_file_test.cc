#include "core/replace_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace ropewalk {
namespace {

namespace fs = std::filesystem;

class ReplaceFile : public ::testing::Test {
 protected:
  ReplaceFile() { fs::create_directories(folder_); }
  ~ReplaceFile() override { fs::remove_all(folder_); }
  [[nodiscard]] std::string text() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] auto files() const { return std::distance(fs::directory_iterator(folder_), {}); }

  fs::path folder_ = fs::path(::testing::TempDir()) / ("replace_file_" + std::to_string(getpid()));
  fs::path path_ = folder_ / "kept";
};

TEST_F(ReplaceFile, TheTextIsTheLastOnes) {
  EXPECT_EQ(replace_file(path_, "one", 0600), 0);
  struct stat found {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0600U);
  EXPECT_EQ(replace_file(path_, std::string(100000, 'x'), 0600), 0);
  EXPECT_EQ(text(), std::string(100000, 'x'));
  EXPECT_EQ(files(), 1);
}

TEST_F(ReplaceFile, AFailureChangesNothing) {
  EXPECT_EQ(replace_file(folder_ / "none" / "kept", "text", 0600), ENOENT);
  fs::create_directories(path_ / "full");
  EXPECT_NE(replace_file(path_, "text", 0600), 0);
  EXPECT_EQ(files(), 1);
  EXPECT_TRUE(fs::is_directory(path_));
}

TEST_F(ReplaceFile, OfSeveralWritersOneStaysWhole) {
  std::vector<std::thread> writers;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    writers.emplace_back([&, letter] {
      for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(replace_file(path_, std::string(10000, letter), 0600), 0);
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string found = text();
  ASSERT_EQ(found.size(), 10000U);
  EXPECT_EQ(found, std::string(10000, found.front()));
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace ropewalk
