// Which threads have a GPU to go back to.
#include "core/library_thread.h"

#include <gtest/gtest.h>

#include <thread>

namespace ropewalk {
namespace {

TEST(LibraryThread, OnlyItsFirstGpuFollowsNone) {
  EXPECT_FALSE(begins_on_its_first_gpu()) << "the program's thread";
  std::thread([] {
    mark_library_thread();
    EXPECT_TRUE(begins_on_its_first_gpu());
    EXPECT_FALSE(begins_on_its_first_gpu());
  }).join();
  EXPECT_FALSE(begins_on_its_first_gpu()) << "as before";
}

}  // namespace
}  // namespace ropewalk
