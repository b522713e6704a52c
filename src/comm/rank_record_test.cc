// Errors when ranks with different settings join.
#include "comm/rank_record.h"

#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/test_support.h"
#include "comm/communicator.h"

namespace ropewalk::comm {
namespace {

using bootstrap::error_of;
using bootstrap::in_ms;
using bootstrap::quiet_config;
using bootstrap::soon;

constexpr int kRecordRanks = 3;
using Outcomes = std::array<std::pair<Errc, std::string>, kRecordRanks>;
using SettingByRank = std::array<std::string, kRecordRanks>;  // by rank

// Runs a thread for each rank, in a runtime of its own that has `values` of the setting `name`.
Outcomes with_settings(const std::string& name, const SettingByRank& values,
                       const std::function<void(const bootstrap::UniqueId&, int, Runtime&)>& body) {
  bootstrap::Context context;
  const bootstrap::UniqueId id = bootstrap::make_unique_id(quiet_config(), context);
  Outcomes outcomes;
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < kRecordRanks; ++r) {
    threads.emplace_back([&, r] {
      Runtime runtime;
      runtime.set("TUNE", "0", "test");
      runtime.set("TOPOLOGY_CACHE", "off", "test");
      runtime.set("SOCKET_IFNAME", "lo", "test");
      runtime.set("TIMEOUT", "20s", "test");
      runtime.set(name, values[r], "test");
      outcomes[r] = error_of([&] { body(id, static_cast<int>(r), runtime); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::string differs(const std::string& field, int rank, const std::string& mine, int peer,
                    const std::string& theirs) {
  return fmt::format("{} differs: rank {} has {}, rank {} has {}", field, rank, mine, peer, theirs);
}

struct SettingDifference {
  const char* setting;
  const char* field;  // in the message
  SettingByRank given;
  SettingByRank said;
};

const std::vector<SettingDifference> kDifferences = {
    {"SLOTS", "setting SLOTS", {"16", "16", "4"}, {"16", "16", "4"}},
    {"SLOT_BYTES", "setting SLOT_BYTES", {"0", "0", "64K"}, {"0", "0", "65536"}},
    {"CHANNELS", "setting CHANNELS", {"2", "2", "3"}, {"2", "2", "3"}},
    {"NET", "setting NET", {"auto", "auto", "tcp"}, {"auto", "auto", "tcp"}},
    {"VERIFY", "setting VERIFY", {"connect", "connect", "off"}, {"connect", "connect", "off"}},
    {"NET_ENCRYPT", "setting NET_ENCRYPT", {"1", "1", "0"}, {"1", "1", "0"}},
    {"CHECK_CALLS", "setting CHECK_CALLS", {"1", "1", "0"}, {"1", "1", "0"}},
    {"ADAPT_CHUNKS", "setting ADAPT_CHUNKS", {"1", "1", "0"}, {"1", "1", "0"}},
    {"ADAPT_HYBRID", "setting ADAPT_HYBRID", {"0", "0", "1"}, {"0", "0", "1"}},
    {"SINGLE_COPY_BYTES",
     "setting SINGLE_COPY_BYTES",
     {"1K", "1K", "1M"},
     {"1024", "1024", "1048576"}},
    {"EMULATE", "setting EMULATE", {"", "", "dgx1v"}, {"none", "none", "a machine"}},
    {"PROTOCOL", "setting PROTOCOL", {"auto", "auto", "ll"}, {"auto", "auto", "ll"}},
    {"ALGORITHM",
     "setting ALGORITHM of all_reduce",
     {"ring", "ring", "one_shot"},
     {"ring", "ring", "one_shot"}},
    {"ALGORITHM",
     "setting ALGORITHM of broadcast",
     {"auto", "auto", "broadcast=chain"},
     {"auto", "auto", "chain"}},
};

// Every rank finds the difference itself, whether its own value is the larger or the smaller one.
TEST(RankRecord, EveryRankNamesTheSettingTheRanksAndTheirValues) {
  for (const SettingDifference& each : kDifferences) {
    std::barrier all_done(kRecordRanks);  // no rank is told by another that left
    const Outcomes outcomes = with_settings(
        each.setting, each.given, [&](const bootstrap::UniqueId& id, int rank, Runtime& runtime) {
          const Config config = runtime.config();
          const auto self =
              bootstrap::Bootstrap::join(id, rank, kRecordRanks, config, soon(), runtime.context());
          const auto error =
              error_of([&] { (void)exchange_records(*self, config, runtime, in_ms(10'000)); });
          all_done.arrive_and_wait();
          if (error.second != "no error") throw Error(error.first, "{}", error.second);
        });
    for (const int rank : {0, 1, 2}) {
      const int peer = rank == 2 ? 0 : 2;
      const auto& [code, text] = outcomes[static_cast<std::size_t>(rank)];
      EXPECT_EQ(code, Errc::kInvalidUsage) << text;
      EXPECT_EQ(text, differs(each.field, rank, each.said[static_cast<std::size_t>(rank)], peer,
                              each.said[static_cast<std::size_t>(peer)]));
    }
  }
}

// Different texts that force the same algorithms.
TEST(RankRecord, AlgorithmsAreComparedByWhatTheyForce) {
  const Outcomes outcomes =
      with_settings("ALGORITHM",
                    {"all_reduce=ring,broadcast=chain", "broadcast=chain,all_reduce=ring",
                     "all_gather=auto,all_reduce=one_shot,all_reduce=ring,broadcast=chain"},
                    [&](const bootstrap::UniqueId& id, int rank, Runtime& runtime) {
                      Communicator::join(id, rank, kRecordRanks, runtime)->finalize();
                    });
  for (const auto& [code, text] : outcomes) EXPECT_EQ(text, "no error");
}

// A rank may hear of it from another one before it has looked: the words are the same.
TEST(RankRecord, JoiningFailsByThoseWordsOnEveryRank) {
  for (const SettingDifference& each : kDifferences) {
    const Outcomes outcomes = with_settings(
        each.setting, each.given, [&](const bootstrap::UniqueId& id, int rank, Runtime& runtime) {
          (void)Communicator::join(id, rank, kRecordRanks, runtime);
        });
    for (const auto& [code, text] : outcomes) {
      EXPECT_NE(text.find(std::string(each.field) + " differs: rank "), std::string::npos) << text;
      EXPECT_NE(text.find("rank 2 has " + each.said[2]), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace ropewalk::comm
