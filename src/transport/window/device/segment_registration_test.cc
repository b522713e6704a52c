// With software that stands in for CUDA's driver.
#include "transport/window/device/segment_registration.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "transport/window/device/testing/on_device.h"
#include "transport/window/device/testing/stand_in.h"

namespace ropewalk::transport::window {
namespace {

using ropewalk::testing::message_of;
using ::testing::HasSubstr;
using testing::StandIn;
using testing::TestGpus;

constexpr std::size_t kSegmentBytes = 10'000;

SharedMemory map_once(const SharedMemory& memory) {
  return SharedMemory::map_once(FileDescriptor(fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0)),
                                kSegmentBytes);
}

class SegmentRegistrations : public ::testing::Test {
 protected:
  SegmentRegistrations() { stand_in_.configure(""); }
  ~SegmentRegistrations() override { stand_in_.configure(""); }
  SegmentRegistrations(const SegmentRegistrations&) = delete;
  SegmentRegistrations& operator=(const SegmentRegistrations&) = delete;

  [[nodiscard]] bool registered(const std::byte* address) {
    const CudaApi& cuda = gpus_.cuda;
    const CurrentContext current(cuda, gpus_.gpus.at(1).context());
    CuPointer on_device = 0;
    return cuda.host_pointer(&on_device, const_cast<std::byte*>(address), 0) == kCuSuccess;
  }
  // Whether somebody has the primary context of GPU 0.
  [[nodiscard]] bool first_gpu_is_retained() {
    unsigned flags = 0;
    int active = 0;
    gpus_.cuda.check(gpus_.cuda.primary_state(0, &flags, &active), "cuDevicePrimaryCtxGetState");
    return active != 0;
  }

  StandIn stand_in_;
  TestGpus gpus_{RW_STAND_IN_CUDA};
  SharedMemory memory_ = SharedMemory::create(kSegmentBytes, ShmBacking::kAuto);
};

TEST_F(SegmentRegistrations, UsersOfOneMappingShareOneAndTheLastUnregisters) {
  const SharedMemory others = map_once(memory_);
  std::optional<TestGpus> first_users(RW_STAND_IN_CUDA);
  std::optional<SegmentRegistration> first(std::in_place, first_users->gpus.at(0), memory_);
  EXPECT_TRUE(registered(memory_.data() + memory_.size() - 1));
  std::optional<SegmentRegistration> other(std::in_place, gpus_.gpus.at(1), others);
  EXPECT_EQ(other->on_device(), first->on_device());
  // Whoever registered goes first, with its GPUs: what it registered stays, and so does the
  // context in which it did.
  first.reset();
  first_users.reset();
  EXPECT_TRUE(registered(memory_.data()));
  EXPECT_TRUE(first_gpu_is_retained());
  other.reset();
  EXPECT_FALSE(registered(memory_.data()));
  EXPECT_FALSE(first_gpu_is_retained());
  const SegmentRegistration again(gpus_.gpus.at(1), memory_);
  EXPECT_TRUE(registered(memory_.data())) << "registered anew";
}

TEST_F(SegmentRegistrations, MappingsApartHaveTheirOwn) {
  const SharedMemory apart =
      SharedMemory::map(FileDescriptor(fcntl(memory_.fd(), F_DUPFD_CLOEXEC, 0)), kSegmentBytes);
  const SegmentRegistration first(gpus_.gpus.at(1), memory_);
  {
    const SegmentRegistration other(gpus_.gpus.at(1), apart);
    EXPECT_NE(other.on_device(), first.on_device());
  }
  EXPECT_FALSE(registered(apart.data()));
  EXPECT_TRUE(registered(memory_.data()));
}

TEST_F(SegmentRegistrations, AFailureLeavesNothingBehind) {
  const auto fails = [&] {
    return message_of([&] { const SegmentRegistration refused(gpus_.gpus.at(0), memory_); },
                      Errc::kCuda);
  };
  stand_in_.configure("refuse=cuMemHostRegister_v2:800");
  EXPECT_THAT(fails(), HasSubstr("cuMemHostRegister: "));
  stand_in_.configure("");
  EXPECT_FALSE(registered(memory_.data()));
  stand_in_.configure("refuse=cuMemHostGetDevicePointer_v2:1");
  EXPECT_THAT(fails(), HasSubstr("cuMemHostGetDevicePointer: "));
  stand_in_.configure("");
  EXPECT_FALSE(registered(memory_.data()));
  // A user that fails takes nothing from the others.
  const SegmentRegistration first(gpus_.gpus.at(1), memory_);
  stand_in_.configure("refuse=cuMemHostGetDevicePointer_v2:1");
  fails();
  stand_in_.configure("");
  EXPECT_TRUE(registered(memory_.data()));
}

TEST_F(SegmentRegistrations, UsersComeAndGoAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const SharedMemory mine = map_once(memory_);
      for (int turn = 0; turn < 200; ++turn) {
        const SegmentRegistration share(gpus_.gpus.at(t % 2), mine);
        EXPECT_NE(share.on_device(), 0U);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(registered(memory_.data()));
}

}  // namespace
}  // namespace ropewalk::transport::window
