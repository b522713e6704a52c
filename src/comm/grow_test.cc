// Communicators that take further ranks in.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/unique_id.h"
#include "comm/communicator.h"
#include "comm/testing/ranks.h"

namespace ropewalk::comm {
namespace {

using testing::with_ranks;

float sum_of_ranks(Communicator& comm) {
  std::vector<float> data(100, static_cast<float>(comm.rank()));
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.input = data.data();
  call.output = data.data();
  call.count = data.size();
  call.type = DataType::kFloat32;
  comm.run(call);
  return data.back();
}

TEST(Grow, RanksKeepTheirNumbersAndNewOnesFollow) {
  Runtime runtime;
  for (const int giver : {0, 1}) {
    const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
    std::vector<std::thread> joining;
    std::vector<std::uint64_t> identities(4);
    const auto use = [&](Communicator& grown) {
      EXPECT_EQ(grown.size(), 4);
      EXPECT_EQ(sum_of_ranks(grown), 0 + 1 + 2 + 3);
      identities[static_cast<std::size_t>(grown.rank())] = grown.identity();
      grown.finalize();
    };
    for (const int rank : {2, 3}) {
      joining.emplace_back([&, rank] { use(*Communicator::join(id, rank, 4, runtime)); });
    }
    with_ranks(2, runtime, [&](Communicator& comm) {
      const bool gives = comm.rank() == giver;
      const std::unique_ptr<Communicator> grown =
          comm.grow(gives ? std::optional(id) : std::nullopt, 4);
      EXPECT_EQ(grown->rank(), comm.rank());
      EXPECT_NE(grown->identity(), comm.identity());
      use(*grown);
      EXPECT_EQ(sum_of_ranks(comm), 1);  // the smaller one goes on
    });
    for (std::thread& thread : joining) thread.join();
    EXPECT_EQ(identities, std::vector<std::uint64_t>(4, identities[0]));
  }
}

TEST(Grow, InvalidCallsAreErrorsOnAllRanks) {
  Runtime runtime;
  with_ranks(2, runtime, [&](Communicator& comm) {
    const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
    const auto fault = [&](const std::optional<bootstrap::UniqueId>& given,
                           int num_ranks) -> std::string {
      try {
        (void)comm.grow(given, num_ranks);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::kInvalidArgument);
        return error.what();
      }
      return "none";
    };
    EXPECT_EQ(fault(std::nullopt, 3), "0 of 2 ranks gave a unique id to grow with; one must");
    EXPECT_EQ(fault(id, 3), "2 of 2 ranks gave a unique id to grow with; one must");
    const auto one = comm.rank() == 0 ? std::optional(id) : std::nullopt;
    EXPECT_EQ(fault(one, 2), "2 ranks cannot grow to 2");
    EXPECT_EQ(fault(one, 3 + comm.rank()), "rank 0 grows to 3 ranks, rank 1 to 4");
    EXPECT_EQ(sum_of_ranks(comm), 1);
  });
}

}  // namespace
}  // namespace ropewalk::comm
