// The cache of this host's topology, and its validity.
#include "topology/kept_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "core/log.h"
#include "topology/json.h"

namespace ropewalk::topology {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string>& warnings() {
  static std::vector<std::string> heard;
  return heard;
}
void hear(log::Level /*level*/, std::uint32_t /*subsystem*/, const char* text) {
  warnings().emplace_back(text);
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A made-up root of a machine, and a folder to keep in.
class Kept : public ::testing::Test {
 protected:
  Kept() {
    std::string pattern = (fs::temp_directory_path() / "ropewalk-kept-XXXXXX").string();
    top_ = mkdtemp(pattern.data());
    root_ = top_ / "root";
    folder_ = top_ / "cache" / "ropewalk";
    write("proc/sys/kernel/random/boot_id", "one boot");
    write("sys/devices/system/node/node0/cpulist", "0-3");
    write("sys/devices/system/cpu/online", "0-3");
    write("sys/devices/system/node/online", "0");
    warnings().clear();
    log::set_listener(hear);
  }
  ~Kept() override {
    log::set_listener(nullptr);
    std::error_code ignored;
    fs::permissions(top_, fs::perms::owner_all, ignored);
    fs::remove_all(top_, ignored);
  }

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }
  DiscoverOptions options() const {
    return {.hwloc_library = "no such library", .nvml_library = "no such library", .root = root_};
  }
  // By an object of its own: as another process does.
  HostGraph graph() const { return KeptHost(options()).graph(folder_); }
  fs::path file() const { return kept_host_file(folder_, host_fingerprint(root_)); }
  // The host is discovered again, a line says why, and the next call finds the new file.
  void expect_made_anew(const std::string& why) const {
    warnings().clear();
    const std::string right = write_json(discover(options()));
    const HostGraph again = graph();
    EXPECT_EQ(again.origin, "found");
    EXPECT_EQ(again.text, right);
    ASSERT_THAT(warnings(), SizeIs(1));
    EXPECT_THAT(warnings()[0], HasSubstr(why));
    const HostGraph kept = graph();
    EXPECT_EQ(kept.origin, "kept in " + file().string());
    EXPECT_EQ(kept.text, right);
    EXPECT_THAT(warnings(), SizeIs(1));
  }

  fs::path top_;
  fs::path root_;
  fs::path folder_;
};

TEST_F(Kept, IsFoundOnce) {
  const HostGraph first = graph();
  EXPECT_EQ(first.origin, "found");
  EXPECT_EQ(first.text, write_json(discover(options())));
  const HostGraph second = graph();
  EXPECT_EQ(second.origin, "kept in " + file().string());
  EXPECT_EQ(second.text, first.text);
  EXPECT_THAT(warnings(), IsEmpty());
}

TEST_F(Kept, IsPrivateAndAlone) {
  (void)graph();
  EXPECT_EQ(fs::status(file()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(Kept, InMemoryWithoutAFolder) {
  KeptHost host(options());
  const HostGraph first = host.graph("");
  write("sys/devices/system/node/node0/cpulist", "0-1");  // not of the fingerprint
  EXPECT_EQ(host.graph("").text, first.text);
  EXPECT_NE(graph().text, first.text);
}

TEST_F(Kept, GarbageIsReplaced) {
  (void)graph();
  for (const std::string& garbage :
       {std::string("{}"), std::string(), std::string(100'000, 'x'), std::string("\0\1\2\3", 4)}) {
    std::ofstream(file(), std::ios::binary | std::ios::trunc) << garbage;
    expect_made_anew("it is none that Ropewalk wrote");
  }
}

TEST_F(Kept, EveryTruncationIsNoticed) {
  (void)graph();
  const std::string whole = text_of(file());
  ASSERT_GT(whole.size(), 200U);
  for (std::size_t length = 16; length < whole.size(); length += length < 80 ? 1 : 37) {
    std::ofstream(file(), std::ios::binary | std::ios::trunc) << whole.substr(0, length);
    expect_made_anew("it is not whole");
  }
}

TEST_F(Kept, AFlippedByteIsNoticed) {
  (void)graph();
  const std::string whole = text_of(file());
  for (const std::size_t offset : {whole.find('\n') + 5, whole.size() / 2, whole.size() - 3}) {
    std::string other = whole;
    other[offset] = static_cast<char>(other[offset] ^ 1);
    std::ofstream(file(), std::ios::binary | std::ios::trunc) << other;
    expect_made_anew("it is not whole");
  }
}

TEST_F(Kept, AnotherVersionIsReplaced) {
  (void)graph();
  std::string other = text_of(file());
  other.replace(other.find(" 1 "), 3, " 2 ");
  std::ofstream(file(), std::ios::binary | std::ios::trunc) << other;
  expect_made_anew("it is of another version");
}

TEST_F(Kept, AFileThatOthersMayWriteIsIgnored) {
  (void)graph();
  fs::permissions(file(), fs::perms::others_write, fs::perm_options::add);
  expect_made_anew("this user alone");
  const fs::path other = top_ / "other";
  fs::rename(file(), other);
  fs::create_symlink(other, file());
  expect_made_anew("symbolic links");
}

TEST_F(Kept, AChangedHostIsLookedAtAgain) {
  const auto changed = [&] {
    const bool again = graph().origin == "found";
    EXPECT_NE(graph().origin, "found");
    return again;
  };
  EXPECT_TRUE(changed());
  write("proc/sys/kernel/random/boot_id", "another boot");
  EXPECT_TRUE(changed());
  fs::create_directories(root_ / "sys/bus/pci/devices/0000:01:00.0");
  EXPECT_TRUE(changed());
  write("sys/devices/system/cpu/online", "0-2");
  EXPECT_TRUE(changed());
  write("sys/devices/system/node/online", "0-1");
  EXPECT_TRUE(changed());
  write("sys/class/net/eth0/operstate", "down");
  EXPECT_FALSE(changed()) << "on no bus";
  fs::create_directories(root_ / "sys/class/net/eth0/device");
  EXPECT_TRUE(changed());
  write("sys/class/net/eth0/operstate", "up");
  EXPECT_TRUE(changed());
  write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  EXPECT_TRUE(changed());
  write("dev/nvidia0", "");
  EXPECT_TRUE(changed());
  EXPECT_FALSE(changed());
  EXPECT_THAT(warnings(), IsEmpty());
}

// Jobs with different GPUs of one host keep a file each.
TEST_F(Kept, ViewsOfAHostDoNotReoffsetEachOther) {
  write("dev/nvidia0", "");
  const fs::path one = file();
  write("dev/nvidia1", "");
  EXPECT_NE(file(), one);
  write("proc/sys/kernel/random/boot_id", "another boot");
  const fs::path other = file();
  fs::remove(root_ / "dev/nvidia1");
  EXPECT_EQ(file(), one);
  EXPECT_NE(other, one);
}

TEST_F(Kept, AFolderThatCannotBeWrittenIsNoError) {
  fs::create_directories(top_ / "cache");
  std::ofstream(folder_) << "a file\n";  // root may write into any folder
  EXPECT_EQ(graph().origin, "found");
  EXPECT_EQ(graph().origin, "found");
  EXPECT_THAT(warnings(), IsEmpty());
}

TEST_F(Kept, WritersAtOnceLeaveAWholeFile) {
  const std::string right = write_json(discover(options()));
  std::vector<pid_t> children;
  for (int writer = 0; writer < 8; ++writer) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // Every other time it is gone, or broken, for whoever comes next.
      bool all_right = true;
      for (int turn = 0; turn < 20; ++turn) {
        all_right &= graph().text == right;
        if (turn % 4 == writer % 4) fs::remove(file());
        if (turn % 7 == writer % 7) std::ofstream(file(), std::ios::trunc) << "broken";
      }
      _exit(all_right ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  warnings().clear();
  EXPECT_EQ(graph().text, right);
  EXPECT_EQ(graph().origin, "kept in " + file().string());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "nothing is left beside it";
}

TEST_F(Kept, ThreadsOfAProcessLookOnce) {
  KeptHost host(options());
  std::vector<HostGraph> graphs(8);
  std::vector<std::thread> threads;
  for (HostGraph& graph : graphs) threads.emplace_back([&] { graph = host.graph(folder_); });
  for (std::thread& thread : threads) thread.join();
  for (const HostGraph& graph : graphs) {
    EXPECT_EQ(graph.text, graphs[0].text);
    EXPECT_EQ(graph.origin, "found");
  }
}

}  // namespace
}  // namespace ropewalk::topology
