#include "core/cpu_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "core/error.h"

namespace ropewalk {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CpuList, IsReadAsLinuxWritesIt) {
  EXPECT_THAT(parse_cpu_list("0-3,8"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(parse_cpu_list("5"), ElementsAre(5));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  for (const char* text : {"x", "-1", "3-1", "1-", "1,,2", "0-99999999", "0 1"}) {
    EXPECT_THROW(parse_cpu_list(text), Error) << text;
  }
}

TEST(CpuList, OfAPciDevice) {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("cpu_list_test." + std::to_string(getpid()));
  std::filesystem::create_directories(root / "0000:3b:00.0");
  std::ofstream(root / "0000:3b:00.0" / "local_cpulist") << "2-3\n";
  EXPECT_THAT(cpus_near("0000:3B:00.0", root), ElementsAre(2, 3));
  EXPECT_THAT(cpus_near("0000:3c:00.0", root), IsEmpty());
  std::ofstream(root / "0000:3b:00.0" / "local_cpulist") << "nonsense\n";
  EXPECT_THAT(cpus_near("0000:3b:00.0", root), IsEmpty());
  std::filesystem::remove_all(root);
}

TEST(CpuList, OfSeveralDevicesTheProcessorsNearAllWhereThereAreAny) {
  const std::vector<int> near_gpu = {0, 1, 2, 3};
  const std::vector<std::vector<int>> overlapping = {{2, 3, 4}, {3, 5}};
  EXPECT_THAT(cpus_also_in(near_gpu, overlapping), ElementsAre(3));
  const std::vector<std::vector<int>> one_apart = {{8, 9}, {1, 2}, {}};
  EXPECT_THAT(cpus_also_in(near_gpu, one_apart), ElementsAre(1, 2));
  EXPECT_THAT(cpus_also_in(near_gpu, {}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(cpus_also_in({}, overlapping), IsEmpty());
}

TEST(CpuList, AThreadMayRunOnWhatItStaysOn) {
  std::thread([] {
    const std::vector<int> before = usable_cpus();
    ASSERT_FALSE(before.empty());
    ASSERT_TRUE(stay_on({before.back()}));
    EXPECT_THAT(usable_cpus(), ElementsAre(before.back()));
  }).join();
}

TEST(CpuList, AThreadStaysOnWhatItMayUse) {
  std::thread([] {
    cpu_set_t before;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    int first = 0;
    while (!CPU_ISSET(static_cast<std::size_t>(first), &before)) ++first;
    EXPECT_FALSE(stay_on({}));
    EXPECT_FALSE(stay_on({CPU_SETSIZE - 1}));  // no such processor here
    cpu_set_t after;
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
    EXPECT_TRUE(stay_on({first, CPU_SETSIZE - 1}));
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_EQ(CPU_COUNT(&after), 1);
    EXPECT_TRUE(CPU_ISSET(static_cast<std::size_t>(first), &after));
  }).join();
}

}  // namespace
}  // namespace ropewalk
