#include "tune/host_pricing.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "schedule/checked.h"

namespace ropewalk::tune {
namespace {

GroupFacts facts_of_two() {
  GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = 2;
  facts.num_hosts = 1;
  facts.slot_bytes = facts.chunk_bytes = std::size_t{32} << 10U;
  facts.all_by_address = true;
  return facts;
}

MachineConstants rates_of(double copy_rate, double address_rate) {
  MachineConstants constants;
  constants.copy_rate = constants.combine_rate = copy_rate;
  constants.address_rate = constants.address_move_rate = address_rate;
  constants.address_cost = 1.1e-6;
  return constants;
}

Choice doubling_priced(const MachineConstants& constants, std::size_t bytes) {
  // Ranks combine what they receive into what they send next, which has no address of its own.
  const auto checked =
      schedule::CheckedSchedules().get("recursive_doubling", {Collective::kAllReduce, 2, 0, 1});
  const Candidate candidate{
      .algorithm = "recursive_doubling", .channels = 1, .shape = ScheduleShape::of(*checked)};
  EXPECT_FALSE(candidate.shape.by_address);
  return HostPricing(Config::load(), facts_of_two(), constants).price(candidate, bytes);
}

// An EPYC: an all-reduce of 2 MiB out of place took 2.7 times as long with chunks of 32 KiB by
// address, which ranks read by a system call for each.
TEST(HostPricing, ChunksOfASlotGoByAddressOnlyWhereThatIsSooner) {
  const std::size_t bytes = std::size_t{2} << 20U;
  const Choice slow = doubling_priced(rates_of(19.7e9, 8.8e9), bytes);
  EXPECT_GT(slow.address_bytes, slow.chunk_bytes);
  const Choice fast = doubling_priced(rates_of(10e9, 40e9), bytes);
  EXPECT_LE(fast.address_bytes, fast.chunk_bytes);
}

TEST(HostPricing, ARootDoesNotWaitForReadersThatShareItsCore) {
  const auto checked =
      schedule::CheckedSchedules().get("direct", {Collective::kBroadcast, 4, 0, 1});
  const Candidate candidate{
      .algorithm = "direct", .channels = 1, .shape = ScheduleShape::of(*checked)};
  ASSERT_TRUE(candidate.shape.by_address);
  const MachineConstants constants = rates_of(10e9, 40e9);
  GroupFacts facts = facts_of_two();
  facts.num_ranks = facts.max_ranks_per_host = 4;
  const auto by_address = [&](double ranks_per_core, std::size_t bytes) {
    facts.ranks_per_processor = ranks_per_core;
    const HostPricing pricing(Config::load(), facts, constants);
    return pricing.price(candidate, bytes).address_bytes <= bytes;
  };
  EXPECT_TRUE(by_address(1, std::size_t{1} << 20U));
  EXPECT_FALSE(by_address(2, std::size_t{1} << 20U));
  EXPECT_TRUE(by_address(2, std::size_t{16} << 20U));
}

// A gather among three and more ranks can try no form: what copies by address is taken although it
// costs up to 1.35 of the other form by the price, which is of data from memory.
TEST(HostPricing, WhereOneRankReceivesAndNoTrialIsPossibleAddressesArePreferred) {
  const auto goes_by_address = [](Collective collective, int ranks, std::size_t bytes,
                                  double address_rate) {
    const auto checked = schedule::CheckedSchedules().get("direct", {collective, ranks, 0, 1});
    const Candidate candidate{
        .algorithm = "direct", .channels = 1, .shape = ScheduleShape::of(*checked)};
    GroupFacts facts = facts_of_two();
    facts.num_ranks = facts.max_ranks_per_host = ranks;
    facts.ranks_per_processor = 2;
    const Choice choice =
        HostPricing(Config::load(), facts, rates_of(10e9, address_rate)).price(candidate, bytes);
    if (choice.address_chunk_bytes > 0) {
      EXPECT_LE(choice.predicted_seconds, choice.other_seconds);
    }
    return choice.address_chunk_bytes > 0;
  };
  const std::size_t bytes = std::size_t{1} << 20U;
  // Three blocks: 0.75 / 10 each through slots, 1 / 1.7 of the other rate by address.
  EXPECT_TRUE(goes_by_address(Collective::kGather, 4, bytes, 6e9));
  EXPECT_FALSE(goes_by_address(Collective::kGather, 4, bytes, 3e9));
  EXPECT_FALSE(goes_by_address(Collective::kGather, 4, std::size_t{64} << 10U, 6e9)) << "short";
  EXPECT_FALSE(goes_by_address(Collective::kBroadcast, 4, bytes, 6e9)) << "its root would wait";
}

// Both forms, whichever is chosen, where what calls take can decide between them.
TEST(HostPricing, CallsThatCanGoInBothFormsHaveTheOtherOne) {
  const auto checked =
      schedule::CheckedSchedules().get("direct", {Collective::kAllGather, 2, 0, 1});
  const Candidate candidate{
      .algorithm = "direct", .channels = 1, .shape = ScheduleShape::of(*checked)};
  ASSERT_TRUE(candidate.shape.by_address);
  const std::size_t bytes = std::size_t{1} << 20U;
  const auto price = [&](const MachineConstants& constants, const Config& config,
                         const GroupFacts& facts) {
    return HostPricing(config, facts, constants).price(candidate, bytes);
  };
  const auto gives = [](std::size_t address_bytes, std::size_t address_chunk_bytes) {
    return address_bytes <= bytes && address_chunk_bytes > 0;
  };
  const Config config = Config::load();
  for (const MachineConstants& constants : {rates_of(5e9, 40e9), rates_of(40e9, 5e9)}) {
    const Choice choice = price(constants, config, facts_of_two());
    ASSERT_TRUE(choice.other.has_value());
    const bool by_address = gives(choice.address_bytes, choice.address_chunk_bytes);
    EXPECT_EQ(by_address, constants.address_rate > constants.copy_rate);
    EXPECT_NE(gives(choice.other->address_bytes, choice.other->address_chunk_bytes), by_address);
    EXPECT_GT(choice.other->chunk_bytes, 0U);
  }
  EXPECT_FALSE(HostPricing(config, facts_of_two(), rates_of(5e9, 40e9))
                   .price(candidate, 4096)
                   .other.has_value())
      << "too short for an address";
  GroupFacts threads = facts_of_two();
  threads.same_process = true;
  EXPECT_FALSE(price(rates_of(5e9, 40e9), config, threads).other.has_value());
  for (const auto& [setting, value] :
       std::vector<std::pair<const char*, const char*>>{{"ADAPT_COPIES", "0"},
                                                        {"CHECK_CALLS", "0"},
                                                        {"SINGLE_COPY_BYTES", "64K"},
                                                        {"ADAPT_CHUNKS", "1"}}) {
    Config other = Config::load();
    other.set(setting, value, "test");
    EXPECT_FALSE(price(rates_of(5e9, 40e9), other, facts_of_two()).other.has_value()) << setting;
  }
}

}  // namespace
}  // namespace ropewalk::tune
