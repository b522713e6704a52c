#include "link/peer_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace ropewalk::link {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<PeerAccess::View> all_of(std::size_t ranks) {
  return std::vector<PeerAccess::View>(ranks * ranks, PeerAccess::View{1, 1});
}

TEST(RankPairs, AreReadInAnyOrder) {
  EXPECT_THAT(parse_rank_pairs("X", "0-3,2-1"), ElementsAre(std::pair(0, 3), std::pair(1, 2)));
  EXPECT_THAT(parse_rank_pairs("X", ""), IsEmpty());
}

TEST(RankPairs, TellWhatIsNone) {
  for (const char* text : {"0", "0-", "-1", "1-1", "0-1,", "0-1,x", "0-1 ", "0--1", "0-1-2"}) {
    if (std::string(text) == "0-1,") {
      EXPECT_NO_THROW(parse_rank_pairs("X", text));  // as in other lists
      continue;
    }
    try {
      (void)parse_rank_pairs("PEER_ACCESS_DENY", text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr("ROPEWALK_PEER_ACCESS_DENY"));
    }
  }
}

TEST(PeerAccess, OnePairDoesNotChangeTheOthers) {
  std::vector<PeerAccess::View> views = all_of(4);
  views[0 * 4 + 3].has_access = 0;  // one direction is enough
  views[2 * 4 + 1] = {0, 0};
  const PeerAccess access(views, {});
  EXPECT_THAT(access.missing(), ElementsAre(std::pair(0, 3), std::pair(1, 2)));
  EXPECT_FALSE(access.between(0, 3));
  EXPECT_FALSE(access.between(3, 0));
  EXPECT_TRUE(access.between(0, 1));
  EXPECT_TRUE(access.between(2, 2));
  EXPECT_TRUE(access.any());
  EXPECT_TRUE(access.whole_lines());  // of those that have access
  views[0 * 4 + 1].whole_lines = 0;
  EXPECT_FALSE(PeerAccess(views, {}).whole_lines());
}

TEST(PeerAccess, IsNoneBetweenHosts) {
  const PeerAccess access(all_of(4), {0, 0, 1, 1});
  EXPECT_THAT(access.missing(), IsEmpty());
  EXPECT_FALSE(access.between(1, 2));
  EXPECT_TRUE(access.between(2, 3));
  const PeerAccess apart(all_of(2), {0, 1});
  EXPECT_FALSE(apart.any());
  EXPECT_FALSE(apart.whole_lines());
}

TEST(PeerAccess, OfNobody) {
  const PeerAccess access(std::vector<PeerAccess::View>(9), {});
  EXPECT_EQ(access.missing().size(), 3U);
  EXPECT_FALSE(access.any());
  const PeerAccess alone(all_of(1), {});
  EXPECT_THAT(alone.missing(), IsEmpty());
}

}  // namespace
}  // namespace ropewalk::link
