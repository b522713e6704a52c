// With software that stands in for CUDA's driver.
#include "message/device_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "transport/window/device/testing/ipc_owner.h"

namespace ropewalk::message {
namespace {

namespace gpus = transport::window;
using ropewalk::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using transport::window::testing::IpcOwner;
using transport::window::testing::numbered;
using transport::window::testing::StandIn;
using transport::window::testing::TestGpus;

class ReachedParts : public ::testing::Test {
 protected:
  ReachedParts() { stand_in_.configure(""); }
  ~ReachedParts() override { stand_in_.configure(""); }
  ReachedParts(const ReachedParts&) = delete;
  ReachedParts& operator=(const ReachedParts&) = delete;

  static DeviceOffer::Range range(const gpus::CuIpcHandle& handle, std::uint64_t offset) {
    DeviceOffer::Range made;
    made.address = 0x1000;  // in the owner's process
    made.offset = offset;
    made.handle = handle;
    made.shareable = 1;
    return made;
  }
  bool nothing_is_open() const {
    return stand_in_.held().find(" 0 IPC handles") != std::string::npos;
  }

  StandIn stand_in_;
  IpcOwner owner_{2};
  TestGpus gpus_{RW_STAND_IN_CUDA};
};

TEST_F(ReachedParts, LieWhereTheOwnerSays) {
  stand_in_.configure("ipc_uncounted");
  gpus::Gpu& gpu = gpus_.gpus.at(1);
  DeviceOffer offer;
  offer.counters = range(owner_.handle(0), 256);
  offer.data = range(owner_.handle(0), 4096);  // of the same allocation, so of one handle
  {
    const ReachedPart part(gpus_.gpus, gpu, 3, offer, nullptr);
    EXPECT_EQ(part.data() - part.counters(), 4096U - 256U);
    {
      // A second window of the job opens what is open.
      const ReachedPart other(gpus_.gpus, gpu, 3, offer, nullptr);
      EXPECT_EQ(other.data(), part.data());
    }
    const std::vector<char> all = numbered(IpcOwner::kBytes, 0);
    std::vector<char> seen(1000);
    gpu.fetch(seen.data(), part.data(), seen.size());
    EXPECT_EQ(seen, std::vector<char>(all.begin() + 4096, all.begin() + 5096));
  }
  EXPECT_TRUE(nothing_is_open()) << stand_in_.held();
}

TEST_F(ReachedParts, OnesThatFailHalfwayLeaveNothingOpen) {
  gpus::Gpu& gpu = gpus_.gpus.at(0);
  DeviceOffer offer;
  offer.counters = range(owner_.handle(0), 0);
  offer.data = range(IpcOwner::wrong_handle(), 0);
  const auto words = [&] {
    return message_of([&] { const ReachedPart part(gpus_.gpus, gpu, 3, offer, nullptr); },
                      Errc::kCuda);
  };
  EXPECT_THAT(words(), HasSubstr("cuIpcOpenMemHandle (memory of rank 3, on GPU 0 ("));
  EXPECT_TRUE(nothing_is_open()) << stand_in_.held();
  offer.data = range(owner_.handle(1), 0);
  offer.data.shareable = 0;
  EXPECT_THAT(words(), HasSubstr("has no handle for other processes"));
  EXPECT_TRUE(nothing_is_open()) << stand_in_.held();
}

}  // namespace
}  // namespace ropewalk::message
