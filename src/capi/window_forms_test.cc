// What tests/gpu/window_forms.cu has kernels do, by threads of the host.
#include "capi/testing/window_forms.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "capi/testing/host_team.h"
#include "ropewalk/messages.h"
#include "ropewalk/ropewalk.h"

namespace ropewalk::capi {
namespace {

using testing::check;
using testing::Form;
using testing::Found;
using testing::Memory;
using testing::Rank;
using testing::Round;
using testing::Shifts;
using testing::Team;
using testing::with_ranks;
using testing::with_team;

constexpr std::size_t kMost = 4097;

class WindowForms : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { testing::set_links(GetParam()); }
  void TearDown() override { testing::reset_links(); }
};

std::string said(const Found& found) {
  return "step " + std::to_string(found.step) + ": status " + std::to_string(found.status) + "; " +
         std::to_string(found.wrong) +
         " bytes are wrong: " + std::to_string(static_cast<std::int64_t>(found.at)) + " is " +
         std::to_string(found.got) + ", not " + std::to_string(found.expected);
}

TEST_P(WindowForms, EveryByteOfEveryFormIsRight) {
  for (const bool by_team : {false, true}) {
    with_ranks(3, [&](Rank& rank) {
      rwMessageWindow_t window = nullptr;
      check(rwWindowCreate(rank.comm, testing::bytes_of_memory(kMost), testing::kSlots, &window));
      Memory memory;
      check(rwWindowDevice(window, &memory.window));
      void* mine = nullptr;
      check(rwWindowMemory(window, rank.rank, &mine, nullptr));
      memory.mine = static_cast<unsigned char*>(mine);
      std::vector<unsigned char> source(testing::bytes_of_memory(kMost));
      std::vector<unsigned char> back(testing::bytes_of_memory(kMost));
      memory.source = source.data();
      memory.back = back.data();
      memory.right = (rank.rank + 1) % rank.size;
      memory.left = (rank.rank + rank.size - 1) % rank.size;
      Round round;
      for (int form = 0; form < testing::kForms; ++form) {
        for (const Shifts& shifts : testing::kShifts) {
          for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{8},
                                          std::size_t{9}, std::size_t{100}, kMost}) {
            round.form = static_cast<Form>(form);
            round.shifts = shifts;
            round.bytes = bytes;
            ++round.turn;
            Found found;
            if (by_team) {
              with_team([&](const Team& team) { testing::run_round(team, memory, round, found); });
            } else {
              testing::run_round(device::Thread{}, memory, round, found);
            }
            ASSERT_TRUE(found.status == 0 && found.wrong == 0)
                << testing::kFormNames[form] << ", " << bytes << " bytes: " << said(found);
            ASSERT_EQ(found.counted, found.counts);
          }
        }
      }
      check(rwWindowFree(window));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Between, WindowForms, ::testing::Values("memory", "tcp", "shm"),
                         [](const ::testing::TestParamInfo<std::string>& each) {
                           return each.param;
                         });

}  // namespace
}  // namespace ropewalk::capi
