#include "core/fork.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "core/testing/in_child.h"

namespace ropewalk {
namespace {

TEST(Fork, ObjectsOfThisProcessAreAccepted) {
  const Belonging ours;
  EXPECT_FALSE(ours.elsewhere());
  EXPECT_NO_THROW(ours.require_here("it"));
}

TEST(Fork, ChildrenAtAnyDepthAreElsewhere) {
  const Belonging ours;
  const int status = testing::in_child([&] {
    EXPECT_TRUE(ours.elsewhere());
    const Belonging of_child;
    EXPECT_FALSE(of_child.elsewhere());
    return testing::in_child([&] {
      EXPECT_TRUE(ours.elsewhere());
      EXPECT_TRUE(of_child.elsewhere());
      return 0;
    });
  });
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(ours.elsewhere()) << "a fork changes nothing for the parent";
}

TEST(Fork, TheRefusalNamesBothProcesses) {
  const Belonging ours;
  const std::string parent = std::to_string(getpid());
  const int status = testing::in_child([&] {
    const std::string said =
        testing::message_of([&] { ours.require_here("it"); }, Errc::kInvalidUsage);
    EXPECT_NE(said.find("it belongs to process " + parent), std::string::npos) << said;
    EXPECT_NE(said.find("this is process " + std::to_string(getpid())), std::string::npos) << said;
    return 0;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ropewalk
