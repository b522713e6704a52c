// Objects of libsisci that are busy when they are to be given back.
#include "transport/window/sisci/clean_up.h"

#include <gtest/gtest.h>

namespace ropewalk::transport::window::sisci {
namespace {

TEST(CleanUp, SettlingReleasesObjectsThatAreBusyForAMoment) {
  CleanUp clean_up;
  int tries = 0;
  bool second = false;
  clean_up.add({[&] { return ++tries == 4; },
                [&] {
                  second = true;
                  return true;
                }});
  EXPECT_EQ(tries, 1);
  clean_up.settle();
  EXPECT_EQ(tries, 4);
  EXPECT_TRUE(second);
  clean_up.settle();
  EXPECT_EQ(tries, 4) << "what was given back is not tried again";
}

TEST(CleanUp, SettlingEndsWhereSomethingStaysBusyAndKeepsIt) {
  CleanUp clean_up;
  bool busy = true;
  clean_up.add({[&] { return !busy; }});
  const auto begin = std::chrono::steady_clock::now();
  clean_up.settle();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  busy = false;
  int tries = 0;
  clean_up.add({[&] { return ++tries > 1; }});
  clean_up.settle();
  EXPECT_EQ(tries, 2);
}

}  // namespace
}  // namespace ropewalk::transport::window::sisci
